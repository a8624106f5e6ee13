"""IQ1_S: 32 codes of 11 bits, each a codebook entry of 8 times -1, 0 or 1 (read only).

    x[8i + j] = d * (2 * s[i / 4] + 1) * (GRID[q[i]][j] +- 1/8)

Source: ggml, ``dequantize_row_iq1_s``.
"""

from __future__ import annotations

import numpy as np

from ..dtype import GGMLType
from .block import Blocks, BlockType, Floats, register
from .grids import grid

# Of each 32 elements: high bits of four codes, a scale of 3 bits, a sign.
DTYPE = np.dtype([("d", "<f2"), ("qs", "u1", (8, 4)), ("qh", "<u2", 8)])
DELTA = np.float32(0.125)
_THREES = np.array([0, 3, 6, 9], np.uint16)


def dequantize_blocks(blocks: Blocks) -> Floats:
    """Blocks [n] -> float32 [n, 256]."""
    qh = blocks["qh"]
    scale = np.uint16(2) * (qh >> np.uint16(12) & np.uint16(7)) + np.uint16(1)
    d = blocks["d"].astype(np.float32)[:, None] * scale.astype(np.float32)  # [n, 8]
    delta = np.where(qh & np.uint16(0x8000), -DELTA, DELTA)
    high = qh[:, :, None] >> _THREES & np.uint16(7)
    entries = grid(GGMLType.IQ1_S)[blocks["qs"] | high << np.uint16(8)]  # [n, 8, 4, 8]
    out: Floats = d[:, :, None, None] * (entries + delta[:, :, None, None])
    return out.reshape(-1, 256)


IQ1_S = register(BlockType(GGMLType.IQ1_S, DTYPE, None, dequantize_blocks))
