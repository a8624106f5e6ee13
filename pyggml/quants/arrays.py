"""The backend's codec for whole arrays, on all threads; the registry of backends installs it.

    codec = array_codec()                          # the CPU backend's, or None
    blocks = codec.encode(rows, GGMLType.Q4_K, None, None)

Kernels are on a higher floor than formats, so formats cannot import them: the registry of backends
passes a function that loads the codec. Small arrays are converted by NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ..dtype import GGMLType
from .block import Bytes, Floats


class ArrayCodec(Protocol):
    """Encodes and decodes arrays, with the bits of the reference."""

    def encode(
        self, x: Floats, type: GGMLType, imatrix: Floats | None, n_threads: int | None
    ) -> Bytes:
        """Rows [n_rows, n] -> uint8 [n_rows, row bytes]. Raises: ComputeError: NaN or infinity."""
        ...

    def decode(self, blocks: Bytes, type: GGMLType, n_threads: int | None) -> Floats:
        """Bytes of blocks -> float32, flat."""
        ...


_load: Callable[[], ArrayCodec] | None = None


def plug_array_codec(load: Callable[[], ArrayCodec]) -> None:
    """Set the function that loads the codec."""
    global _load
    _load = load


def array_codec() -> ArrayCodec | None:
    """The installed codec, loaded at the first call; None if there is none."""
    return None if _load is None else _load()
