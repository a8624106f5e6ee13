"""IQ2_XS: 32 codes of 9 bits, each a codebook entry of 8 magnitudes, with 7 signs (read only).

    x[8i + j] = d * (0.5 + s[i / 2]) / 4 * +-GRID[q[i]][j]

Source: ggml, ``dequantize_row_iq2_xs``.
"""

from __future__ import annotations

import numpy as np

from ..dtype import GGMLType
from .block import Blocks, BlockType, Floats, register
from .grids import flip, grid, nibbles, with_eighth

DTYPE = np.dtype([("d", "<f2"), ("qs", "<u2", 32), ("scales", "u1", 8)])


def dequantize_blocks(blocks: Blocks) -> Floats:
    """Blocks [n] -> float32 [n, 256]."""
    scale = np.float32(0.5) + nibbles(blocks["scales"]).astype(np.float32)
    d = blocks["d"].astype(np.float32)[:, None] * scale * np.float32(0.25)  # [n, 16]
    entries = grid(GGMLType.IQ2_XS)[blocks["qs"] & np.uint16(511)]
    values = d.repeat(2, axis=1)[:, :, None] * entries  # [n, 32, 8]
    return flip(values, with_eighth(blocks["qs"] >> np.uint16(9))).reshape(-1, 256)


IQ2_XS = register(BlockType(GGMLType.IQ2_XS, DTYPE, None, dequantize_blocks))
