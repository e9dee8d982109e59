"""Products and decoded weights of golden files, in numpy and JAX.

`QUANTLOOM_GOLDEN` names the folder of the golden files; without it, they are those of the repository.
"""

import gc
import json
import os
import pathlib
import struct
import weakref

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import quantloom
from exporter import Exporter

GOLDEN = pathlib.Path(
    os.environ.get("QUANTLOOM_GOLDEN", pathlib.Path(__file__).parents[2] / "tests" / "golden")
)

# Schemes whose codes are floats and whose x is taken as it is: no offset adds to the magnitudes of a sum.
FLOATS = ["ct_mxfp4a16.safetensors", "quark_w_mxfp6_e3m2.safetensors", "quark_w_mxfp4.safetensors"]


def layer_of(name, layer="layer"):
    return quantloom.open(GOLDEN / name).layer(layer)


def stored(name, tensor):
    """A tensor of a golden file, read without Quantloom: a safetensors file is a JSON header and bytes."""
    data = (GOLDEN / name).read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    entry = json.loads(data[8:end])[tensor]
    kinds = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
    first, last = entry["data_offsets"]
    return np.frombuffer(data[end + first : end + last], kinds[entry["dtype"]]).reshape(entry["shape"])


def activation(tokens, k, seed=1):
    return np.random.default_rng(seed).standard_normal((tokens, k)).astype(np.float32)


def bound(x, weight, rounding_of_y=0.0):
    """The most that y may differ from the exact product of x and the decoded weight.

    Every operation in f32 is exact but for a factor of 1 + d, |d| <= u = 2^-24, and none of the CPU's kernels takes
    a term through more than 8 of them for each of the K columns (`quantloom_tools::conformance::bound` has the numbers
    by kernel: two for a product and its addition, some for groups and scales). The decoded weight is rounded once
    more. By the triangle inequality y is off by r u / (1 - r u) of the sum of magnitudes at most. y itself is
    rounded to its own type last.
    """
    r = (8 * x.shape[1] + 1) * 2.0**-24
    magnitudes = np.abs(x).astype(np.float64) @ np.abs(weight).astype(np.float64).T
    sums = r / (1 - r) * magnitudes
    return sums + rounding_of_y * (magnitudes + sums)


@pytest.mark.parametrize("name", ["quark_w_mxfp4.safetensors", "gptq4.safetensors", "ct_mxint4.safetensors"])
def test_a_decoded_weight_is_the_golden_one(name):
    layer = layer_of(name)
    weight = np.from_dlpack(layer.dequantise())
    assert weight.dtype == np.float32 and weight.shape == layer.shape
    expected = stored(name, "ref.weight").astype(np.float32)
    # Both are the same number, rounded once at the most by each.
    np.testing.assert_array_max_ulp(weight, expected, maxulp=1)


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("tokens", [1, 5, 40])
def test_a_product_is_that_of_the_decoded_weight(name, tokens):
    layer = layer_of(name)
    prepared = layer.prepare()
    weight = np.from_dlpack(layer.dequantise())
    x = activation(tokens, layer.shape[1])
    y = np.from_dlpack(prepared.matmul(x))
    assert y.dtype == np.float32 and y.shape == (tokens, layer.shape[0])
    exact = x.astype(np.float64) @ weight.astype(np.float64).T
    assert np.all(np.abs(y - exact) <= bound(x, weight))


def test_x_in_float16_gives_y_in_float16():
    layer = layer_of(FLOATS[0])
    weight = np.from_dlpack(layer.dequantise())
    x = activation(3, layer.shape[1]).astype(np.float16)
    y = layer.prepare().matmul(x)
    assert y.dtype == "float16"
    exact = x.astype(np.float64) @ weight.astype(np.float64).T
    # A number of 11 bits is rounded by 2^-11 of itself at the most.
    assert np.all(np.abs(np.from_dlpack(y) - exact) <= bound(x, weight, 2.0**-11))


def test_jax_in_bfloat16_and_back():
    layer = layer_of(FLOATS[0])
    weight = np.from_dlpack(layer.dequantise())
    x = jnp.asarray(activation(3, layer.shape[1]), jnp.bfloat16)
    y = jax.dlpack.from_dlpack(layer.prepare().matmul(x))
    assert y.dtype == jnp.bfloat16 and y.shape == (3, layer.shape[0])
    x, y = (np.asarray(array).astype(np.float64) for array in (x, y))
    exact = x @ weight.astype(np.float64).T
    # A number of 8 bits.
    assert np.all(np.abs(y - exact) <= bound(x, weight, 2.0**-8))


def test_jax_computes_further_with_y():
    layer = layer_of(FLOATS[0])
    x = activation(7, layer.shape[1])
    prepared = layer.prepare()
    of_numpy = np.from_dlpack(prepared.matmul(x))
    of_jax = jax.dlpack.from_dlpack(prepared.matmul(jnp.asarray(x)))
    # The same kernel with the same x.
    assert np.array_equal(of_numpy, np.asarray(of_jax))
    assert np.array_equal(np.asarray(jax.jit(jnp.negative)(of_jax)), -of_numpy)


def test_y_is_not_copied():
    y = layer_of(FLOATS[0]).prepare().matmul(activation(2, layer_of(FLOATS[0]).shape[1]))
    first, second = np.from_dlpack(y), np.from_dlpack(y)
    first[0, 0] = 1234.0
    assert second[0, 0] == 1234.0
    address = first.__array_interface__["data"][0]
    assert jax.dlpack.from_dlpack(y).unsafe_buffer_pointer() == address
    # Without a version the older kind of capsule.
    assert "dltensor_versioned" not in repr(y.__dlpack__())
    assert "dltensor_versioned" in repr(y.__dlpack__(max_version=(1, 0)))


def test_rows_of_a_wider_array_are_a_product_of_these_rows():
    layer = layer_of(FLOATS[0])
    prepared, k = layer.prepare(), layer.shape[1]
    wide = activation(4, k + 24)
    y = np.from_dlpack(prepared.matmul(wide[:, 8 : 8 + k]))
    assert np.array_equal(y, np.from_dlpack(prepared.matmul(np.ascontiguousarray(wide[:, 8 : 8 + k]))))
    every_other = np.from_dlpack(prepared.matmul(wide[::2, :k]))
    assert np.array_equal(every_other, np.from_dlpack(prepared.matmul(wide[[0, 2], :k])))


def test_no_rows_are_no_rows():
    layer = layer_of(FLOATS[0])
    y = np.from_dlpack(layer.prepare().matmul(np.zeros((0, layer.shape[1]), np.float32)))
    assert y.shape == (0, layer.shape[0])


def test_a_read_only_x_is_read():
    layer = layer_of(FLOATS[0])
    x = activation(2, layer.shape[1])
    expected = np.from_dlpack(layer.prepare().matmul(x))
    x.flags.writeable = False
    assert np.array_equal(np.from_dlpack(layer.prepare().matmul(x)), expected)


def test_memory_outlives_what_made_it():
    layer = layer_of(FLOATS[0])
    prepared = layer.prepare()
    x = activation(64, layer.shape[1])
    y = prepared.matmul(x)
    array, expected = np.from_dlpack(y), np.array(np.from_dlpack(y))
    del y, prepared, layer
    gc.collect()
    # Room of the same size is taken and written, which would be the array's, were it free.
    others = [np.full_like(expected, 7.0) for _ in range(64)]
    assert np.array_equal(array, expected) and len(others) == 64


def test_x_is_given_back():
    class Array(np.ndarray):
        pass

    layer = layer_of(FLOATS[0])
    x = activation(2, layer.shape[1]).view(Array)
    alive = weakref.ref(x)
    layer.prepare().matmul(x)
    del x
    gc.collect()
    assert alive() is None


def test_an_exporter_is_read_where_it_says_and_told_once():
    layer = layer_of(FLOATS[0])
    prepared, k = layer.prepare(), layer.shape[1]
    x = activation(3, k)
    expected = np.from_dlpack(prepared.matmul(x))
    address = x.ctypes.data
    for exporter in (
        Exporter(address, (3, k)),
        Exporter(address - 64, (3, k), offset=64),
        Exporter(address, (3, k), strides=(k, 1)),
    ):
        assert np.array_equal(np.from_dlpack(prepared.matmul(exporter)), expected)
        assert exporter.given_back == 1


def test_a_decoded_weight_of_many_rows(tmp_path):
    # Q8_0: 32 codes of a byte after an f16 scale.
    n, k = 2500, 64
    random = np.random.default_rng(3)
    scales = random.integers(1, 100, (n, k // 32, 1)).astype(np.float16)
    codes = random.integers(-128, 128, (n, k // 32, 32), np.int8)
    blocks = np.concatenate([scales.view(np.uint8), codes.view(np.uint8)], axis=2)
    layer = quantloom.open(gguf_q8_0(tmp_path / "rows.gguf", n, k, blocks.tobytes())).layer("layer")
    weight = np.from_dlpack(layer.dequantise())
    # A product of 11 and 8 bits is a float32.
    assert np.array_equal(weight, (scales.astype(np.float32) * codes).reshape(n, k))


def gguf_q8_0(path, n, k, blocks):
    """A GGUF file of one layer."""
    name = b"layer.weight"
    header = b"GGUF" + struct.pack("<IQQ", 3, 1, 0)
    header += struct.pack("<Q", len(name)) + name + struct.pack("<IQQIQ", 2, k, n, 8, 0)
    path.write_bytes(header + bytes(-len(header) % 32) + blocks)
    return path


def test_the_files_of_a_checkpoint_may_go():
    path = GOLDEN / FLOATS[0]
    copy = pathlib.Path(os.environ.get("TMPDIR", "/tmp")) / f"quantloom-{os.getpid()}.safetensors"
    copy.write_bytes(path.read_bytes())
    try:
        layer = quantloom.open(copy, mapped=False).layer("layer")
        copy.write_bytes(b"")
    finally:
        copy.unlink()
    weight = np.from_dlpack(layer.dequantise())
    assert np.array_equal(weight, np.from_dlpack(layer_of(FLOATS[0]).dequantise()))


def test_a_simulated_gpu_multiplies():
    # 16-bit x: products of GPUs are of that.
    layer = layer_of(FLOATS[0])
    prepared = layer.prepare("sim:sm_80")
    assert prepared.device == "sim:sm_80" and "skinny" in prepared.explain(1)
    weight = np.from_dlpack(layer.dequantise())
    x = activation(2, layer.shape[1]).astype(ml_dtypes.bfloat16)
    y = jax.dlpack.from_dlpack(prepared.matmul(jnp.asarray(x)))
    exact = x.astype(np.float64) @ weight.astype(np.float64).T
    assert np.all(np.abs(np.asarray(y).astype(np.float64) - exact) <= bound(x, weight, 2.0**-8))


def test_products_of_an_accuracy_and_of_one_type_of_x():
    layer = layer_of("ct_w4a16.safetensors")
    fast = layer.prepare("sim:sm_90a", accuracy="fast").explain(64)
    exact = layer.prepare("sim:sm_90a", x="bfloat16", accuracy="exact").explain(64)
    rounded = "weights times their scale are rounded"
    assert rounded in fast and rounded not in exact
    # The scheme takes f16 too.
    assert "x in f16 is not converted" in fast and "x in f16 is rounded to bf16" in exact
    assert layer.explain(64, device="sim:sm_90a") == fast
    # x of another type is still taken.
    x = activation(3, layer.shape[1]).astype(np.float16)
    y = np.from_dlpack(layer.prepare(x="bfloat16").matmul(x))
    both = np.from_dlpack(layer.prepare().matmul(x))
    assert y.dtype == np.float16 and np.allclose(y, both, atol=0.05)


def test_one_of_stacked_experts():
    layer = layer_of("gguf_experts.gguf", "blk.0.ffn_down_exps")
    experts, rows, k = layer.shape
    weight = np.from_dlpack(layer.dequantise())
    assert weight.shape == (experts, rows, k)
    x = activation(3, k)
    prepared = layer.prepare()
    # The layer has a bias: that is the product of x = 0.
    products = [np.from_dlpack(prepared.matmul(x, expert=expert)) for expert in range(experts)]
    biases = [np.from_dlpack(prepared.matmul(0 * x, expert=expert)) for expert in range(experts)]
    for expert in range(experts):
        exact = x.astype(np.float64) @ weight[expert].astype(np.float64).T
        far = [np.abs(y - bias - exact).max() for y, bias in zip(products, biases)]
        assert np.argmin(far) == expert
