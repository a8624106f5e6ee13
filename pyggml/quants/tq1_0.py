"""TQ1_0: 256 codes -1, 0 and 1, five to a byte, with one scale.

    x[j] = d * (q[j] - 1)

Five digits of base 3 are a number n below 243, stored as the byte b = ceil(n * 256 / 243): the
first digit is then the integer part of 3 * b / 256, and multiplying b by 3 (in a byte) moves on to
the next. Elements 0..159 are digits of 32 bytes, 160..239 of 16; the last 16 are four digits of 4.
Source: ggml, ``quantize_row_tq1_0_ref``.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ..dtype import GGMLType
from .block import Blocks, BlockType, Floats, register
from .ternary import ternary

DTYPE = np.dtype([("qs", "u1", 48), ("qh", "u1", 4), ("d", "<f2")])
_POWERS = np.array([[1], [3], [9], [27], [81]], np.uint8)
# (first element, digits a byte, field, bytes)
_PARTS = ((0, 5, "qs", slice(0, 32)), (160, 5, "qs", slice(32, 48)), (240, 4, "qh", slice(0, 4)))


def quantize_blocks(x: Floats, weights: Floats | None = None) -> Blocks:
    """float32 [n, 256] -> blocks [n]; importance weights change nothing."""
    blocks = np.empty(len(x), DTYPE)
    d, codes = ternary(x)
    blocks["d"] = d
    for first, digits, field, part in _PARTS:
        n_bytes = part.stop - part.start
        q = codes[:, first : first + digits * n_bytes].reshape(-1, digits, n_bytes)
        n = (q * _POWERS[::-1][:digits]).sum(axis=1)
        blocks[field][:, part] = (n * 256 + 242) // 243
    return blocks


def dequantize_blocks(blocks: Blocks) -> Floats:
    """Blocks [n] -> float32 [n, 256]."""
    values = np.concatenate(list(_digits(blocks)), axis=1).astype(np.float32) - np.float32(1)
    out: Floats = blocks["d"].astype(np.float32)[:, None] * values
    return out


def _digits(blocks: Blocks) -> Iterator[npt.NDArray[np.uint16]]:
    for _, digits, field, part in _PARTS:
        moved = blocks[field][:, None, part] * _POWERS[:digits]  # wraps around in a byte
        digit = moved.astype(np.uint16) * np.uint16(3) >> np.uint16(8)
        yield digit.reshape(len(blocks), -1)


TQ1_0 = register(BlockType(GGMLType.TQ1_0, DTYPE, quantize_blocks, dequantize_blocks))
