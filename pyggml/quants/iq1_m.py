"""IQ1_M: 32 codes of 11 bits, each an entry of IQ1_S' codebook (read only).

    x[8i + j] = d * (2 * s[i / 2] + 1) * (GRID[q[i]][j] +- 1/8)

The scale d, a float16, is spread over the top four bits of the four words of scales.
Source: ggml, ``dequantize_row_iq1_m``.
"""

from __future__ import annotations

import numpy as np

from ..dtype import GGMLType
from .block import Blocks, BlockType, Floats, register
from .grids import grid
from .iq1_s import DELTA

# Of each 16 elements a byte of ``qh``: twice the high bits of a code and a sign.
DTYPE = np.dtype([("qs", "u1", 32), ("qh", "u1", 16), ("scales", "<u2", 4)])
_NIBBLES = np.array([0, 4], np.uint8)
_THREES = np.array([0, 3, 6, 9], np.uint16)
_PARTS = np.array([12, 8, 4, 0], np.uint16)


def dequantize_blocks(blocks: Blocks) -> Floats:
    """Blocks [n] -> float32 [n, 256]."""
    words = blocks["scales"]
    d = np.bitwise_or.reduce((words & np.uint16(0xF000)) >> _PARTS, axis=1).view(np.float16)
    steps = (words[:, :, None] >> _THREES & np.uint16(7)).reshape(-1, 16)
    scale = d.astype(np.float32)[:, None] * (2 * steps + 1).astype(np.float32)  # [n, 16]
    high = (blocks["qh"][:, :, None] >> _NIBBLES & np.uint8(15)).reshape(-1, 32)
    delta = np.where(high & np.uint8(8), -DELTA, DELTA)
    code = blocks["qs"] | (high & np.uint8(7)).astype(np.uint16) << np.uint16(8)
    values = grid(GGMLType.IQ1_M)[code] + delta[:, :, None]  # [n, 32, 8]
    out: Floats = scale.repeat(2, axis=1)[:, :, None] * values
    return out.reshape(-1, 256)


IQ1_M = register(BlockType(GGMLType.IQ1_M, DTYPE, None, dequantize_blocks))
