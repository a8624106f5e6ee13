"""Whole arrays on all threads: who does it is plugged in from above.

    codec = array_codec()                          # the CPU backend's, or None
    blocks = codec.encode(rows, GGMLType.Q4_K, None, None)

Kernels live on a higher floor than formats. The registry of backends says here what to load when an
array is large enough to be worth compiling for; NumPy's functions are for the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ..dtype import GGMLType
from .block import Bytes, Floats


class ArrayCodec(Protocol):
    """Encodes and decodes arrays, bit for bit as the reference."""

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
    """Say what ``array_codec`` loads."""
    global _load
    _load = load


def array_codec() -> ArrayCodec | None:
    """The codec that is plugged in, loaded when it is asked for."""
    return None if _load is None else _load()
