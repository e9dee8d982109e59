"""What tinygrad's emulator has wrong or has not, put right without changing its files.

A help is a function of this file that `apply` calls with the emulator's module; its comment says what AMD's documents say
("RDNA3", "RDNA4" and "CDNA3 ISA": the instruction set architecture reference guides). faults.py has a kernel a help, which
the emulator alone gets wrong.
"""
import contextlib, ctypes
from types import SimpleNamespace

HELPS = {}


def help(function):
    HELPS[function.__name__] = function
    return function


def apply(emulator, without=()):
    for name, function in HELPS.items():
        if name not in without:
            function(emulator)


def family(emulator, instruction):
    """The emulator's tables of an instruction: ir3, ir4 or irc."""
    return next(t for t in (emulator.ir3, emulator.ir4, emulator.irc) if type(instruction).__module__ == t.__name__)


def decoder(function):
    """Makes `function(emulator, pc, arch, otherwise)` what decodes the instruction at an address."""
    def install(emulator):
        otherwise = emulator._decode_at
        emulator._decode_at = lambda pc, arch: function(emulator, pc, arch, otherwise)
    install.__name__, install.__doc__ = function.__name__, function.__doc__
    return help(install)


def step(emulator, size, body, first=None):
    """An instruction in Python: `body(sgpr, vgpr, accvgpr)`, arrays of words; a register of a wave has a word a lane.
    With `first`, that instruction of the emulator runs between the two halves of `body`, a generator, and moves on."""
    (program, runtime) = first or (SimpleNamespace(arg=SimpleNamespace(globals=[])), None)
    def run(sgpr, vgpr, vmem, lds, scratch, accvgpr):
        buffers = [sgpr, vgpr, vmem, lds, scratch, accvgpr]
        word = ctypes.POINTER(ctypes.c_uint32)
        arrays = [ctypes.cast(b.value, word) for b in (sgpr, vgpr, accvgpr)]
        if first:
            halves = body(*arrays)
            next(halves)
            runtime.fxn(*[buffers[g] for g in program.arg.globals])
            next(halves, None)
        else:
            body(*arrays)
            low = emulator.PC_LO_IDX
            pc = (arrays[0][low] | arrays[0][low + 1] << 32) + size
            arrays[0][low], arrays[0][low + 1] = pc & 0xFFFFFFFF, pc >> 32
    return SimpleNamespace(arg=SimpleNamespace(globals=[0, 1, 2, 3, 4, 5])), SimpleNamespace(fxn=run)


def instruction_at(emulator, pc, arch):
    return emulator.decode_inst(ctypes.string_at(pc, 16), arch)


@help
def returned_atomics(emulator):
    """An atomic returns what was there if GLC says so on RDNA3 alone. CDNA3 ISA, "Memory scopes and temporal hints":
    SC0 = 1, "return pre-op value"; RDNA4 ISA, "Temporal hints": bit 0 of TH of an atomic. The emulator reads GLC."""
    plain = emulator._iattr
    def field(instruction, name, default=0):
        if name == "glc" and hasattr(instruction, "sc0"): return plain(instruction, "sc0")
        if name == "glc" and hasattr(instruction, "th"): return plain(instruction, "th") & 1
        return plain(instruction, name, default)
    emulator._iattr = field


@help
def inactive_lanes_of_lds(emulator):
    """A lane whose bit of EXEC is 0 accesses no memory ("Exec mask" in all three guides). The emulator reads LDS for such
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
    """The emulator flushes denormal f32 always. Kernel descriptor, FLOAT_DENORM_MODE_32: 3 flushes none, and it is what
    clang sets. `denormals` holds the descriptor's two modes."""
    flush = emulator._MXCSRContext
    emulator._MXCSRContext = lambda: contextlib.nullcontext() if emulator.denormals & 3 == 3 else flush()


@help
def constant_sums_of_wmma(emulator):
    """C of a matrix instruction may be an inline constant ("Wave matrix multiply accumulate", SRC2). The emulator takes the
    number of the constant for that of a register."""
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
