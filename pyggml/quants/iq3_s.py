"""IQ3_S: 64 codes of 9 bits, each a codebook entry of 4 magnitudes, with all signs (read only).

    x[4i + j] = d * (1 + 2 * s[i / 8]) * +-GRID[q[i]][j]

Source: ggml, ``dequantize_row_iq3_s``.
"""

from __future__ import annotations

import numpy as np

from ..dtype import GGMLType
from .block import Blocks, BlockType, Floats, register
from .grids import flip, grid, nibbles

DTYPE = np.dtype(
    [("d", "<f2"), ("qs", "u1", (8, 8)), ("qh", "u1", 8), ("signs", "u1", 32), ("scales", "u1", 4)]
)
_BITS = np.arange(8, dtype=np.uint8)


def dequantize_blocks(blocks: Blocks) -> Floats:
    """Blocks [n] -> float32 [n, 256]."""
    scale = np.float32(1) + np.float32(2) * nibbles(blocks["scales"]).astype(np.float32)
    d = blocks["d"].astype(np.float32)[:, None] * scale  # [n, 8]
    high = (blocks["qh"][:, :, None] >> _BITS & np.uint8(1)).astype(np.uint16)
    entries = grid(GGMLType.IQ3_S)[blocks["qs"] | high << np.uint16(8)]
    values = d[:, :, None, None] * entries  # [n, 8, 8, 4]
    return flip(values.reshape(-1, 32, 8), blocks["signs"]).reshape(-1, 256)


IQ3_S = register(BlockType(GGMLType.IQ3_S, DTYPE, None, dequantize_blocks))
