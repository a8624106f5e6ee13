"""IQ3_XXS: 64 codes of 8 bits, each a codebook entry of 4 magnitudes; 7 signs of 8 (read only).

    x[4i + j] = d * (0.5 + s[i / 8]) / 2 * +-GRID[q[i]][j]

Source: ggml, ``dequantize_row_iq3_xxs``.
"""

from __future__ import annotations

import numpy as np

from ..dtype import GGMLType
from .block import Blocks, BlockType, Floats, register
from .grids import flip, grid, with_eighth

DTYPE = np.dtype([("d", "<f2"), ("qs", "u1", (8, 8)), ("signs", "<u4", 8)])
_SEVENS = np.array([0, 7, 14, 21], np.uint32)


def dequantize_blocks(blocks: Blocks) -> Floats:
    """Blocks [n] -> float32 [n, 256]."""
    signs = blocks["signs"]
    scale = np.float32(0.5) + (signs >> np.uint32(28)).astype(np.float32)
    d = blocks["d"].astype(np.float32)[:, None] * scale * np.float32(0.5)
    values = d[:, :, None, None] * grid(GGMLType.IQ3_XXS)[blocks["qs"]]  # [n, 8, 8, 4]
    values = values.reshape(-1, 8, 4, 8)
    return flip(values, with_eighth(signs[:, :, None] >> _SEVENS)).reshape(-1, 256)


IQ3_XXS = register(BlockType(GGMLType.IQ3_XXS, DTYPE, None, dequantize_blocks))
