"""TQ2_0: 256 codes of 2 bits (-1, 0 and 1) with one scale.

    x[j] = d * (q[j] - 1)

Of each 128 elements, byte i holds those at i, 32 + i, 64 + i and 96 + i, low bits first.
Source: ggml, ``quantize_row_tq2_0_ref``.
"""

from __future__ import annotations

import numpy as np

from ..dtype import GGMLType
from .block import Blocks, BlockType, Floats, register
from .ternary import ternary

DTYPE = np.dtype([("qs", "u1", (2, 32)), ("d", "<f2")])
_SHIFTS = np.array([[0], [2], [4], [6]], np.uint8)


def quantize_blocks(x: Floats, weights: Floats | None = None) -> Blocks:
    """float32 [n, 256] -> blocks [n]; importance weights change nothing."""
    blocks = np.empty(len(x), DTYPE)
    d, codes = ternary(x)
    blocks["d"] = d
    blocks["qs"] = np.bitwise_or.reduce(codes.reshape(-1, 2, 4, 32) << _SHIFTS, axis=2)
    return blocks


def dequantize_blocks(blocks: Blocks) -> Floats:
    """Blocks [n] -> float32 [n, 256]."""
    q = blocks["qs"][:, :, None] >> _SHIFTS & np.uint8(3)  # [n, 2, 4, 32]
    values = q.reshape(-1, 256).astype(np.float32) - np.float32(1)
    out: Floats = blocks["d"].astype(np.float32)[:, None] * values
    return out


TQ2_0 = register(BlockType(GGMLType.TQ2_0, DTYPE, quantize_blocks, dequantize_blocks))
