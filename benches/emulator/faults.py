#!/usr/bin/env python3
"""Kernels of ten lines that tinygrad's emulator gets wrong, each with and without the help of its name.

    python3 benches/emulator/faults.py TINYGRAD [NAME...]
"""
import ctypes, subprocess, sys

HEAD = """typedef unsigned u; typedef u u2 __attribute__((ext_vector_type(2))); typedef u u4 __attribute__((ext_vector_type(4)));
typedef int i4 __attribute__((ext_vector_type(4))); typedef int i8 __attribute__((ext_vector_type(8)));
typedef float f4 __attribute__((ext_vector_type(4))); typedef float f8 __attribute__((ext_vector_type(8)));
typedef short s16 __attribute__((ext_vector_type(16))); typedef short s8 __attribute__((ext_vector_type(8)));
"""
KERNEL = """extern "C" __attribute__((global, amdgpu_flat_work_group_size(1, 64))) void k(u *out)
{
    u lane = __builtin_amdgcn_workitem_id_x();%s
}
"""
FAULTS = []


def fault(help, target, expected, body):
    """What the word of each of 64 lanes is to be: one wave of CDNA, two of RDNA. `out` holds 7, 8, 9 and so on."""
    FAULTS.append((help, target, body, expected))


fault("caches", "gfx1201", lambda lane: 3, r"""
    asm volatile("global_inv scope:SCOPE_DEV");
    out[lane] = 3;""")
fault("caches", "gfx1100", lambda lane: 3, r"""
    asm volatile("buffer_gl0_inv");
    out[lane] = 3;""")
fault("caches", "gfx942", lambda lane: 3, r"""
    asm volatile("buffer_inv sc1");
    out[lane] = 3;""")
fault("returned_atomics", "gfx1201", lambda lane: 7, r"""
    u old = 7;
    if (lane == 0) old = __hip_atomic_fetch_add(out, 1u, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
    out[lane] = old;""")
fault("returned_atomics", "gfx942", lambda lane: 7, r"""
    u old = 7;
    if (lane == 0) old = __hip_atomic_fetch_add(out, 1u, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
    out[lane] = old;""")
fault("inactive_lanes_of_lds", "gfx1100", lambda lane: 0x40000000 if lane else 1, r"""
    __attribute__((shared)) static u s[64];
    s[lane] = lane;
    u r = lane ? 0x40000000 : 4;
    if (lane == 0) asm volatile("ds_load_b32 %0, %0\n"
        "s_waitcnt lgkmcnt(0)" : "+v"(r) : "s"(s) : "memory");
    out[lane] = r;""")
fault("denormals", "gfx1100", lambda lane: 128 + 2 * lane, r"""
    float x = __builtin_bit_cast(float, 64u + lane);
    asm volatile("v_mul_f32 %0, 2.0, %0" : "+v"(x));
    out[lane] = __builtin_bit_cast(u, x);""")
fault("private_memory", "gfx1100", lambda lane: lane, r"""
    u memory;
    volatile __attribute__((address_space(5))) u *kept = (__attribute__((address_space(5))) u *)&memory;
    *kept = lane;
    __builtin_amdgcn_s_barrier();
    out[lane] = *kept;""")
fault("nearest_even", "gfx1100", lambda lane: (1 << 23) + lane, r"""
    float x = lane + 0x1p23f, y;
    asm volatile("v_rndne_f32 %0, %1" : "=v"(y) : "v"(x));
    out[lane] = (u)y;""")
fault("nearest_even", "gfx950", lambda lane: 0 if lane == 0 else 0xC000 if lane == 1 else 0x8000, r"""
    _Float16 x = lane == 0 ? 0x1.ffcp-2f16 : lane == 1 ? -1.5f16 : -0.3f16, y;
    asm volatile("v_rndne_f16 %0, %1" : "=v"(y) : "v"(x));
    out[lane] = __builtin_bit_cast(unsigned short, y);""")
fault("constant_sums_of_wmma", "gfx1100", lambda lane: 5, r"""
    f8 c = {};
    s16 a = {};
    asm volatile("v_wmma_f32_16x16x16_bf16 %0, %1, %1, 1.0" : "=&v"(c) : "v"(a));
    out[lane] = (u)(c[0] * 5);""")
fault("constant_sums_of_wmma", "gfx1201", lambda lane: 5, r"""
    f8 c = {};
    s8 a = {};
    asm volatile("v_wmma_f32_16x16x16_bf16 %0, %1, %1, 1.0" : "=&v"(c) : "v"(a));
    out[lane] = (u)(c[0] * 5);""")
fault("small_operands_of_wmma", "gfx1100", lambda lane: -(32 + (2 + lane % 32 // 16) % 5), r"""
    i8 c = {}, d;
    u2 a = {0x22222222 + lane % 16 % 5, 0x22222222}, b = {0xFFFFFFFF, 0xFFFFFFFF};
    d = __builtin_amdgcn_wmma_i32_16x16x16_iu4_w32(true, a, true, b, c, false);
    out[lane] = d[1];""")
fault("small_operands_of_wmma", "gfx1201", lambda lane: -64, r"""
    i8 c = {}, d;
    u2 a = {0x22222222, 0x22222222}, b = {0xFFFFFFFF, 0xFFFFFFFF};
    d = __builtin_amdgcn_wmma_i32_16x16x32_iu4_w32_gfx12(true, a, true, b, c, false);
    out[lane] = d[1];""")
fault("small_operands_of_wmma", "gfx1201", lambda lane: 32, r"""
    f8 c = {}, d;
    u2 a = {0x38383838, 0x38383838}, b = {0x40404040, 0x40404040};  // 1 in e4m3, 2 in e5m2
    d = __builtin_amdgcn_wmma_f32_16x16x16_fp8_bf8_w32_gfx12(a, b, c);
    out[lane] = (u)d[0];""")
fault("f16_operands_of_mfma", "gfx942", lambda lane: 1, r"""
    typedef _Float16 h4 __attribute__((ext_vector_type(4)));
    f4 c = {};
    h4 a = {0x1p-24, 0, 0, 0}, b = {0x1p15, 0, 0, 0};
    c = __builtin_amdgcn_mfma_f32_16x16x16f16(a, b, c, 0, 0, 0);
    out[lane] = (u)(c[0] * 128);""")
fault("int8_operands_of_mfma", "gfx942", lambda lane: -32, r"""
    i4 c = {};
    long a = 0x0101010101010101, b = -1;
    c = __builtin_amdgcn_mfma_i32_16x16x32_i8(a, b, c, 0, 0, 0);
    out[lane] = c[0];""")
fault("fp8_of_gfx942", "gfx942", lambda lane: 32, r"""
    f4 c = {};
    long a = 0x4040404040404040;  // 1 in e4m3fnuz, 2 in e4m3
    c = __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(a, a, c, 0, 0, 0);
    out[lane] = (u)c[0];""")
fault("swizzles", "gfx1100", lambda lane: lane ^ 5, r"""
    out[lane] = __builtin_amdgcn_ds_swizzle(lane, 0x1F | 5 << 10);""")
fault("swizzles", "gfx942", lambda lane: lane ^ 5, r"""
    out[lane] = __builtin_amdgcn_ds_swizzle(lane, 0x1F | 5 << 10);""")
fault("scaled_mfma", "gfx950", lambda lane: 128, r"""
    f4 c = {};
    i8 one = {0x22222222, 0x22222222, 0x22222222, 0x22222222, 0, 0, 0, 0};  // 1 in e2m1
    c = __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(one, one, c, 4, 4, 0, 0x7F7F7F7F, 0, 0x7F7F7F7F);
    out[lane] = (u)c[0];""")
fault("scaled_mfma", "gfx950", lambda lane: 160, r"""
    f4 c = {};
    i8 one = {0x38383838, 0x38383838, 0x38383838, 0x38383838, 0x38383838, 0x38383838, 0x38383838, 0x38383838};
    int of_a = lane < 16 ? 0x80 : 0x7F, of_b = 0x7F00 + 0x80;  // 1 in e4m3; scales 2 and 1, the second byte of B
    c = __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(one, one, c, 0, 0, 0, of_a, 1, of_b);
    out[lane] = (u)c[0];""")


def one(tinygrad, number, helped):
    import emulate
    name, target, body, expected = FAULTS[number]
    emulator = emulate.load_emulator(tinygrad, target, () if helped else None)
    from code_object import CodeObject
    code = CodeObject(emulate.compile_text((HEAD + KERNEL % body).encode(), target, emulate.FOLDER.name + "/kernel"))
    lanes = 64
    out = (ctypes.c_uint32 * 1024)(*range(7, 1031))
    code.launch(emulator, target, "k", (1, 1, 1), (lanes, 1, 1), 0, ctypes.addressof(out).to_bytes(8, "little"))
    wrong = [lane for lane in range(lanes) if out[lane] != expected(lane) & 0xFFFFFFFF]
    if wrong:
        print(f"lane {wrong[0]}: {out[wrong[0]]:#x} instead of {expected(wrong[0]) & 0xFFFFFFFF:#x}, {len(wrong)} lanes")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    tinygrad, *names = sys.argv[1:]
    if names[:1] == ["--one"]:
        one(tinygrad, int(names[1]), names[2] == "helped")
    failed = 0
    for number, (name, target, *_) in enumerate(FAULTS):
        if names and name not in names:
            continue
        said = []
        for helped in ("alone", "helped"):
            done = subprocess.run([sys.executable, __file__, tinygrad, "--one", str(number), helped], capture_output=True, text=True)
            words = (done.stdout.strip() or done.stderr.strip() or "crash").splitlines()[-1] if done.returncode else "right"
            said.append(words)
        failed += said[1] != "right" or said[0] == "right"
        print(f"{name:18} {target:8} alone: {said[0][:110]} | with help: {said[1][:110]}", flush=True)
    sys.exit(failed != 0)
