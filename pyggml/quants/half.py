"""F16 and BF16: the formats without blocks, rounded to the nearest even.

bf16_from_float(np.float32([1.0]))             # uint16 bits: the top half of the float32
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .block import Floats


def f16_from_float(x: Floats) -> npt.NDArray[np.float16]:
    """float32 -> float16; what is too large becomes infinity."""
    with np.errstate(over="ignore"):
        return x.astype(np.float16)


def bf16_from_float(x: Floats) -> npt.NDArray[np.uint16]:
    """float32 -> bits of bfloat16 (NaN becomes a quiet one)."""
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (u.astype(np.uint64) + 0x7FFF + ((u >> 16) & 1)) >> 16
    quiet = (u >> 16) | 64
    return np.where(np.isnan(x), quiet, rounded).astype(np.uint16)


def bf16_to_float(bits: npt.NDArray[np.uint16]) -> Floats:
    """Bits of bfloat16 -> float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
