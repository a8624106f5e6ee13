"""TQ1_0: 256 codes -1, 0 and 1, five to a byte, with one scale.

    x[j] = d * (q[j] - 1)

Five digits of base 3 are a number n below 243, stored as the byte b = ceil(n * 256 / 243): the
first digit is then the integer part of 3 * b / 256, and multiplying b by 3 (in a byte) moves on to
the next. Elements 0..159 are digits of 32 bytes, 160..239 of 16; the last 16 are four digits of 4.
Source: ggml, ``quantize_row_tq1_0_ref``.
"""

from __future__ import annotations

import numpy as np

from ..dtype import GGMLType
from .block import Blocks, BlockType, Floats, register
from .ternary import Codes, ternary

DTYPE = np.dtype([("qs", "u1", 48), ("qh", "u1", 4), ("d", "<f2")])
_POWERS = np.array([[1], [3], [9], [27], [81]], np.uint8)
PARTS = ((0, 32, 5), (32, 16, 5), (48, 4, 4))  # first byte, bytes, digits a byte


def quantize_blocks(x: Floats, weights: Floats | None = None) -> Blocks:
    """float32 [n, 256] -> blocks [n]; importance weights change nothing."""
    blocks = np.empty(len(x), DTYPE)
    d, codes = ternary(x)
    blocks["d"] = d
    packed = pack(codes)
    blocks["qs"], blocks["qh"] = packed[:, :48], packed[:, 48:]
    return blocks


def dequantize_blocks(blocks: Blocks) -> Floats:
    """Blocks [n] -> float32 [n, 256]."""
    values = unpack(np.hstack([blocks["qs"], blocks["qh"]])).astype(np.float32) - np.float32(1)
    out: Floats = blocks["d"].astype(np.float32)[:, None] * values
    return out


def pack(codes: Codes) -> Codes:
    """Codes 0, 1 and 2, uint8[..., 256], as bytes, uint8[..., 52]."""
    parts, done = [], 0
    for _, n_bytes, digits in PARTS:
        q = codes[..., done : done + digits * n_bytes].reshape(*codes.shape[:-1], digits, n_bytes)
        n = (q * _POWERS[::-1][:digits]).sum(axis=-2)
        parts.append((n * 256 + 242) // 243)
        done += digits * n_bytes
    return np.concatenate(parts, axis=-1).astype(np.uint8)


def unpack(blocks: Codes) -> Codes:
    """The inverse of ``pack``, of blocks whose first 52 bytes these are."""
    parts = []
    for first, n_bytes, digits in PARTS:
        moved = blocks[..., None, first : first + n_bytes] * _POWERS[:digits]  # wraps in a byte
        digit = moved.astype(np.uint16) * np.uint16(3) >> np.uint16(8)
        parts.append(digit.reshape(*blocks.shape[:-1], -1))
    return np.concatenate(parts, axis=-1).astype(np.uint8)


TQ1_0 = register(BlockType(GGMLType.TQ1_0, DTYPE, quantize_blocks, dequantize_blocks))
