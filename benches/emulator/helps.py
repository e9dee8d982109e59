"""What tinygrad's emulator has wrong or has not, put right without changing its files.

A help is a function of this file that `apply` calls with the emulator's module; its comment says what is right, and where
that is written: in AMD's reference guides of the instruction sets ("RDNA3 ISA" and so on), or in LLVM's "User Guide for
AMDGPU Backend". faults.py has a kernel a help, which the emulator alone gets wrong.
"""
import contextlib, ctypes, inspect, math, struct
from types import SimpleNamespace

HELPS, EDITED = {}, {}


def help(function):
    HELPS[function.__name__] = function
    return function


def apply(emulator, without=()):
    for name, function in HELPS.items():
        if name not in without:
            function(emulator)


def decoder(function):
    """Makes `function(emulator, pc, arch, otherwise)` what decodes the instruction at an address."""
    def install(emulator):
        otherwise = emulator._decode_at
        emulator._decode_at = lambda pc, arch: function(emulator, pc, arch, otherwise)
    install.__name__, install.__doc__ = function.__name__, function.__doc__
    return help(install)


def step(emulator, size, body):
    """An instruction in Python: `body(sgpr, vgpr, accvgpr)`, arrays of words; a vector register has a word a lane."""
    def run(*buffers):
        sgpr, vgpr, accvgpr = (ctypes.cast(b.value, ctypes.POINTER(ctypes.c_uint32)) for b in buffers)
        body(sgpr, vgpr, accvgpr)
        low = emulator.PC_LO_IDX
        pc = (sgpr[low] | sgpr[low + 1] << 32) + size
        sgpr[low], sgpr[low + 1] = pc & 0xFFFFFFFF, pc >> 32
    return SimpleNamespace(arg=SimpleNamespace(globals=[0, 1, 5])), SimpleNamespace(fxn=run)


def edit(emulator, name, *changes):
    """Replaces parts of the text of one of the emulator's functions; each part is there once."""
    text = EDITED.get(name) or inspect.getsource(getattr(emulator, name))
    for old, new in changes:
        assert text.count(old) == 1, f"{name} of this checkout has {text.count(old)} x {old!r}"
        text = text.replace(old, new)
    EDITED[name] = text
    exec(compile(text, f"<{name} of the emulator, edited>", "exec"), emulator.__dict__)


def instruction_at(emulator, pc, arch):
    return emulator.decode_inst(ctypes.string_at(pc, 16), arch)


@help
def returned_atomics(emulator):
    """Which bit says that an atomic returns what was there: GLC on RDNA3, SC0 on CDNA3 (LLVM's guide, memory model of gfx942),
    bit 0 of TH on RDNA4 (TH_ATOMIC_RETURN of the assembler). The emulator looks at GLC on all."""
    plain = emulator._iattr
    def field(instruction, name, default=0):
        if name == "glc" and hasattr(instruction, "sc0"): return plain(instruction, "sc0")
        if name == "glc" and hasattr(instruction, "th"): return plain(instruction, "th") & 1
        return plain(instruction, name, default)
    emulator._iattr = field


@help
def inactive_lanes_of_lds(emulator):
    """A lane whose bit of EXEC is 0 accesses no memory (all guides, "EXEC: execute mask"). The emulator reads LDS for such
    lanes too, wherever their address register points. Here their address is 0."""
    plain = emulator._compile_mem_op
    def compile(instruction, ctx):
        read = emulator._Ctx.rvgpr_dyn
        address = ctx.inst_field(type(instruction).addr)
        def guarded(self, register, lane, valid=None):
            value = read(self, register, lane, valid)
            return emulator._lane_active(self.rexec(), lane).where(value, emulator._c(0)) if register is address else value
        emulator._Ctx.rvgpr_dyn = guarded
        try:
            return plain(instruction, ctx)
        finally:
            emulator._Ctx.rvgpr_dyn = read
    for tables in (emulator.ir3, emulator.ir4, emulator.irc):
        emulator._INST_HANDLERS[tables.DS] = compile


@help
def denormals(emulator):
    """The emulator takes denormal f32 for 0 always. A kernel's descriptor says whether (LLVM's guide, FLOAT_DENORM_MODE_32): 3,
    which clang sets, keeps them. `denormals` holds the descriptor's bits."""
    flush = emulator._MXCSRContext
    emulator._MXCSRContext = lambda: contextlib.nullcontext() if emulator.denormals & 3 == 3 else flush()


@help
def private_memory(emulator):
    """Each lane has its own scratch memory (LLVM's guide, "Private memory"). In the emulator all waves of a block share that of one
    wave, so that registers that are spilled over a barrier come back as another wave's."""
    edit(emulator, "run_asm",
         ("Buffer('CPU', scratch_size * wave_size, dtypes.uint8)", "Buffer('CPU', scratch_size * (total_threads + wave_size), dtypes.uint8)"),
         ("ctypes.c_uint64(scratch_buf._buf.va_addr if scratch_buf else 0)",
          "ctypes.c_uint64(scratch_buf._buf.va_addr + wave_start * scratch_size if scratch_buf else 0)"))


@help
def nearest_even(emulator):
    """V_RNDNE_F16, V_RNDNE_F32: "round to nearest even integer" (all guides). Their pseudocode adds 0.5 first, and the emulator
    does so in the type of the operand: the largest number below 0.5 becomes 1, and odd integers beyond 2^23 change."""
    plain = emulator.get_pcode
    def nearest(value):
        const = lambda number: emulator.UOp.const(number, value.dtype)
        whole = emulator.UOp(emulator.Ops.TRUNC, src=(value,))
        half = whole * const(0.5)
        odd = half.ne(emulator.UOp(emulator.Ops.TRUNC, src=(half,)))
        rest = value - whole
        up = (const(0.5) < rest) | (rest.eq(const(0.5)) & odd)
        down = (rest < const(-0.5)) | (rest.eq(const(-0.5)) & odd)
        return up.where(whole + const(1.0), down.where(whole - const(1.0), whole))
    emulator._FUNCS["nearest_even"] = nearest
    def text(operation):
        for kind in ("f16", "f32"):
            if operation.name.startswith(f"V_RNDNE_{kind.upper()}"): return f"D0.{kind} = nearest_even(S0.{kind})"
        return plain(operation)
    emulator.get_pcode = text


@help
def small_operands_of_wmma(emulator):
    """Operands of 4 bits (IU4) and FP8 (FP8_FP8, BF8_FP8 and so on): RDNA3 ISA and RDNA4 ISA, "Wave Matrix Multiply Accumulate".
    The emulator takes bytes of FP8 for halves of f16, and 4 bits for 16. Which lane has which k is the same in A and B, so that
    no sum shows it."""
    edit(emulator, "_compile_wmma",
         ("sz = 8 if any(t in op_name for t in ('IU8', 'FP8', 'BF8')) else 16",
          "sz = 4 if 'IU4' in op_name else 8 if any(t in op_name for t in ('IU8', 'FP8', 'BF8')) else 16\n"
          "  wide = '16X16X32' in op_name\n  depth = 32 if wide else 16\n"
          "  small = [f'{t.lower()}_to_f32' for t in op_name.split('_')[-2:]] if 'FP8' in op_name or 'BF8' in op_name else None"),
         ('if "F" in output_type: return cvt(pkd)',
          'if "F" in output_type: return (_FUNCS[small[src is src1_r]] if small else cvt)(pkd)'),
         ("return (pkd << _c(24, dtypes.uint)).bitcast(dtypes.int32) >> _c(24, dtypes.int32)",
          "return (pkd << _c(32 - sz, dtypes.uint)).bitcast(dtypes.int32) >> _c(32 - sz, dtypes.int32)"),
         ("elem, lane = ((k & 3) | ((k >> 1) & 4), i + ((k >> 2) & 1) * 16) if is_rdna4 else (k, i)",
          "elem, lane = (k & 15, i + (k >> 4) * 16) if wide else ((k & 3) | ((k >> 1) & 4), i + ((k >> 2) & 1) * 16) if is_rdna4 else (k, i)"),
         ("for row in range(16) for k in range(16)]", "for row in range(16) for k in range(depth)]"),
         ("sum(mat_a[r*16+k] * mat_b[c*16+k] for k in range(16))", "sum(mat_a[r*depth+k] * mat_b[c*depth+k] for k in range(depth))"))


@help
def f16_operands_of_mfma(emulator):
    """Denormal f16, infinities and NaN are operands like others (CDNA3 ISA, "Matrix Arithmetic Instructions"; the MI200 before it
    flushed denormals). The emulator takes denormals for 0 and infinities for 65536."""
    edit(emulator, "_compile_mfma", (
        "return exp.eq(_c(0)).where(_c(0), f32_bits)",
        "small = (mant.cast(dtypes.float32) * UOp.const(2.0 ** -24, dtypes.float32)).bitcast(dtypes.uint32) | (sign << _c(31))\n"
        "    large = (sign << _c(31)) | _c(0x7F800000) | (mant << _c(13))\n"
        "    return exp.eq(_c(0)).where(small, exp.eq(_c(31)).where(large, f32_bits))"))


@help
def int8_operands_of_mfma(emulator):
    """V_MFMA_I32_16X16X32_I8. What the emulator makes of it, its C compiler refuses: signed numbers, stored as unsigned ones."""
    edit(emulator, "_compile_mfma", (
        "return (byte.cast(dtypes.int32) ^ UOp.const(0x80, dtypes.int32)) - UOp.const(0x80, dtypes.int32)",
        "return (byte ^ UOp.const(0x80, dtypes.uint32)) - UOp.const(0x80, dtypes.uint32)"))


@help
def fp8_of_gfx942(emulator):
    """CDNA3 has FP8 and BF8 of the kind `fnuz`: exponents have a larger bias by 1, the code of -0 is NaN and there is no
    infinity (CDNA3 ISA, formats of FP8 and BF8). The emulator has one CDNA, with the OCP kinds of CDNA4."""
    if emulator.target != "gfx942":
        return
    def decode(mantissa):
        def value(code):
            code = code.cast(emulator.dtypes.uint32) & emulator._c(0xFF)
            shift = emulator._c(mantissa)
            exponent, part = (code >> shift) & emulator._c((1 << 7 - mantissa) - 1), code & emulator._c((1 << mantissa) - 1)
            bias = 1 << 6 - mantissa
            float32 = emulator.dtypes.float32
            small = (part.cast(float32) * emulator.UOp.const(2.0 ** (1 - bias - mantissa), float32)).bitcast(emulator.dtypes.uint32)
            bits = exponent.eq(emulator._c(0)).where(small, ((exponent + emulator._c(127 - bias)) << emulator._c(23)) | (part << emulator._c(23 - mantissa)))
            bits = bits | ((code >> emulator._c(7)) << emulator._c(31))
            return code.eq(emulator._c(0x80)).where(emulator._c(0x7FC00000), bits).bitcast(float32)
        return value
    emulator._FUNCS.update(fp8_to_f32=decode(3), bf8_to_f32=decode(2))


@help
def constant_sums_of_wmma(emulator):
    """C of WMMA may be an inline constant (RDNA3 ISA, "Wave Matrix Multiply Accumulate": SRC2). The emulator takes the number
    of the constant for that of a register."""
    plain = emulator._compile_wmma
    def compile(instruction, ctx):
        read = emulator._Ctx.rvgpr_dyn
        source = ctx.inst_field(type(instruction).src2)
        in_register = source >= emulator._c(256)
        def either(self, register, lane, valid=None):
            if source not in register.toposort():
                return read(self, register, lane, valid)
            return in_register.where(read(self, register, lane, in_register), self.rsgpr_dyn(source, in_register.ne(True)))
        emulator._Ctx.rvgpr_dyn = either
        try:
            return plain(instruction, ctx)
        finally:
            emulator._Ctx.rvgpr_dyn = read
    emulator._compile_wmma = compile


def small_float(exponent_bits, mantissa_bits):
    """The values of all codes of a small float; infinities and NaN are left out, but for FP8's and BF8's."""
    bias, values = (1 << exponent_bits - 1) - 1, []
    for code in range(1 << 1 + exponent_bits + mantissa_bits):
        exponent, part = code >> mantissa_bits & (1 << exponent_bits) - 1, code & (1 << mantissa_bits) - 1
        value = math.ldexp(part + (1 << mantissa_bits if exponent else 0), max(exponent, 1) - bias - mantissa_bits)
        if (exponent_bits, mantissa_bits) == (4, 3) and (exponent, part) == (15, 7): value = math.nan
        if (exponent_bits, mantissa_bits) == (5, 2) and exponent == 31: value = math.nan if part else math.inf
        values.append(-value if code >> exponent_bits + mantissa_bits else value)
    return values


def float_of(word):
    return struct.unpack("<f", struct.pack("<I", word))[0]


@decoder
def scaled_mfma(emulator, pc, arch, otherwise):
    """V_MFMA_SCALE_F32_16X16X128_F8F6F4 (CDNA4 ISA, "Matrix Arithmetic Instructions"): CBSZ and BLGP say what A and B
    are, FP6 and FP4 too; a lane gives scales of its own row of A and column of B, for 32 of k; bit 0 and 1 of the number of
    their byte are OP_SEL and OP_SEL_HI. The emulator has no FP6 and FP4, takes the scales of the lane that holds the sum, and
    both bits of A from OP_SEL."""
    instruction = instruction_at(emulator, pc, arch)
    if emulator._op_name(instruction) != "V_MFMA_SCALE_F32_16X16X128_F8F6F4":
        return otherwise(pc, arch)
    kinds = [(4, 3), (5, 2), (2, 3), (3, 2), (2, 1)]
    bytes_of = [(int(instruction.opsel) >> i & 1) | (int(instruction.opsel_hi) >> i & 1) << 1 for i in (0, 1)]
    raw = int.from_bytes(instruction.to_bytes(), "little")
    def number(name):
        field = getattr(type(instruction), name)
        return raw >> field.lo & (1 << field.hi - field.lo + 1) - 1
    def body(sgpr, vgpr, accvgpr):
        def read(operand, lane, at=0):
            place = number(operand)
            return vgpr[(place - 256 + at) * 64 + lane] if place >= 256 else sgpr[place]
        sides = []
        for operand, scale, byte, kind in (("src0", "scale_src0", bytes_of[0], int(instruction.cbsz)),
                                           ("src1", "scale_src1", bytes_of[1], int(instruction.blgp))):
            values, bits = small_float(*kinds[kind]), 1 + sum(kinds[kind])
            rows = []
            for row in range(16):
                parts = []
                for quarter in range(4):
                    lane = 16 * quarter + row
                    word = sum(read(operand, lane, at) << 32 * at for at in range(bits))
                    parts.append([values[word >> bits * k & (1 << bits) - 1] for k in range(32)])
                if bits == 8:       # a lane has 16 bytes from 16 x its quarter on, and 16 from 64 on further
                    parts = [parts[2 * q % 4][16 * (q // 2):16 * (q // 2) + 16] + parts[2 * q % 4 + 1][16 * (q // 2):16 * (q // 2) + 16] for q in range(4)]
                powers = [(read(scale, 16 * quarter + row) >> 8 * byte & 255) for quarter in range(4)]
                rows.append([(part, math.nan if power == 255 else math.ldexp(1.0, power - 127)) for part, power in zip(parts, powers)])
            sides.append(rows)
        result = accvgpr if int(instruction.acc_cd) else vgpr
        at, sums = emulator.EXEC_LO.offset, {}
        for lane in range(64):
            for register in range(4):
                c = number("src2")
                total = float_of(result[(c - 256 + register) * 64 + lane] if c >= 256 else sgpr[c])
                for (a, a_scale), (b, b_scale) in zip(sides[0][4 * (lane // 16) + register], sides[1][lane % 16]):
                    total += sum(map(float.__mul__, a, b)) * a_scale * b_scale
                sums[register, lane] = ctypes.c_uint32.from_buffer_copy(ctypes.c_float(total)).value
        for (register, lane), word in sums.items():
            result[(number("vdst") + register) * 64 + lane] = word
    return step(emulator, instruction.size(), body), instruction


@decoder
def swizzles(emulator, pc, arch, otherwise):
    """DS_SWIZZLE_B32 in its mode of bit masks (all guides; LLVM's BITMASK_PERM): a lane reads lane ((its number AND a) OR b) XOR c of
    its 32. The emulator cannot read the formula of this instruction."""
    instruction = instruction_at(emulator, pc, arch)
    if not emulator._op_name(instruction).startswith("DS_SWIZZLE"):
        return otherwise(pc, arch)
    offset = int(instruction.offset1) << 8 | int(instruction.offset0)
    if offset >> 15:
        raise NotImplementedError(f"DS_SWIZZLE_B32 of offset {offset:#x}")
    source, result, lanes = instruction.addr.offset - 256, instruction.vdst.offset - 256, emulator._wave_size(arch)
    def body(sgpr, vgpr, accvgpr):
        at = emulator.EXEC_LO.offset
        active = sgpr[at] | sgpr[at + 1] << 32
        values = vgpr[source * lanes:source * lanes + lanes]
        for lane in range(lanes):
            if active >> lane & 1:
                read = lane & 32 | (lane & offset & 31 | offset >> 5 & 31) ^ offset >> 10 & 31
                vgpr[result * lanes + lane] = values[read] if active >> read & 1 else 0
    return step(emulator, instruction.size(), body), instruction


@decoder
def caches(emulator, pc, arch, otherwise):
    """Instructions that write back or invalidate caches do nothing where there are none. The emulator has no
    GLOBAL_INV, GLOBAL_WB, GLOBAL_WBINV (RDNA4), no BUFFER_GL0_INV, BUFFER_GL1_INV (RDNA3), no BUFFER_WBL2, BUFFER_INV (CDNA3)."""
    first, second = (int.from_bytes(ctypes.string_at(pc + at, 4), "little") for at in (0, 4))
    size = {"rdna3": 8 if first >> 26 == 0b111000 and first >> 18 & 0xFF in (43, 44) else 0,
            "rdna4": 12 if first >> 24 == 0b11101110 and first >> 14 & 0xFF in (43, 44, 79) else 0,
            "cdna": 8 if first >> 26 == 0b111000 and first >> 18 & 0x7F in (40, 41) else 0}[arch]
    if not size:
        return otherwise(pc, arch)
    nothing = SimpleNamespace(op=SimpleNamespace(name="CACHE", value=-1), size=lambda: size)
    return step(emulator, size, lambda *registers: None), nothing
