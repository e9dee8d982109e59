#!/usr/bin/env python3
"""Writes the seeds of the target `checkpoint`: one tiny file per family of formats.

    python3 fuzz/make_seeds.py [FOLDER]      (default: fuzz/corpus/checkpoint)

What lies beside them under names of 40 hexadecimal digits is what the fuzzer found. The seeds are
small so that a mutation hits something that matters: N = 4 to 32, K = 16 to 64. The references in
them are arbitrary: they open the way into `check`, they need not pass.
"""

import json
import pathlib
import struct
import sys

SIZES = {"F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "I64": 8, "I32": 4, "I8": 1, "U8": 1}
ONE = {"F32": b"\0\0\x80\x3f", "F16": b"\0\x3c", "BF16": b"\x80\x3f", "F8_E4M3": b"\x38", "U8": b"\x7f"}


def words(dtype, *shape):
    """Arbitrary bits."""
    count = SIZES[dtype]
    for size in shape:
        count *= size
    return dtype, list(shape), bytes(at * 73 + (at >> 3) & 0xFF for at in range(count))


def ones(dtype, *shape):
    """Scales of 1."""
    count = 1
    for size in shape:
        count *= size
    return dtype, list(shape), ONE[dtype] * count


def zeros(dtype, *shape):
    count = SIZES[dtype]
    for size in shape:
        count *= size
    return dtype, list(shape), bytes(count)


def integers(dtype, *values):
    letter = {"I64": "q", "I32": "i", "I8": "b"}[dtype]
    return dtype, [len(values)], struct.pack(f"<{len(values)}{letter}", *values)


def safetensors(config, tensors):
    header, offset = {}, 0
    if config is not None:
        header["__metadata__"] = {"quantization_config": json.dumps(config, separators=(",", ":"))}
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values())


def references(n, k):
    return {"ref.weight": zeros("F32", n, k), "ref.x": ones("BF16", 1, k), "ref.y": ones("BF16", 1, n)}


def compressed_tensors(weights, inputs, tensors, targets=("Linear",)):
    group = {"targets": list(targets), "weights": weights, "input_activations": inputs}
    config = {"quant_method": "compressed-tensors", "config_groups": {"g": group}, "ignore": ["re:.*head"]}
    return config, tensors


def integer(bits, **more):
    return {"num_bits": bits, "type": "int", "symmetric": True, **more}


def real(bits, **more):
    return {"num_bits": bits, "type": "float", "symmetric": True, **more}


def packed(words_a_row, bits, n, k, **more):
    tensors = {
        "l.weight_packed": words("I32", n, words_a_row),
        "l.weight_scale": ones("BF16", n, k // 32),
        "l.weight_shape": integers("I64", n, k),
    }
    tensors.update(more)
    return tensors


def quark(weight, inputs, tensors):
    config = {"weight": weight, "input_tensors": inputs}
    return {"quant_method": "quark", "global_quant_config": config, "exclude": ["*head*"]}, tensors


def gptq(bits, words_of_k, n, k, **more):
    config = {"quant_method": "gptq", "bits": bits, "group_size": 32, **more}
    tensors = {
        "l.qweight": words("I32", words_of_k, n),
        "l.qzeros": words("I32", k // 32, n * bits // 32),
        "l.scales": ones("F16", k // 32, n),
        "l.g_idx": integers("I32", *(k_at // 32 for k_at in range(k))),
    }
    return config, tensors


GROUP = {"strategy": "group", "group_size": 32}
MX = {**GROUP, "scale_dtype": "torch.uint8"}
TOKEN = {"strategy": "token", "dynamic": True}
NV = {"strategy": "tensor_group", "group_size": 16}
SCHEME = "S{weight:u4-8,scale:f16 per 1x32,pack:u32[k:8|k,n],activation:f16}"
BLOCK = {"weight": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32}}

SEEDS = {
    "ct_w4a16": compressed_tensors(integer(4, **GROUP), None, packed(8, 4, 4, 64) | references(4, 64)),
    "ct_w4a16_asym": compressed_tensors(
        {**integer(4, **GROUP), "symmetric": False},
        None,
        packed(4, 4, 8, 32, **{"l.weight_zero_point": words("I32", 1, 1), "l.bias": ones("BF16", 8)}),
        ["re:^l$"],
    ),
    "ct_w3_dense": compressed_tensors(integer(3, **GROUP), None, packed(6, 3, 4, 64), ["l"]),
    "ct_w3_aligned": compressed_tensors(integer(3, **GROUP), None, packed(7, 3, 4, 64)),
    "ct_act_order": compressed_tensors(
        integer(8, **GROUP), None, packed(16, 8, 4, 64, **{"l.weight_g_idx": integers("I32", *([0, 1] * 32))})
    ),
    "ct_w8a8": compressed_tensors(
        integer(8, strategy="channel"),
        integer(8, **TOKEN),
        {"l.weight": words("I8", 4, 32), "l.weight_scale": ones("BF16", 4, 1)} | references(4, 32),
    ),
    "ct_w4a8": compressed_tensors(
        integer(4, **GROUP),
        integer(8, **TOKEN),
        {"l.weight": ("I8", [4, 32], bytes(at % 16 - 8 & 0xFF for at in range(128))), "l.weight_scale": ones("BF16", 4, 1)}
        | references(4, 32),
    ),
    "ct_fp8": compressed_tensors(
        real(8, strategy="tensor"),
        real(8, strategy="tensor", dynamic=False),
        {"l.weight": zeros("F8_E4M3", 4, 32), "l.weight_scale": ones("BF16", 1), "l.input_scale": ones("BF16", 1)}
        | references(4, 32),
    ),
    "ct_fp8_block": compressed_tensors(
        real(8, strategy="block", block_structure=[4, 16]),
        real(8, strategy="group", group_size=16, dynamic=True),
        {"l.weight": zeros("F8_E4M3", 6, 32), "l.weight_scale": ones("BF16", 2, 2)} | references(6, 32),
    ),
    "ct_nvfp4": compressed_tensors(
        real(4, **NV),
        {**real(4, **NV), "dynamic": "local"},
        {
            "l.weight_packed": words("U8", 4, 16),
            "l.weight_scale": ones("F8_E4M3", 4, 2),
            "l.weight_global_scale": ones("F32", 1),
            "l.input_global_scale": ones("F32", 1),
        }
        | references(4, 32),
    ),
    "ct_mxfp4": compressed_tensors(
        real(4, **MX),
        {**real(4, **MX), "dynamic": True},
        {"l.weight_packed": words("U8", 4, 16), "l.weight_scale": ones("U8", 4, 1)} | references(4, 32),
    ),
    "ct_mxfp6": compressed_tensors(
        real(6, **MX), None, {"l.weight_packed": words("U8", 4, 24), "l.weight_scale": ones("U8", 4, 1)}
    ),
    "ct_preset": (
        {"config_groups": {"MXFP8": ["Linear"]}},
        {"l.weight": zeros("F8_E4M3", 4, 32), "l.weight_scale": ones("U8", 4, 1)},
    ),
    "gptq4": gptq(4, 4, 8, 32),
    "gptq4_v2": gptq(4, 8, 8, 64, checkpoint_format="gptq_v2", dynamic={"-:.*head": {}, "l": {"bits": 4}}),
    "gptq4_actorder": gptq(4, 8, 8, 64, desc_act=True),
    "gptq3": gptq(3, 3, 32, 32),
    "gptq8": gptq(8, 8, 4, 32),
    "awq4": (
        {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"},
        {"l.qweight": words("I32", 32, 1), "l.qzeros": words("I32", 1, 1), "l.scales": ones("F16", 1, 8)},
    ),
    "gpt_oss": (
        None,
        {
            "x.gate_up_proj_blocks": words("U8", 2, 4, 1, 16),
            "x.gate_up_proj_scales": ones("U8", 2, 4, 1),
            "x.gate_up_proj_bias": ones("BF16", 2, 4),
            "ref.gate_up_proj": zeros("F32", 2, 32, 4),
        },
    ),
    "modelopt_nvfp4": (
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["*head"]},
        {
            "l.weight": words("U8", 4, 16),
            "l.weight_scale": ones("F8_E4M3", 4, 2),
            "l.weight_scale_2": ones("F32", 1),
            "l.input_scale": ones("F32", 1),
        },
    ),
    "modelopt_fp8": (
        {"quant_method": "modelopt", "quant_algo": "FP8"},
        {"l.weight": zeros("F8_E4M3", 4, 32), "l.weight_scale": ones("F32", 1), "l.input_scale": ones("F32", 1)},
    ),
    "quark_mxfp4": quark(
        BLOCK["weight"],
        {**BLOCK["weight"], "is_dynamic": True},
        {"l.weight": words("U8", 4, 16), "l.weight_scale": ones("U8", 4, 1)} | references(4, 32),
    ),
    "quark_mxfp6": quark(
        {**BLOCK["weight"], "dtype": "fp6_e3m2"},
        None,
        {"l.weight": words("U8", 4, 24), "l.weight_scale": ones("U8", 4, 1)},
    ),
    "quark_int8": quark(
        {"dtype": "int8", "qscheme": "per_channel", "symmetric": True},
        {"dtype": "int8", "qscheme": "per_tensor", "is_dynamic": False},
        {
            "l.weight": words("I8", 4, 16),
            "l.weight_scale": ones("F32", 4),
            "l.weight_zero_point": zeros("I8", 4),
            "l.input_scale": ones("F32", 1),
        },
    ),
    "fp8_block": (
        {"quant_method": "fp8", "weight_block_size": [4, 16], "activation_scheme": "dynamic"},
        {"l.weight": zeros("F8_E4M3", 6, 40), "l.weight_scale_inv": ones("F32", 2, 3)},
    ),
    "own": (
        {"quant_method": "quantloom", "scheme": SCHEME, "layers": {"l": [1, 4, 64]}},
        {"l.weight": words("I32", 4, 8), "l.weight_scale": ones("F16", 4, 2)},
    ),
}


def main():
    here = pathlib.Path(__file__).resolve().parent
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here / "corpus" / "checkpoint"
    folder.mkdir(parents=True, exist_ok=True)
    for name, (config, tensors) in SEEDS.items():
        (folder / f"{name}.safetensors").write_bytes(safetensors(config, tensors))


if __name__ == "__main__":
    main()
