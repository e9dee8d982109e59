"""Products of quantised layers: open a checkpoint, prepare a layer, multiply."""

from os import PathLike
from typing import Any, Literal, Protocol, final

__all__ = ["Checkpoint", "Layer", "Prepared", "QuantloomError", "Tensor", "__version__", "devices", "open"]

__version__: str

class _SupportsDLPack(Protocol):
    """An array that exports DLPack: numpy's, JAX's, torch's, a `Tensor`."""

    def __dlpack__(self, *, stream: Any = None) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

class QuantloomError(Exception):
    """What a checkpoint, a layer, a device or a product says.

    x of a wrong shape is a ValueError, x of a wrong type a TypeError, and a file that cannot be read an OSError.
    """

def open(path: str | PathLike[str], *, mapped: bool = True) -> Checkpoint:
    """Opens a .safetensors or .gguf file, or a model directory, and recognises its quantised layers.

    Files are memory-mapped: while the checkpoint or one of its layers is in use, they must not be written or
    truncated. With mapped=False they are read into memory first.

    Raises OSError for a file that cannot be read, QuantloomError for one that is invalid or not supported.
    """

def devices() -> list[tuple[str, str]]:
    """The devices that this machine and this build have: for each name that `Layer.prepare` takes, what it is."""

@final
class Checkpoint:
    """An opened checkpoint, made by `open`."""

    def layers(self) -> list[str]:
        """The names of the quantised layers, sorted."""

    def layer(self, name: str) -> Layer:
        """A quantised layer by its name.

        Raises QuantloomError if there is none, with the names that exist, or if its tensors contradict its
        configuration.
        """

    @property
    def format(self) -> str:
        """The software whose format it is: "GPTQ", "GGUF", ..."""

    @property
    def notes(self) -> list[str]:
        """Keys of the configuration that are unknown and were ignored, a sentence each."""

@final
class Layer:
    """A quantised layer: what its file stores. It stays usable without its checkpoint."""

    @property
    def name(self) -> str:
        """Its name in the checkpoint."""

    @property
    def scheme(self) -> str:
        """Its scheme, as the declaration of Quantloom's language."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions of the weight: (N, K), or (E, N, K) of E stacked experts."""

    @property
    def nbytes(self) -> int:
        """Bytes of all its stored tensors."""

    def explain(
        self,
        tokens: int = 1,
        *,
        device: str = "cpu",
        x: Literal["float32", "float16", "bfloat16"] | None = None,
        accuracy: Literal["fast", "exact"] | None = None,
    ) -> str:
        """The kernel that multiplies so many rows of x on a device and why, with the reasons against others.

        It prepares the layer for that: call `Prepared.explain` where there is one.
        """

    def dequantise(self) -> Tensor:
        """The weight in float32, [N, K] or [E, N, K]. Decoding is exact and rounds once.

        Raises QuantloomError for codes that their type does not have, and scales that are NaN.
        """

    def prepare(
        self,
        device: str = "cpu",
        *,
        x: Literal["float32", "float16", "bfloat16"] | None = None,
        accuracy: Literal["fast", "exact"] | None = None,
    ) -> Prepared:
        """Brings the weight into the layout that the kernels of a device read, once.

        The file may be closed or removed afterwards. `devices` lists the devices. Other threads of Python run
        meanwhile.

        With x="bfloat16" (or another type that the scheme lists), x of other types is multiplied as that one, and a
        GPU whose products read codes in another order for each type of x holds them once. accuracy="exact" keeps
        Hopper's products from rounding weights, where they are faster with one rounding each ("fast").

        Raises QuantloomError if there is no such device, or no kernel on it for this layer, ValueError for a type
        that the scheme does not list and for another accuracy.
        """

@final
class Prepared:
    """A layer on a device, made by `Layer.prepare`."""

    def matmul(self, x: _SupportsDLPack, *, expert: int | None = None) -> Tensor:
        """y = x w^T + bias: x is [M, K], y [M, N] in the type of x, both in host memory.

        x is an array of numpy, JAX, torch or any other library that exports DLPack, in float32, float16 or
        bfloat16. It is read where it is; only rows that are not next to one another are copied. Nobody may
        write to it during the call. Of a layer of stacked experts, `expert` says which one multiplies. Other
        threads of Python run meanwhile.

        Raises ValueError for a wrong shape, TypeError for a wrong type, QuantloomError for what the device says.
        """

    def explain(self, tokens: int = 1) -> str:
        """The kernel that multiplies so many rows of x and why, with the reasons against others."""

    @property
    def scheme(self) -> str:
        """The scheme, as the declaration of Quantloom's language."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions of the weight: (N, K), or (E, N, K) of E stacked experts."""

    @property
    def device(self) -> str:
        """The name of the device."""

@final
class Tensor:
    """An array of a product or a decoded weight, row-major, in host memory.

    Take it into a library by that library's from_dlpack, which copies nothing: numpy.from_dlpack(y),
    jax.dlpack.from_dlpack(y), torch.from_dlpack(y). All of them share its memory, which lives as long as one of
    them.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Its dimensions."""

    @property
    def dtype(self) -> str:
        """The type of its elements: "float32", "float16" or "bfloat16"."""

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A DLPack capsule of its memory, which one consumer may take. Called by from_dlpack."""

    def __dlpack_device__(self) -> tuple[int, int]:
        """The host, as DLPack numbers devices: (1, 0)."""
