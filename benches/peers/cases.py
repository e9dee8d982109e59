"""What is compared: a row of the table is a scheme of ours and the peers that do the same work.

A peer is named by its library and what it is given; `peers.py` knows how to call it. Peers that leave a part of the work out
(sums without scales) are marked.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Humming:
    """A layer of humming-kernels: the configurations of its weight and of its input."""

    weight: dict
    input: dict = field(default_factory=dict)
    name: str = "Humming"


@dataclass(frozen=True)
class CublasLt:
    """A product of PyTorch that calls cuBLASLt: `fp8_tensor`, `fp8_rowwise`, `int8` (sums alone) or `bf16`."""

    product: str

    @property
    def name(self) -> str:
        return "cuBLAS" if self.product == "bf16" else "cuBLASLt"


@dataclass(frozen=True)
class Case:
    label: str
    scheme: str
    peers: tuple
    # Whether only the product is timed: x is in codes already.
    product_alone: bool = False


INT4 = dict(dtype="int4", group_size=128)
E4M3 = dict(dtype="float8e4m3")

CASES = (
    Case("int4 in groups of 128", "ct_w4a16", (Humming(INT4), CublasLt("bf16"))),
    Case("int4 in groups of 32", "ct_mxint4", (Humming(dict(dtype="int4", group_size=32)), CublasLt("bf16"))),
    Case("int8 in groups of 128", "ct_w8a16", (Humming(dict(dtype="int8", group_size=128)), CublasLt("bf16"))),
    Case(
        "MXFP4",
        "ct_mxfp4a16",
        (Humming(dict(dtype="float4e2m1", group_size=32, scale_dtype="float8e8m0")), CublasLt("bf16")),
    ),
    Case(
        "NVFP4",
        "ct_nvfp4a16",
        (
            Humming(dict(dtype="float4e2m1", group_size=16, scale_dtype="float8e4m3", scale_2_type="tensor")),
            CublasLt("bf16"),
        ),
    ),
    Case(
        "int8 x int8",
        "ct_w8a8",
        (Humming(dict(dtype="int8"), dict(dtype="int8")), CublasLt("int8")),
        product_alone=True,
    ),
    Case("int4 x FP8, groups of 128", "ct_w4afp8", (Humming(INT4, E4M3),), product_alone=True),
    Case("FP8, one scale", "modelopt_fp8", (CublasLt("fp8_tensor"),), product_alone=True),
    Case(
        "FP8, channel x token",
        "ct_fp8_dynamic",
        (Humming(E4M3, E4M3), CublasLt("fp8_rowwise")),
        product_alone=True,
    ),
    Case(
        "FP8 in blocks",
        "fp8_block",
        (Humming(dict(E4M3, group_size=128, group_size_n=128), dict(E4M3, group_size=128)),),
        product_alone=True,
    ),
)
