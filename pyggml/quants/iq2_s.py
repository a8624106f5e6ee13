"""IQ2_S: 32 codes of 10 bits, each a codebook entry of 8 magnitudes, with 8 signs (read only).

    x[8i + j] = d * (0.5 + s[i / 2]) / 4 * +-GRID[q[i]][j]

Source: ggml, ``dequantize_row_iq2_s``.
"""

from __future__ import annotations

import numpy as np

from ..dtype import GGMLType
from .block import Blocks, BlockType, Floats, register
from .grids import flip, grid, nibbles

DTYPE = np.dtype(
    [("d", "<f2"), ("qs", "u1", 32), ("signs", "u1", 32), ("qh", "u1", 8), ("scales", "u1", 8)]
)
_PAIRS = np.array([0, 2, 4, 6], np.uint8)


def dequantize_blocks(blocks: Blocks) -> Floats:
    """Blocks [n] -> float32 [n, 256]."""
    scale = np.float32(0.5) + nibbles(blocks["scales"]).astype(np.float32)
    d = blocks["d"].astype(np.float32)[:, None] * scale * np.float32(0.25)  # [n, 16]
    high = (blocks["qh"][:, :, None] >> _PAIRS & np.uint8(3)).reshape(-1, 32)
    entries = grid(GGMLType.IQ2_S)[blocks["qs"] | high.astype(np.uint16) << np.uint16(8)]
    values = d.repeat(2, axis=1)[:, :, None] * entries  # [n, 32, 8]
    return flip(values, blocks["signs"]).reshape(-1, 256)


IQ2_S = register(BlockType(GGMLType.IQ2_S, DTYPE, None, dequantize_blocks))
