#!/usr/bin/env python3
"""Converts golden files to GGUF and to compressed-tensors, and decodes what was written with those formats' own
software: the PyPI packages `gguf` 0.19.0 and `compressed-tensors` 0.20.0. Each weight has to be that of the source,
as `quantloom dequantize` decodes it.

    pip install gguf==0.19.0 numpy safetensors
    pip install compressed-tensors==0.20.0          (brings torch, some gigabytes; without it this part is left out)
    python3 tests/golden/check_converted.py target/release/quantloom [--write]

`converted.txt` has the SHA-256 of each output that was decoded so. A test compares it with what `convert` writes, so
that the tests need no network: other bytes are to be decoded again, with --write.
"""

import hashlib
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors import safe_open

HERE = pathlib.Path(__file__).resolve().parent
LIST = HERE / "converted.txt"
# Layers of another name, or without a decoder in the package.
LEFT_OUT = ("moe_", "codes_", "gpt_oss_", "gguf_experts", "gguf_q1_0")


def by_gguf(path):
    tensors = {tensor.name: tensor for tensor in GGUFReader(path).tensors}
    layer = tensors["layer.weight"]
    values = dequantize(layer.data, layer.tensor_type)
    if "layer.scale" in tensors:
        values = values * tensors["layer.scale"].data
    return values, np.float32


def by_compressed_tensors(path):
    import torch
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationConfig

    with safe_open(path, "pt") as file:
        config = json.loads(file.metadata()["quantization_config"])
        names = [name for name in file.keys() if name.startswith("layer.")]
        tensors = {name.removeprefix("layer."): file.get_tensor(name) for name in names}
    config = QuantizationConfig.model_validate(config)
    (scheme,) = config.config_groups.values()
    tensors.pop("bias", None)
    # It computes in the scale's type: in f32 there is one rounding, as in ours.
    if tensors["weight_scale"].dtype in (torch.bfloat16, torch.float16):
        tensors["weight_scale"] = tensors["weight_scale"].float()
    compressor = BaseCompressor.get_value_from_registry(scheme.format or config.format)
    weight = compressor.decompress(tensors, scheme)["weight"]
    return weight.float().numpy(), np.float32 if weight.dtype == torch.float32 else "bf16"


def equal(theirs, kind, ours):
    ours = ours.reshape(theirs.shape)
    if kind == "bf16":
        # Two roundings to 8 bits.
        return bool(np.all(np.abs(theirs - ours) <= np.abs(ours) * 2.0**-7))
    return np.array_equal(theirs, ours)


def main():
    command = sys.argv[1]
    targets = {"gguf": ("gguf", by_gguf)}
    try:
        import compressed_tensors  # noqa: F401

        targets["compressed-tensors"] = ("safetensors", by_compressed_tensors)
    except ImportError:
        print("left out: compressed-tensors is not installed")
    lines, wrong = [], []
    for source in sorted(HERE.iterdir()):
        if source.suffix not in (".safetensors", ".gguf") or source.name.startswith(LEFT_OUT):
            continue
        with tempfile.TemporaryDirectory() as folder:
            decoded = pathlib.Path(folder) / "decoded.safetensors"
            run = [command, "dequantize", source, "--layer", "layer", "--out", decoded]
            subprocess.run(run, check=True, capture_output=True)
            with safe_open(decoded, "np") as file:
                ours = file.get_tensor("weight")
            for name, (ending, decode) in targets.items():
                out = pathlib.Path(folder) / f"out.{ending}"
                ran = subprocess.run([command, "convert", source, "--to", name, "--out", out], capture_output=True)
                if ran.returncode != 0:
                    continue
                theirs, kind = decode(out)
                if not equal(theirs, kind, ours):
                    wrong.append(f"{source.name} to {name}")
                lines.append(f"{source.name} {name} {hashlib.sha256(out.read_bytes()).hexdigest()}")
    print(f"{len(lines)} outputs decoded by their own software, {len(wrong)} wrong: {wrong}")
    known = LIST.read_text().splitlines() if LIST.exists() else []
    if "--write" in sys.argv and not wrong:
        LIST.write_text("".join(line + "\n" for line in lines))
    elif [line for line in known if line.split()[1] in targets] != lines:
        wrong.append("converted.txt has other bytes: decode them with --write")
        print(wrong[-1])
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
