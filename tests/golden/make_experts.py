#!/usr/bin/env python3
"""Writes the golden files `moe_*` that no software's release could be asked for: whole expert layers.

    pip install numpy==2.4.6 ml_dtypes==0.6.0
    python3 tests/golden/make_experts.py [FOLDER]      (default: the folder of this program)

The program is plain numpy and shares no code with the project. Packings, scales and quantisers are
those of the formats' own sources, routing and gates those of the models' (vLLM, transformers):

    compressed-tensors 0.20   compressors/*, quantization/utils/helpers.py
    Quark 0.13                quark/torch/quantization, exported names
    GPTQModel                 nn_modules/qlinear, version 1: the stored zero point is less by one
    KleidiAI, as vLLM calls it for W4A8: int8 tokens with zero points, ties away from zero
    transformers 5.17         models/{qwen3_moe,deepseek_v3,gpt_oss,llama4,nemotron_h,qwen2_moe,...}

A layer computes in f64 and rounds where a model of dtype T does: h (between the products) and y. Of
each file `ref.x` [M, H] is in T, `ref.router_0` are the logits [M, E], `ref.router_1` the router
weights [M, k], `ref.router_2` the chosen experts [M, k], `ref.y` [M, H] is f32 with values of T. Each
file has its model's configuration under `config`, with the keys that the layer needs. The output is
the same on every run.
"""

import json
import pathlib
import struct
import sys

import ml_dtypes
import numpy as np

BF16, E4M3 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn
F16, F32, F64 = np.float16, np.float32, np.float64
DTYPES = {
    np.dtype(F32): "F32", np.dtype(F16): "F16", np.dtype(BF16): "BF16", np.dtype(E4M3): "F8_E4M3",
    np.dtype(np.int64): "I64", np.dtype(np.int32): "I32", np.dtype(np.int8): "I8",
    np.dtype(np.uint8): "U8",
}
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], F64)
E2M1 = np.concatenate([E2M1, -E2M1])
TOKENS, H, I = 6, 64, 96


# ---------------------------------------------------------------- files


def write(path, tensors, metadata):
    header, body = {"__metadata__": metadata}, b""
    for name in sorted(tensors):
        data = np.ascontiguousarray(tensors[name])
        raw = data.tobytes()
        header[name] = {
            "dtype": DTYPES[data.dtype], "shape": list(data.shape),
            "data_offsets": [len(body), len(body) + len(raw)],
        }
        body += raw
    text = json.dumps(header, separators=(",", ":"), sort_keys=True).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    print(f"{path.name}: {path.stat().st_size} bytes")


# ---------------------------------------------------------------- numbers


def to(dtype, values):
    """Rounds to a dtype, as f64."""
    return np.asarray(values, F64).astype(dtype).astype(F64)


def e2m1_codes(values):
    """Nearest code, ties to the even one; saturates."""
    magnitude = np.minimum(np.abs(values), 6.0)
    steps = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    above = magnitude[..., None] > steps
    tie = magnitude[..., None] == steps
    up = above | tie & (np.arange(7) % 2 == 1)  # from an odd code to the even one above it
    return (up.sum(-1) + 8 * np.signbit(values)).astype(np.uint8)


def nibbles(codes):
    """Two codes a byte, the even column in the low half."""
    return (codes[..., 0::2] | codes[..., 1::2] << 4).astype(np.uint8)


def words_along_k(codes, bits):
    """int32 words of 32 // bits codes along the last axis, the first in the lowest bits."""
    per = 32 // bits
    rows, columns = codes.shape
    parts = codes.reshape(rows, columns // per, per).astype(np.uint32)
    shifts = (np.arange(per) * bits).astype(np.uint32)
    return np.bitwise_or.reduce(parts << shifts, -1).astype(np.uint32).view(np.int32)


# ---------------------------------------------------------------- matrices


class Matrix:
    """The stored tensors of a matrix [N, K] by name, its values, its bias, and how it reads x."""

    def __init__(self, tensors, values, bias=None, read=None):
        self.tensors, self.values, self.bias = tensors, values, bias
        self.read = read or (lambda x, dtype: x)

    def product(self, x, dtype):
        y = self.read(x, dtype) @ self.values.T
        return y if self.bias is None else y + self.bias


def spread(scales, rows, columns, shape):
    """Scales of blocks as scales of elements."""
    return np.repeat(np.repeat(scales, rows, 0), columns, 1)[: shape[0], : shape[1]]


def ct_int(rng, n, k, bits, group, size=1.0):
    """compressed-tensors pack-quantized, symmetric: code + 2^(bits-1), scales of `group` columns."""
    codes = rng.integers(-(1 << bits - 1), 1 << bits - 1, (n, k))
    group = group or k
    scale = rng.uniform(0.5, 1.5, (n, k // group)) * size / ((1 << bits - 1) * 0.58 * np.sqrt(k))
    scale = scale.astype(BF16)
    tensors = {
        "weight_packed": words_along_k(codes + (1 << bits - 1), bits),
        "weight_scale": scale, "weight_shape": np.array([n, k], np.int64),
    }
    return Matrix(tensors, codes * np.repeat(scale.astype(F64), group, 1))


def fp8_codes(rng, n, k):
    return rng.normal(0, 100, (n, k)).clip(-448, 448).astype(E4M3)


def ct_fp8_block(rng, n, k, block=32):
    """compressed-tensors float-quantized, blocks; x in groups of as many columns, scales in its dtype."""
    codes = fp8_codes(rng, n, k)
    shape = (-(-n // block), -(-k // block))
    scale = (rng.uniform(0.5, 1.5, shape) / (100 * np.sqrt(k))).astype(BF16)
    values = codes.astype(F64) * spread(scale.astype(F64), block, block, (n, k))

    def read(x, dtype):
        out = np.zeros_like(x)
        for first in range(0, x.shape[1], block):
            part = x[:, first : first + block]
            amax = np.abs(part).max(1, keepdims=True)
            scale = to(dtype, (amax.astype(F32) / F32(448)))
            coded = to(dtype, part.astype(F32) / scale.astype(F32))
            out[:, first : first + block] = to(E4M3, coded.clip(-448, 448)) * scale
        return out

    return Matrix({"weight": codes, "weight_scale": scale}, values, read=read)


def ct_nvfp4(rng, n, k, divisor, input_divisor):
    """compressed-tensors nvfp4-pack-quantized: the global scales are divisors."""
    codes = rng.integers(0, 16, (n, k)).astype(np.uint8)
    scale = (rng.uniform(0.4, 1.6, (n, k // 16)) * divisor / (2.9 * np.sqrt(k))).astype(E4M3)
    divisor, input_divisor = F32(divisor), F32(input_divisor)
    values = E2M1[codes] * np.repeat(scale.astype(F64), 16, 1) / F64(divisor)

    def read(x, dtype):
        parts = x.reshape(len(x), -1, 16)
        amax = np.abs(parts).max(-1, keepdims=True)
        local = to(dtype, amax.astype(F32) / F32(6)).astype(F32)
        coded = to(E4M3, (local * input_divisor).clip(max=448))
        scale = (coded.astype(F32) / input_divisor).astype(F64)
        quotient = np.divide(parts, scale, out=np.zeros_like(parts), where=scale != 0)
        return (E2M1[e2m1_codes(quotient)] * scale).reshape(x.shape)

    tensors = {
        "weight_packed": nibbles(codes), "weight_scale": scale,
        "weight_global_scale": np.array([divisor]), "input_global_scale": np.array([input_divisor]),
    }
    return Matrix(tensors, values, read=read)


def ct_mxfp4(rng, n, k):
    """compressed-tensors mxfp4-pack-quantized: scales are powers of two, e8m0."""
    codes = rng.integers(0, 16, (n, k)).astype(np.uint8)
    scale = rng.integers(122, 125, (n, k // 32)).astype(np.uint8)
    values = E2M1[codes] * np.repeat(2.0 ** (scale.astype(F64) - 127), 32, 1)
    return Matrix({"weight_packed": nibbles(codes), "weight_scale": scale}, values)


def quark_int8(rng, n, k, scale, input_scale):
    """Quark int8, one scale for the weight and a static one for x."""
    codes = rng.integers(-127, 128, (n, k)).astype(np.int8)
    scale, input_scale = F32(scale), F32(input_scale)

    def read(x, dtype):
        coded = np.rint((x.astype(F32) / input_scale).clip(-128, 127))
        return coded.astype(F64) * F64(input_scale)

    tensors = {
        "weight": codes, "weight_scale": np.array([scale]), "weight_zero_point": np.zeros(1, np.int8),
        "input_scale": np.array([input_scale]), "input_zero_point": np.zeros(1, np.int8),
    }
    return Matrix(tensors, codes.astype(F64) * F64(scale), read=read)


def gptq4(rng, n, k, group=32):
    """GPTQ version 1 with act-order: g_idx is a permutation of the columns' groups."""
    codes = rng.integers(0, 16, (n, k))
    zeros = rng.integers(1, 16, (k // group, n))  # true zero points; stored less by one
    scale = (rng.uniform(0.5, 1.5, (k // group, n)) / (4.7 * np.sqrt(k))).astype(F16)
    index = rng.permutation(np.arange(k) // group).astype(np.int32)
    values = (codes - zeros[index].T) * scale.astype(F64)[index].T
    tensors = {
        "qweight": words_along_k(codes, 4).T.copy(), "qzeros": words_along_k(zeros - 1, 4),
        "scales": scale, "g_idx": index,
    }
    return Matrix(tensors, values)


def arm_w4a8(rng, n, k, group):
    """int4 kept in int8; scales of rows in f32 or of groups in bf16; bias; int8 tokens with zero points."""
    codes = rng.integers(-8, 8, (n, k)).astype(np.int8)
    shape = (n, k // group if group else 1)
    scale = rng.uniform(0.5, 1.5, shape) / (4.7 * np.sqrt(k))
    scale = scale.astype(BF16 if group else F32)
    bias = rng.normal(0, 0.3, n).astype(F32)

    def read(x, dtype):
        low = np.minimum(x.min(1, keepdims=True), 0).astype(F32)
        high = np.maximum(x.max(1, keepdims=True), 0).astype(F32)
        scale = ((high - low) / F32(255)).astype(F32)
        zero = np.rint((F32(-128) - low / scale).clip(-128, 127))
        quotient = (x.astype(F32) / scale + zero).astype(F32).clip(-128, 127).astype(F64)
        coded = np.sign(quotient) * np.floor(np.abs(quotient) + 0.5)
        return (coded - zero.astype(F64)) * scale.astype(F64)

    values = codes * np.repeat(scale.astype(F64), group or k, 1)
    return Matrix({"weight": codes, "weight_scale": scale, "bias": bias}, values, bias.astype(F64), read)


def plain(rng, n, k, dtype=F32):
    """Not quantised."""
    weight = (rng.normal(0, 1, (n, k)) / np.sqrt(k)).astype(dtype)
    return Matrix({"weight": weight}, weight.astype(F64))


# ---------------------------------------------------------------- layers


def sigmoid(v):
    return 1 / (1 + np.exp(-v))


def silu(g, u):
    return g * sigmoid(g) * u


def relu2(g):
    return np.maximum(g, 0) ** 2


def route(logits, k, score, bias=None, groups=None, renormalise=False, scale=1.0):
    """Ids and router weights; `groups` is (count, kept)."""
    if score == "softmax":
        power = np.exp(logits - logits.max(1, keepdims=True))
        scores = power / power.sum(1, keepdims=True)
    elif score == "sqrtsoftplus":
        scores = np.sqrt(np.log1p(np.exp(logits)))
    else:
        scores = sigmoid(logits)
    choice = scores if bias is None else scores + bias
    if groups:
        count, kept = groups
        parts = choice.reshape(len(choice), count, -1)
        values = np.sort(parts, -1)[..., -2:].sum(-1) if bias is not None else parts.max(-1)
        best = np.argsort(-values, 1, kind="stable")[:, :kept]
        keep = np.zeros_like(values, bool)
        np.put_along_axis(keep, best, True, 1)
        choice = np.where(np.repeat(keep, parts.shape[-1], 1), choice, -np.inf)
    ids = np.argsort(-choice, 1, kind="stable")[:, :k]
    weights = np.take_along_axis(scores, ids, 1)
    if renormalise:
        weights = weights / (weights.sum(1, keepdims=True) + 1e-20)
    return ids, weights * scale


def expert(shards, down, gate, x, dtype):
    """W2 round_T(gate(W1 x, W3 x))."""
    h = to(dtype, gate(*[shard.product(x, dtype) for shard in shards]))
    return down.product(h, dtype)


def layer(x, ids, weights, experts, gate, dtype, on_input=False, shared=None):
    y = np.zeros_like(x)
    for token in range(len(x)):
        for choice, number in enumerate(ids[token]):
            row, weight = x[token : token + 1], weights[token, choice]
            if on_input:
                row, weight = to(dtype, row * weight), 1.0
            y[token] += weight * expert(*experts[number], gate, row, dtype)[0]
    if shared is not None:
        y += shared
    return to(dtype, y)


class File:
    """What is written: tensors below the module of the experts, references, metadata."""

    def __init__(self, name, seed, config, parent, dtype=BF16):
        self.name, self.config, self.parent, self.dtype = name, config, parent, dtype
        self.rng = np.random.default_rng(seed)
        self.tensors, self.metadata = {}, {}

    def x(self, deviation=1.0, tokens=TOKENS, hidden=H):
        return to(self.dtype, self.rng.normal(0, deviation, (tokens, hidden)))

    def put(self, name, tensors):
        for part, data in tensors.items():
            self.tensors[f"{self.parent}.{name}.{part}"] = data

    def router(self, experts, hidden=H, name="gate", deviation=1.5):
        weight = (self.rng.normal(0, deviation, (experts, hidden)) / np.sqrt(hidden)).astype(F32)
        self.put(name, {"weight": weight})
        return weight.astype(F64)

    def experts(self, count, make, names=("gate_proj", "up_proj", "down_proj"), hidden=H, inner=I):
        """`make(expert, name, n, k)`, for the shards and then for the second product."""
        found = []
        for number in range(count):
            matrices = []
            for name in names:
                n, k = (hidden, inner) if name == names[-1] else (inner, hidden)
                matrix = make(number, name, n, k)
                self.put(f"experts.{number}.{name}", matrix.tensors)
                matrices.append(matrix)
            found.append((matrices[:-1], matrices[-1]))
        return found

    def write(self, folder, x, logits, ids, weights, y):
        self.tensors |= {
            "ref.x": x.astype(self.dtype), "ref.router_0": logits.astype(F32),
            "ref.router_1": weights.astype(F32), "ref.router_2": ids.astype(np.int64),
            "ref.y": y.astype(F32),
        }
        if self.config is not None:
            self.metadata["config"] = json.dumps(self.config, sort_keys=True)
        self.metadata["made_by"] = "tests/golden/make_experts.py"
        write(folder / f"{self.name}.safetensors", self.tensors, self.metadata)


def compressed(format, weights, inputs=None):
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "format": format}
    return json.dumps({
        "quant_method": "compressed-tensors", "format": format, "quantization_status": "compressed",
        "config_groups": {"group_0": group}, "ignore": ["lm_head", "re:.*gate$"],
    }, sort_keys=True)


def ct_int_config(bits, group):
    strategy = {"strategy": "group", "group_size": group} if group else {"strategy": "channel"}
    return compressed("pack-quantized", {"num_bits": bits, "type": "int", "symmetric": True} | strategy)


def qwen3(experts, top_k, inner=I, model="qwen3_moe", renormalise=True):
    return {
        "model_type": model, "hidden_act": "silu", "hidden_size": H, "moe_intermediate_size": inner,
        "norm_topk_prob": renormalise, "num_experts": experts, "num_experts_per_tok": top_k,
    }


def simple(folder, name, seed, make, quantization, experts=4, top_k=2, inner=I, dtype=BF16):
    """Qwen3's names and routing with one kind of matrix: `make(rng, expert, name, n, k)`."""
    file = File(name, seed, qwen3(experts, top_k, inner), "model.layers.0.mlp", dtype)
    file.metadata["quantization_config"] = quantization
    x, router = file.x(), file.router(experts)
    matrices = file.experts(experts, lambda *of: make(file.rng, *of), inner=inner)
    logits = x @ router.T
    ids, weights = route(logits, top_k, "softmax", renormalise=True)
    file.write(folder, x, logits, ids, weights, layer(x, ids, weights, matrices, silu, file.dtype))


# ---------------------------------------------------------------- the files


def gpt_oss_clamped(folder):
    """gates and ups far beyond the limit of 7, on both sides: the clamps of swigluoai do clamp."""
    experts, top_k = 4, 2
    config = {
        "model_type": "gpt_oss", "hidden_size": H, "intermediate_size": I, "num_local_experts": experts,
        "num_experts_per_tok": top_k, "swiglu_limit": 7.0, "hidden_act": "silu",
    }
    file = File("moe_gpt_oss_clamped", 1, config, "model.layers.0.mlp")
    x = file.x(1.5)
    router = file.router(experts, name="router")
    router_bias = file.rng.normal(0, 0.3, experts).astype(F32)
    file.put("router", {"bias": router_bias})

    def stack(name, n, k, low):
        codes = file.rng.integers(0, 16, (experts, n, k)).astype(np.uint8)
        scales = file.rng.integers(low, low + 3, (experts, n, k // 32)).astype(np.uint8)
        bias = file.rng.normal(0, 0.5, (experts, n)).astype(BF16)
        prefix = f"{file.parent}.experts.{name}"
        file.tensors[f"{prefix}_blocks"] = nibbles(codes).reshape(experts, n, k // 32, 16)
        file.tensors[f"{prefix}_scales"], file.tensors[f"{prefix}_bias"] = scales, bias
        values = E2M1[codes] * np.repeat(2.0 ** (scales.astype(F64) - 127), 32, 2)
        return values, bias.astype(F64)

    (w13, b13), (w2, b2) = stack("gate_up_proj", 2 * I, H, 124), stack("down_proj", H, I, 121)
    matrices = [
        ([Matrix({}, w13[e, s::2], b13[e, s::2]) for s in (0, 1)], Matrix({}, w2[e], b2[e]))
        for e in range(experts)
    ]
    logits = x @ router.T + router_bias.astype(F64)
    ids, weights = route(logits, top_k, "softmax", renormalise=True)
    clamped = [0, 0, 0]

    def swigluoai(g, u):
        clamped[0] += (g > 7).sum()
        clamped[1] += (u > 7).sum()
        clamped[2] += (u < -7).sum()
        g, u = np.minimum(g, 7), u.clip(-7, 7)
        return g * sigmoid(1.702 * g) * (u + 1)

    y = layer(x, ids, weights, matrices, swigluoai, file.dtype)
    assert min(clamped) > 100, clamped
    file.write(folder, x, logits, ids, weights, y)


def ct_w4a16(folder):
    """A matrix a tensor, int4 in groups of 32."""
    simple(folder, "moe_ct_w4a16", 2, lambda rng, e, name, n, k: ct_int(rng, n, k, 4, 32, 2.0),
           ct_int_config(4, 32))


def ct_fp8_block_ragged(folder):
    """FP8 in blocks of 32 x 32 with a ragged last block: I is 80."""
    weights = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "block",
               "block_structure": [32, 32]}
    inputs = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "group",
              "group_size": 32, "dynamic": True}
    simple(folder, "moe_ct_fp8_block", 3, lambda rng, e, name, n, k: ct_fp8_block(rng, n, k),
           compressed("float-quantized", weights, inputs), inner=80)


def ct_nvfp4_apart(folder):
    """NVFP4 whose gate and up have global scales that differ by a factor of 3."""
    args = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group",
            "group_size": 16, "scale_dtype": "torch.float8_e4m3fn"}
    divisors = {"gate_proj": 900.0, "up_proj": 2700.0, "down_proj": 1500.0}

    def make(rng, expert, name, n, k):
        return ct_nvfp4(rng, n, k, divisors[name] * (1 + expert / 8), 700.0 + 50 * expert)

    simple(folder, "moe_ct_nvfp4", 4, make, compressed(
        "nvfp4-pack-quantized", args | {"dynamic": False}, args | {"dynamic": "local"}))


def quark_int8_apart(folder):
    """Quark int8 with one scale a matrix: gate and up differ by a factor of 3, and the static scales of
    x and h differ from expert to expert."""
    tensor = {"dtype": "int8", "qscheme": "per_tensor", "ch_axis": 0, "symmetric": True}
    config = json.dumps({
        "quant_method": "quark", "exclude": [], "layer_quant_config": {},
        "global_quant_config": {
            "weight": tensor | {"is_dynamic": False}, "input_tensors": tensor | {"is_dynamic": False},
            "output_tensors": None, "bias": None,
        },
        "export": {"pack_method": "order"},
    }, sort_keys=True)
    scales = {"gate_proj": 0.0012, "up_proj": 0.0036, "down_proj": 0.0021}

    def make(rng, expert, name, n, k):
        given = 0.02 if name == "down_proj" else 0.025
        return quark_int8(rng, n, k, scales[name] * (1 + expert / 5), given * (1 + expert / 3))

    simple(folder, "moe_quark_int8", 5, make, config)


def gptq4_act_order(folder):
    """GPTQ with act-order, each matrix with an order of its own; Mixtral's names; f16."""
    experts, top_k = 4, 2
    config = {"model_type": "mixtral", "hidden_act": "silu", "hidden_size": H, "intermediate_size": I,
              "num_experts_per_tok": top_k, "num_local_experts": experts}
    file = File("moe_gptq4_actorder", 6, config, "model.layers.0.block_sparse_moe", F16)
    file.metadata["quantization_config"] = json.dumps({
        "quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True, "sym": False,
        "checkpoint_format": "gptq",
    }, sort_keys=True)
    x, router = file.x(), file.router(experts)
    matrices = file.experts(experts, lambda e, name, n, k: gptq4(file.rng, n, k), ("w1", "w3", "w2"))
    logits = x @ router.T
    ids, weights = route(logits, top_k, "softmax", renormalise=True)
    file.write(folder, x, logits, ids, weights, layer(x, ids, weights, matrices, silu, file.dtype))


def arm(folder, name, seed, group):
    """int4 weights with bias and int8 tokens with zero points, as KleidiAI's kernels compute; the file's
    configuration is the scheme itself."""
    scale = f"scale: bf16 per 1x{group}" if group else "scale: f32 per channel"
    text = f"""{name} {{
        weight: i4, {scale}, pack: i8 [code, pad 4 = sign | k, n],
        activation: i8 {{ zero: i8, scale: f32 per token, ties: away }}, bias: f32,
    }}"""
    experts = 4
    names = {f"model.layers.0.mlp.experts.{e}.{part}": [1, *shape] for e in range(experts)
             for part, shape in (("gate_proj", (I, H)), ("up_proj", (I, H)), ("down_proj", (H, I)))}
    config = json.dumps({"quant_method": "quantloom", "scheme": text, "layers": names}, sort_keys=True)
    simple(folder, f"moe_{name}", seed, lambda rng, e, part, n, k: arm_w4a8(rng, n, k, group), config,
           experts)


def deepseek_negative(folder):
    """DeepSeek-V3's routing with a bias that makes every choice negative: software that sets experts
    outside of the kept groups to 0 would choose them. Not quantised, f32."""
    experts, top_k, hidden, inner = 16, 4, 16, 24
    config = {
        "model_type": "deepseek_v3", "hidden_act": "silu", "hidden_size": hidden,
        "moe_intermediate_size": inner, "n_routed_experts": experts, "num_experts_per_tok": top_k,
        "n_group": 4, "topk_group": 2, "norm_topk_prob": True, "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid", "topk_method": "noaux_tc",
    }
    file = File("moe_deepseek_negative", 7, config, "model.layers.3.mlp", F32)
    x, router = file.x(hidden=hidden), file.router(experts, hidden)
    bias = file.rng.uniform(-1.6, -1.1, experts).astype(F32)
    file.put("gate", {"e_score_correction_bias": bias})
    matrices = file.experts(experts, lambda e, name, n, k: plain(file.rng, n, k), hidden=hidden, inner=inner)
    logits = x @ router.T
    assert (sigmoid(logits) + bias.astype(F64)).max() < 0
    ids, weights = route(logits, top_k, "sigmoid", bias.astype(F64), (4, 2), True, 2.5)
    file.write(folder, x, logits, ids, weights, layer(x, ids, weights, matrices, silu, file.dtype))


def llama4(folder):
    """The sigmoid of one expert multiplies x; a shared expert that is not quantised."""
    experts = 4
    config = {"model_type": "llama4", "text_config": {
        "model_type": "llama4_text", "hidden_act": "silu", "hidden_size": H, "intermediate_size": I,
        "intermediate_size_mlp": 2 * I, "num_experts_per_tok": 1, "num_local_experts": experts,
    }}
    file = File("moe_llama4", 8, config, "language_model.model.layers.1.feed_forward")
    file.metadata["quantization_config"] = ct_int_config(8, None)
    x, router = file.x(), file.router(experts, name="router")
    matrices = file.experts(experts, lambda e, name, n, k: ct_int(file.rng, n, k, 8, None, 2.0))
    shared = [plain(file.rng, *shape, BF16) for shape in ((32, H), (32, H), (H, 32))]
    for name, matrix in zip(("gate_proj", "up_proj", "down_proj"), shared):
        file.put(f"shared_expert.{name}", matrix.tensors)
    logits = x @ router.T
    ids, weights = route(logits, 1, "sigmoid")
    added = expert(shared[:2], shared[2], silu, x, file.dtype)
    y = layer(x, ids, weights, matrices, silu, file.dtype, on_input=True, shared=added)
    file.write(folder, x, logits, ids, weights, y)


def nemotron(folder):
    """relu2 without gate: a single first matrix; a score bias; a shared expert of the same kind."""
    experts, top_k = 6, 3
    config = {
        "model_type": "nemotron_h", "hidden_size": H, "mlp_hidden_act": "relu2",
        "moe_intermediate_size": I, "n_routed_experts": experts, "num_experts_per_tok": top_k,
        "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5,
    }
    file = File("moe_nemotron_relu2", 9, config, "backbone.layers.1.mixer")
    file.metadata["quantization_config"] = ct_int_config(4, 32)
    x, router = file.x(), file.router(experts)
    bias = file.rng.normal(0, 0.2, experts).astype(F32)
    file.put("gate", {"e_score_correction_bias": bias})
    matrices = file.experts(experts, lambda e, name, n, k: ct_int(file.rng, n, k, 4, 32, 2.0),
                            ("up_proj", "down_proj"))
    shared = [ct_int(file.rng, 128, H, 4, 32, 2.0), ct_int(file.rng, H, 128, 4, 32, 2.0)]
    for name, matrix in zip(("up_proj", "down_proj"), shared):
        file.put(f"shared_experts.{name}", matrix.tensors)
    logits = x @ router.T
    ids, weights = route(logits, top_k, "sigmoid", bias.astype(F64), None, True, 2.5)
    added = expert(shared[:1], shared[1], relu2, x, file.dtype)
    file.write(folder, x, logits, ids, weights, layer(x, ids, weights, matrices, relu2, file.dtype,
                                                      shared=added))


def silu_limit(folder):
    """silu with a limit of 2.5 that does limit, and the root of softplus as score; MXFP4. No model's
    configuration: the file's metadata describes the layer as text."""
    experts, top_k, limit = 6, 2, 2.5
    file = File("moe_silu_limit", 10, None, "layers.0.ffn")
    file.metadata["expert_layer"] = (
        f"{experts} experts of {H} x {I}, top {top_k}, sqrtsoftplus with bias renormalised times 1.5, "
        f"silu limit {limit}")
    args = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "group", "group_size": 32,
            "scale_dtype": "torch.uint8"}
    file.metadata["quantization_config"] = compressed("mxfp4-pack-quantized", args)
    x, router = file.x(), file.router(experts)
    bias = file.rng.normal(0, 0.5, experts).astype(F32)
    file.put("gate", {"e_score_correction_bias": bias})
    matrices = file.experts(experts, lambda e, name, n, k: ct_mxfp4(file.rng, n, k), ("w1", "w3", "w2"))
    logits = x @ router.T
    ids, weights = route(logits, top_k, "sqrtsoftplus", bias.astype(F64), None, True, 1.5)
    clamped = [0, 0, 0]

    def limited(g, u):
        clamped[0] += (g > limit).sum()
        clamped[1] += (u > limit).sum()
        clamped[2] += (u < -limit).sum()
        return silu(np.minimum(g, limit), u.clip(-limit, limit))

    y = layer(x, ids, weights, matrices, limited, file.dtype)
    assert min(clamped) > 50, clamped
    file.write(folder, x, logits, ids, weights, y)


def qwen2_shared(folder):
    """Qwen2's shared expert: its result times the sigmoid of a gate; router weights as the softmax gives
    them."""
    experts, top_k, inner = 4, 2, 128
    file = File("moe_qwen2_shared", 11, qwen3(experts, top_k, I, "qwen2_moe", False), "model.layers.0.mlp")
    file.metadata["quantization_config"] = ct_int_config(4, 32)
    x, router = file.x(), file.router(experts)
    matrices = file.experts(experts, lambda e, name, n, k: ct_int(file.rng, n, k, 4, 32, 2.0))
    shared = [ct_int(file.rng, *shape, 4, 32, 2.0) for shape in ((inner, H), (inner, H), (H, inner))]
    for name, matrix in zip(("gate_proj", "up_proj", "down_proj"), shared):
        file.put(f"shared_expert.{name}", matrix.tensors)
    gate = (file.rng.normal(0, 2, (1, H)) / np.sqrt(H)).astype(BF16)
    file.put("shared_expert_gate", {"weight": gate})
    logits = x @ router.T
    ids, weights = route(logits, top_k, "softmax")
    added = sigmoid(x @ gate.astype(F64).T) * expert(shared[:2], shared[2], silu, x, file.dtype)
    y = layer(x, ids, weights, matrices, silu, file.dtype, shared=added)
    file.write(folder, x, logits, ids, weights, y)


def main():
    here = pathlib.Path(__file__).parent
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here
    gpt_oss_clamped(folder)
    ct_w4a16(folder)
    ct_fp8_block_ragged(folder)
    ct_nvfp4_apart(folder)
    quark_int8_apart(folder)
    gptq4_act_order(folder)
    arm(folder, "arm_w4a8_channel", 12, None)
    arm(folder, "arm_w4a8_g32", 13, 32)
    deepseek_negative(folder)
    llama4(folder)
    nemotron(folder)
    silu_limit(folder)
    qwen2_shared(folder)


if __name__ == "__main__":
    main()
