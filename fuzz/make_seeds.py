#!/usr/bin/env python3
"""Writes the seeds of the targets `checkpoint`, one tiny file per family of formats, `gguf`, one per type
of blocks, and `expert_layer`.

    python3 fuzz/make_seeds.py [FOLDER]      (default: fuzz/corpus, with a folder for each target)

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


def safetensors(config, tensors, model=None):
    header, offset = {}, 0
    metadata = {"quantization_config": config, "config": model}
    metadata = {key: json.dumps(value, separators=(",", ":")) for key, value in metadata.items() if value}
    if metadata:
        header["__metadata__"] = metadata
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


# Expert layers: E = 2, k = 1, H = 32, I = 32; a model's keys, and what its routing adds to them.
SIZES_OF_MODEL = {"hidden_act": "silu", "hidden_size": 32, "intermediate_size": 32, "num_experts_per_tok": 1}
EXPERT_REFERENCES = {"ref.x": ones("F32", 2, 32), "ref.y": ones("F32", 2, 32)}


def experts(names, make, prefix="m.experts"):
    return {
        f"{prefix}.{expert}.{name}.{part}": tensor
        for expert in range(2)
        for name in names
        for part, tensor in make().items()
    }


def w4a16():
    return {
        "weight_packed": words("I32", 32, 4),
        "weight_scale": ones("BF16", 32, 1),
        "weight_shape": integers("I64", 32, 32),
    }


def float_expert(*names):
    return {f"{name}.weight": words("BF16", 32, 32) for name in names}


CT_W4A16, _ = compressed_tensors(integer(4, **GROUP), None, {})
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
EXPERT_SEEDS = {
    "qwen3": (
        CT_W4A16,
        experts(PROJECTIONS, w4a16) | {"m.gate.weight": ones("F32", 2, 32)} | EXPERT_REFERENCES,
        {"model_type": "qwen3_moe", "num_experts": 2, "norm_topk_prob": True, **SIZES_OF_MODEL},
    ),
    "qwen2_shared": (
        CT_W4A16,
        experts(PROJECTIONS, w4a16)
        | {f"m.shared_expert.{name}.{part}": of for name in PROJECTIONS for part, of in w4a16().items()}
        | {"m.gate.weight": ones("F32", 2, 32), "m.shared_expert_gate.weight": ones("BF16", 1, 32)}
        | EXPERT_REFERENCES,
        {"model_type": "qwen2_moe", "num_experts": 2, **SIZES_OF_MODEL},
    ),
    "mixtral_gptq": (
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True},
        experts(("w1", "w2", "w3"), lambda: {
            "qweight": words("I32", 4, 32), "qzeros": words("I32", 1, 4), "scales": ones("F16", 1, 32),
            "g_idx": zeros("I32", 32),
        }) | {"m.gate.weight": ones("F32", 2, 32)},
        {"model_type": "mixtral", "num_local_experts": 2, **SIZES_OF_MODEL},
    ),
    "deepseek_v3": (
        {"quant_method": "fp8", "weight_block_size": [16, 16], "activation_scheme": "dynamic"},
        experts(PROJECTIONS, lambda: {
            "weight": zeros("F8_E4M3", 32, 32), "weight_scale_inv": ones("F32", 2, 2),
        })
        | {"m.gate.weight": ones("BF16", 2, 32), "m.gate.e_score_correction_bias": ones("F32", 2)}
        | EXPERT_REFERENCES,
        {"model_type": "deepseek_v3", "n_routed_experts": 2, "n_group": 2, "topk_group": 1,
         "routed_scaling_factor": 2.5, **SIZES_OF_MODEL},
    ),
    "nemotron": (
        CT_W4A16,
        experts(("up_proj", "down_proj"), w4a16) | {"m.gate.weight": ones("F32", 2, 32)},
        {"model_type": "nemotron_h", "mlp_hidden_act": "relu2", "moe_intermediate_size": 32,
         "n_routed_experts": 2, **SIZES_OF_MODEL},
    ),
    "gpt_oss": (
        None,
        {
            "m.experts.gate_up_proj_blocks": words("U8", 2, 64, 1, 16),
            "m.experts.gate_up_proj_scales": ones("U8", 2, 64, 1),
            "m.experts.gate_up_proj_bias": ones("BF16", 2, 64),
            "m.experts.down_proj_blocks": words("U8", 2, 32, 1, 16),
            "m.experts.down_proj_scales": ones("U8", 2, 32, 1),
            "m.router.weight": ones("F32", 2, 32), "m.router.bias": ones("F32", 2),
        }
        | EXPERT_REFERENCES,
        {"model_type": "gpt_oss", "num_local_experts": 2, "swiglu_limit": 7.0, **SIZES_OF_MODEL},
    ),
    "llama4_float": (
        None,
        {"m.experts.gate_up_proj": words("BF16", 2, 32, 64), "m.experts.down_proj": words("BF16", 2, 32, 32),
         "m.router.weight": ones("F32", 2, 32)} | EXPERT_REFERENCES,
        {"model_type": "llama4", "text_config": {"num_local_experts": 2, **SIZES_OF_MODEL}},
    ),
    "unknown": (CT_W4A16, experts(PROJECTIONS, w4a16), {"model_type": "sparrow"}),
    "float": (
        None,
        {f"m.experts.{e}.{name}": of for e in range(2) for name, of in float_expert(*PROJECTIONS).items()},
        {"model_type": "olmoe", "num_experts": 2, **SIZES_OF_MODEL},
    ),
}
EXPERT_TEXTS = {
    "text_softmax": "128 experts of 2048 x 768, top 8, softmax renormalised, silu",
    "text_groups": "256 experts of 7168 x 2048, top 8, sigmoid with bias in 4 of 8 groups renormalised times 2.5, silu",
    "text_input": "16 experts of 5120 x 8192, top 1, sigmoid, silu limit 10, weight on input",
}


# Types of ggml: number, columns and bytes of a block.
GGUF_TYPES = {
    "q4_0": (2, 32, 18), "q4_1": (3, 32, 20), "q5_0": (6, 32, 22), "q5_1": (7, 32, 24), "q8_0": (8, 32, 34),
    "q6_k": (14, 256, 210), "iq4_nl": (20, 32, 18), "tq2_0": (35, 256, 66), "mxfp4": (39, 32, 17),
    "nvfp4": (40, 64, 36), "q1_0": (41, 128, 18), "iq2_xs": (17, 256, 74), "unknown": (77, 32, 18),
}


def gguf(kind, version=3):
    """A layer of one block a row, its reference, and a value of each kind."""
    number, columns, size = GGUF_TYPES[kind]
    text = lambda value: struct.pack("<Q", len(value)) + value
    values = [
        (b"general.alignment", struct.pack("<II", 4, 32)),
        (b"general.name", struct.pack("<I", 8) + text(b"seed")),
        (b"a.flag", struct.pack("<IB", 7, 1)),
        (b"a.list", struct.pack("<IIQ", 9, 8, 2) + text(b"one") + text(b"two")),
        (b"a.numbers", struct.pack("<IIQ2d", 9, 12, 2, 0.5, 1.5)),
    ]
    tensors = [
        (b"l.weight", [columns, 2], number, bytes([0x3C] * size * 2)),
        (b"l.bias", [2], 0, ONE["F32"] * 2),
        (b"l.scale", [1], 0, ONE["F32"]),
        (b"ref.weight", [columns, 2], 0, ONE["F32"] * columns * 2),
    ]
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(values))
    head += b"".join(text(key) + value for key, value in values)
    data = b""
    for name, sizes, of, raw in tensors:
        head += text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, of, len(data))
        data += raw + bytes(-len(raw) % 32)
    return head + bytes(-len(head) % 32) + data


def main():
    here = pathlib.Path(__file__).resolve().parent
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here / "corpus"
    for target in ("checkpoint", "gguf", "expert_layer"):
        (folder / target).mkdir(parents=True, exist_ok=True)
    for name, (config, tensors) in SEEDS.items():
        (folder / "checkpoint" / f"{name}.safetensors").write_bytes(safetensors(config, tensors))
    for kind in GGUF_TYPES:
        (folder / "gguf" / f"{kind}.gguf").write_bytes(gguf(kind, 2 if kind == "q4_1" else 3))
    for name, (config, tensors, model) in EXPERT_SEEDS.items():
        (folder / "expert_layer" / f"{name}.safetensors").write_bytes(safetensors(config, tensors, model))
    for name, text in EXPERT_TEXTS.items():
        (folder / "expert_layer" / name).write_text(text)


if __name__ == "__main__":
    main()
