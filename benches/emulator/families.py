#!/usr/bin/env python3
"""Every family of kernels once on tinygrad's emulator, as a table of products that were right.

    python3 benches/emulator/families.py TINYGRAD QUANTLOOM [TARGET...]

Needs what emulate.py needs, and Quantloom's program. Takes about five minutes a target.
"""
import os, re, subprocess, sys, tempfile, time

TARGETS = ["gfx942", "gfx950", "gfx1100", "gfx1201"]
DENSE, EXPERTS = ["--shape", "48x384", "--m", "1,3,17,33"], ["--experts", "4x2", "--shape", "64x96", "--gate", "silu"]
FAMILIES = [
    ("x in 16 bits: decode, split K, tiles", ["ct_w4a16", "ct_w8a16", "ct_w4a16_bias"], DENSE),
    ("codes in bit planes", ["ct_w3a16", "ct_w5a16_aligned", "ct_w6a16", "ct_w7a16", "e3m4_g64"], DENSE),
    ("zero points", ["ct_w4a16_asym", "awq4", "gptq4_v1", "gptq8_v2"], DENSE),
    ("columns in act-order", ["gptq3_v1_actorder", "gptq4_v2_actorder"], DENSE),
    ("codes of FP4, FP6, FP8 beside x in 16 bits", ["ct_mxfp4a16", "ct_nvfp4a16", "ct_mxfp6a16", "ct_mxfp8a16"], DENSE),
    ("x in int8", ["ct_w8a8", "ct_w4a8", "ct_w3a8", "arm_w4a8_g32", "quark_w8a8_int8_tensor_static"], DENSE),
    ("x in int4", ["ct_w4a4", "ct_w2a4", "ct_w3a4"], DENSE),
    ("x in FP8: by token, by group, of one scale", ["ct_fp8_dynamic", "ct_fp8_block", "ct_fp8", "fp8_fnuz_block"], DENSE),
    ("x in MX formats and NVFP4", ["ct_mxfp4", "ct_mxfp8", "ct_mxfp6a8", "ct_nvfp4", "quark_w_mxfp6_e2m3_a_mxfp4"], DENSE),
    ("expert layers", ["ct_w4a16", "ct_fp8_block", "ct_w8a8", "gpt_oss_mxfp4_gate_up"], EXPERTS),
    ("the whole catalogue", ["all"], DENSE),
]


def of_target(tinygrad, program, target):
    import emulate
    made = emulate.device(tinygrad, target)
    wrong = 0
    for family, schemes, arguments in FAMILIES:
        start = time.monotonic()
        with tempfile.TemporaryFile("w+") as out:
            ended = emulate.run(*made, [program, "verify", *schemes, *arguments, "--seed", "0", "--backend", "hip"], out)
            out.seek(0)
            text = out.read()
        products = sum(map(int, re.findall(r" (\d+) +\d+ +\S+ +ok$", text, re.M)))
        print(f"{target:8} | {family:43} | {products:5} products | {'right' if ended == 0 else 'WRONG'} | {time.monotonic() - start:4.0f} s", flush=True)
        wrong += ended != 0
        if ended:
            print(text, file=sys.stderr)
    sys.exit(wrong != 0)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    tinygrad, program, *targets = sys.argv[1:]
    if targets[:1] == ["--of"]:
        of_target(tinygrad, program, targets[1])
    # An emulator for each target: one that crashes takes its target's table with it.
    ends = [subprocess.run([sys.executable, __file__, tinygrad, program, "--of", target]).returncode for target in targets or TARGETS]
    sys.exit(any(ends))
