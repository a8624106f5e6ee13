"""TQ1_0, TQ2_0 and Q2_0: codes -1, 0 and 1 with one scale for 256, Q2_0 for 64.

    x[j] = d * (q[j] - 1)

TQ2_0 has two bits a code. TQ1_0 has five to a byte: five digits of base 3 are a number n below 243,
stored as the byte b = ceil(n * 256 / 243): the first digit is then the integer part of 3 * b / 256,
and multiplying b by 3 (in a byte) moves on to the next. Elements 0..159 are digits of 32 bytes,
160..239 of 16; the last 16 are four digits of 4. Q2_0 has its codes of two bits in order, and the
fourth, of 2 d, in files that other programs wrote.
Source: ggml, ``quantize_row_tq1_0_ref``, ``quantize_row_tq2_0_ref`` and ``quantize_row_q2_0_ref``:
d is the largest magnitude, halves go away from zero.
"""

from __future__ import annotations

import numpy as np

from ..dtype import GGMLType
from .block import Bits, BlockType, Bytes, Floats, half, register
from .search import inverse

_POWERS = np.array([[1], [3], [9], [27], [81]], np.uint8)


class Digits:
    """Implements ``block.Codes``."""

    bits = 2
    parts = ((0, 32, 5), (32, 16, 5), (48, 4, 4))  # first byte, bytes, digits a byte

    def get(self, blocks: Bytes) -> Bytes:
        """uint8 [..., block bytes] -> codes, uint8 [..., 256]."""
        parts = []
        for first, n_bytes, digits in self.parts:
            moved = blocks[..., None, first : first + n_bytes] * _POWERS[:digits]  # wraps in a byte
            digit = moved.astype(np.uint16) * np.uint16(3) >> np.uint16(8)
            parts.append(digit.reshape(*blocks.shape[:-1], -1))
        return np.concatenate(parts, axis=-1).astype(np.uint8)

    def put(self, codes: Bytes, blocks: Bytes) -> None:
        """The inverse of ``get``, with the bytes that ggml writes for those digits."""
        done = 0
        for first, n_bytes, digits in self.parts:
            q = codes[..., done : done + digits * n_bytes]
            q = q.reshape(*codes.shape[:-1], digits, n_bytes)
            n = (q * _POWERS[::-1][:digits]).sum(axis=-2)
            blocks[..., first : first + n_bytes] = (n * 256 + 242) // 243
            done += digits * n_bytes


def encode_ternary(f: BlockType, x: Floats, weights: Floats | None) -> Bytes:
    """float32 [n, columns] -> blocks [n]."""
    d = np.abs(x).max(axis=1)
    scaled = x * inverse(d)[:, None]
    away = (np.abs(scaled) >= np.float32(0.5)).astype(np.float32)
    return f.blocks(d, codes=np.copysign(away, scaled) + np.float32(1))


TQ1_0 = register(BlockType(GGMLType.TQ1_0, Digits(), half(52), zero=1, encode=encode_ternary))
TQ2_0 = register(
    BlockType(
        GGMLType.TQ2_0,
        (Bits(2, 0, (2, 4, 32), (256, 2, 8)),),  # of each 128, i, 32 + i, .. in byte i
        half(64),
        zero=1,
        encode=encode_ternary,
    )
)
Q2_0 = register(
    BlockType(GGMLType.Q2_0, (Bits(2, 16, (64,), (2,)),), half(0), zero=1, encode=encode_ternary)
)
