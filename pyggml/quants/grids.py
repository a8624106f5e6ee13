"""Codebooks of the IQ formats, and the signs beside them.

    grid(GGMLType.IQ2_XXS)[i]                      # entry i of the codebook: 8 magnitudes
    flip(magnitudes, sign_bytes)                   # bit j of a byte: element j is negative

The codebooks come from the ``gguf`` package, when they are first used.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ..dtype import GGMLType
from .block import Floats

_BITS = np.arange(8, dtype=np.uint8)


@cache
def grid(type: GGMLType) -> Floats:
    """The codebook of a format, float32 [n, 8] (of the IQ3 formats [n, 4]); do not write to it."""
    from gguf import quants

    source: Any = getattr(quants, type.name)
    source.init_grid()
    out: Floats = source.grid[0, 0]
    return out


def with_eighth(seven: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint8]:
    """Seven sign bits as eight: the last makes their number even."""
    seven = seven.astype(np.uint8) & np.uint8(127)
    odd = np.bitwise_count(seven) & np.uint8(1)
    return seven | odd << np.uint8(7)


def flip(magnitudes: Floats, signs: npt.NDArray[np.uint8]) -> Floats:
    """Magnitudes [..., 8] with the signs [...] of a byte each."""
    minus = signs[..., None] >> _BITS & np.uint8(1)
    return np.where(minus, -magnitudes, magnitudes)


def nibbles(packed: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Bytes [n, m] as their halves [n, 2 * m], the low one first."""
    return np.stack([packed & np.uint8(15), packed >> np.uint8(4)], axis=2).reshape(len(packed), -1)
