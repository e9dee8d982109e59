"""What is refused, and with which words."""

import jax.numpy as jnp
import numpy as np
import pytest

import quantloom
from exporter import Exporter
from test_products import FLOATS, GOLDEN, activation, layer_of


@pytest.fixture(scope="module")
def layer():
    return layer_of(FLOATS[0])


@pytest.fixture(scope="module")
def prepared(layer):
    return layer.prepare()


def test_a_capsule_is_taken_once(layer, prepared):
    x = activation(1, layer.shape[1])
    capsule = x.__dlpack__()
    prepared.matmul(capsule)
    with pytest.raises(ValueError, match="already been consumed"):
        prepared.matmul(capsule)

    class Again:
        """Exports one capsule again and again."""

        def __init__(self, tensor):
            self.capsule = tensor.__dlpack__(max_version=(1, 0))

        def __dlpack__(self, **_):
            return self.capsule

        def __dlpack_device__(self):
            return (1, 0)

    # One of y is taken once too, by numpy.
    y = Again(prepared.matmul(x))
    np.from_dlpack(y)
    with pytest.raises(Exception):
        np.from_dlpack(y)
    with pytest.raises(ValueError, match="already been consumed"):
        prepared.matmul(y)


def test_wrong_shapes(layer, prepared):
    k = layer.shape[1]
    with pytest.raises(ValueError, match=f"x has {k - 1} columns, the weight has K = {k}"):
        prepared.matmul(np.zeros((2, k - 1), np.float32))
    with pytest.raises(ValueError, match=r"x has 1 dimensions; a product takes 2, \[M, K\]"):
        prepared.matmul(np.zeros(k, np.float32))
    with pytest.raises(ValueError, match="x has 3 dimensions"):
        prepared.matmul(np.zeros((1, 1, k), np.float32))
    with pytest.raises(ValueError, match="not next to one another"):
        prepared.matmul(np.zeros((k, 3), np.float32).T)
    with pytest.raises(ValueError, match="not next to one another"):
        prepared.matmul(np.zeros((3, 2 * k), np.float32)[:, ::2])
    with pytest.raises(ValueError, match="or rows overlap"):
        prepared.matmul(np.zeros((3, k), np.float32)[::-1])
    with pytest.raises(ValueError, match="or rows overlap"):
        prepared.matmul(np.broadcast_to(np.zeros(k, np.float32), (3, k)))


def test_wrong_types(layer, prepared):
    k = layer.shape[1]
    for dtype in ("float64", "int8", "uint16", "int32", "complex64", "bool"):
        with pytest.raises(TypeError, match=f"x is in {dtype}; a product takes float32, float16 or bfloat16"):
            prepared.matmul(np.zeros((1, k), dtype))
    with pytest.raises(TypeError, match="x is of type list, which has no __dlpack__"):
        prepared.matmul([[0.0] * k])
    with pytest.raises(TypeError, match="x is in int32"):
        prepared.matmul(jnp.zeros((1, k), jnp.int32))


def test_an_x_that_is_not_in_host_memory(layer, prepared):
    class OnAGpu:
        def __init__(self):
            self.array = activation(1, layer.shape[1])

        def __dlpack__(self, **_):
            raise AssertionError("its memory is asked for")

        def __dlpack_device__(self):
            return (2, 3)

    with pytest.raises(ValueError, match="x is on device 3 of DLPack's kind 2; a product takes x in host memory"):
        prepared.matmul(OnAGpu())


def test_a_producer_that_fails_says_why(prepared):
    class Fails:
        def __dlpack__(self, **_):
            raise RuntimeError("no memory today")

        def __dlpack_device__(self):
            return (1, 0)

    with pytest.raises(RuntimeError, match="no memory today"):
        prepared.matmul(Fails())


def test_exporters_that_contradict_themselves(layer, prepared):
    k = layer.shape[1]
    room = np.zeros(4 * k, np.float32)
    address = room.ctypes.data
    for exporter, why in (
        (Exporter(address + 2, (1, k)), "an address that is not a multiple of its element's 4 bytes"),
        (Exporter(address, (1, k), offset=1), "an address that is not a multiple of its element's 4 bytes"),
        (Exporter(None, (1, k)), "no address"),
        (Exporter(address, (-1, k)), "is negative"),
        (Exporter(address, (2**62, k)), "overflow|larger than the memory"),
        (Exporter(address, (3, k), strides=(2**61, 1)), "larger than the memory"),
    ):
        with pytest.raises(ValueError, match=why):
            prepared.matmul(exporter)
        assert exporter.given_back == 1
    for exporter in (Exporter(address, (1, k), lanes=4), Exporter(address, (1, k), bits=64)):
        with pytest.raises(TypeError, match="x is in float"):
            prepared.matmul(exporter)
        assert exporter.given_back == 1


def test_files(tmp_path):
    with pytest.raises(FileNotFoundError, match="cannot read .*nothing.safetensors"):
        quantloom.open(tmp_path / "nothing.safetensors")
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"\x10\0\0\0\0\0\0\0not a header....")
    with pytest.raises(quantloom.QuantloomError, match="is not a valid safetensors file"):
        quantloom.open(broken)


def test_layers_and_devices():
    checkpoint = quantloom.open(GOLDEN / FLOATS[0])
    with pytest.raises(quantloom.QuantloomError, match='there is no quantised layer "lm_head"; there are: layer'):
        checkpoint.layer("lm_head")
    layer = checkpoint.layer("layer")
    with pytest.raises(quantloom.QuantloomError, match="tpu"):
        layer.prepare("tpu")
    with pytest.raises(quantloom.QuantloomError, match="sm_1"):
        layer.prepare("sim:sm_1")
    with pytest.raises(ValueError, match='x is one of float32, float16, bfloat16, not "bf16"'):
        layer.prepare(x="bf16")
    with pytest.raises(ValueError, match="does not list x in float32"):
        layer.prepare(x="float32")
    with pytest.raises(ValueError, match='accuracy is "fast" or "exact", not "best"'):
        layer.explain(accuracy="best")


def test_stacked_experts():
    prepared = layer_of("gguf_experts.gguf", "blk.0.ffn_down_exps").prepare()
    experts, _, k = prepared.shape
    x = activation(1, k)
    with pytest.raises(ValueError, match=f"stacks {experts} experts, and the call names none"):
        prepared.matmul(x)
    with pytest.raises(ValueError, match=f"there is no expert {experts}"):
        prepared.matmul(x, expert=experts)


def test_an_x_that_is_quantised_is_finite():
    layer = layer_of("ct_w8a8.safetensors")
    x = activation(2, layer.shape[1])
    x[1, 3] = np.nan
    with pytest.raises(quantloom.QuantloomError, match=r"x\[1, 3\] is NaN"):
        layer.prepare().matmul(x)


def test_copies_are_for_the_consumer_to_make(layer, prepared):
    y = prepared.matmul(activation(1, layer.shape[1]))
    with pytest.raises(BufferError):
        y.__dlpack__(copy=True)
    with pytest.raises(BufferError):
        y.__dlpack__(dl_device=(2, 0))
