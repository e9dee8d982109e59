#!/usr/bin/env python3
"""Writes the golden files `gguf_*.gguf`: blocks of random bits, decoded by the PyPI package `gguf` 0.19.0,
which is llama.cpp's own, and numpy. Run again, it makes the same bytes.

    pip install gguf==0.19.0 numpy
    python3 tests/golden/make_gguf.py [FOLDER]      (default: this folder)

Each file has `layer.weight` [N, K] of one type, `ref.weight` as the package decodes it (f32, each
operation rounded), `ref.x` [3, K] and `ref.y` = x w^T, summed in f64 and rounded to f32. Scales in f16 are
finite and of ordinary size; all other bits are random, TQ2_0's code 3 too. Not drawn: the exponent 255 of MXFP4 (2^127 in
ggml, NaN in OCP's format) and NVFP4's scales 0x7f (0 in ggml, NaN in e4m3) and those with a sign, which
ggml ignores; no software writes any of them. The package has no decoder of Q1_0: `ref.weight` of that
file is of this program alone: no decoder of other software has made it.

`gguf_nvfp4_scaled` has a scale of the whole tensor besides, `layer.scale`, by which llama.cpp multiplies
the product; `gguf_q4_0_bias` a bias; `gguf_experts` two experts of three rows, in Q8_0, with a scale and a
bias for each, and `ref.weight` without the bias.
"""

import pathlib
import sys

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as Type, GGUFWriter
from gguf.quants import dequantize

N, K = 5, 512
# Where the f16 numbers of a block are.
F16 = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q6_K": [208], "IQ4_NL": [0],
    "TQ2_0": [64], "MXFP4": [], "NVFP4": [], "Q1_0": [0], "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2],
    "Q5_K": [0, 2], "IQ4_XS": [0],
}


def blocks(name, rows, random):
    """Random blocks [rows, bytes of a row]."""
    block, size = GGML_QUANT_SIZES[Type[name]]
    data = random.integers(0, 256, (rows * K // block, size), dtype=np.uint8)
    for at in F16[name]:
        scales = random.uniform(0.001, 0.1, len(data)) * random.choice([-1, 1], len(data))
        data[:, at:at + 2] = scales.astype("<f2").view(np.uint8).reshape(-1, 2)
    if name == "MXFP4":
        # The smallest exponents make numbers of f32 that are not normal.
        data[:, 0] = random.integers(110, 140, len(data))
        data[:4, 0] = [0, 1, 2, 200]
    if name == "NVFP4":
        data[:, :4] = random.integers(0, 0x7F, (len(data), 4))
    return data.reshape(rows, -1)


def decoded(name, data):
    if name != "Q1_0":
        return dequantize(data, Type[name])
    data = data.reshape(-1, 18)
    scales = data[:, :2].copy().view("<f2").astype(np.float32)
    bits = np.unpackbits(data[:, 2:], axis=1, bitorder="little")
    return np.where(bits == 1, scales, -scales).reshape(len(data) * 128 // K, K).astype(np.float32)


def product(x, weight):
    return (x.astype(np.float64) @ weight.astype(np.float64).T).astype(np.float32)


def write(path, tensors):
    """Tensors by name: floats, or (name of a type, bytes)."""
    writer = GGUFWriter(path, "llama")
    writer.add_quantization_version(2)
    writer.add_array("general.tags", ["golden", "a text that is not ASCII: \N{GREEK SMALL LETTER ALPHA}"])
    for name, tensor in tensors.items():
        if isinstance(tensor, tuple):
            writer.add_tensor(name, tensor[1], raw_dtype=Type[tensor[0]])
        else:
            writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent)
    for seed, name in enumerate(F16):
        random = np.random.default_rng(seed)
        data = blocks(name, N, random)
        weight = decoded(name, data)
        x = random.standard_normal((3, K)).astype(np.float32)
        tensors = {"layer.weight": (name, data), "ref.weight": weight, "ref.x": x, "ref.y": product(x, weight)}
        write(folder / f"gguf_{name.lower()}.gguf", tensors)
        if name == "NVFP4":
            scale = np.array([0.0123], dtype=np.float32)
            weight = weight * scale
            tensors |= {"layer.scale": scale, "ref.weight": weight, "ref.y": product(x, weight)}
            write(folder / "gguf_nvfp4_scaled.gguf", tensors)
        if name == "Q4_0":
            bias = random.standard_normal(N).astype(np.float32)
            tensors |= {"layer.bias": bias, "ref.y": product(x, weight) + bias}
            write(folder / "gguf_q4_0_bias.gguf", tensors)
    random = np.random.default_rng(100)
    data = blocks("Q8_0", 6, random)
    scale = np.array([0.5, 0.37], dtype=np.float32)
    weight = decoded("Q8_0", data).reshape(2, 3, K) * scale[:, None, None]
    write(folder / "gguf_experts.gguf", {
        "blk.0.ffn_down_exps.weight": ("Q8_0", data.reshape(2, 3, -1)),
        "blk.0.ffn_down_exps.scale": scale,
        "blk.0.ffn_down_exps.bias": random.standard_normal((2, 3)).astype(np.float32),
        "ref.weight": weight,
    })


if __name__ == "__main__":
    main()
