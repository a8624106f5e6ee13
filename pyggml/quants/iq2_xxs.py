"""IQ2_XXS: 32 codes of 8 bits, each a codebook entry of 8 magnitudes with 7 signs (read only).

    x[8i + j] = d * (0.5 + s[i / 4]) / 4 * +-GRID[q[i]][j]

Source: ggml, ``dequantize_row_iq2_xxs``.
"""

from __future__ import annotations

import numpy as np

from ..dtype import GGMLType
from .block import Blocks, BlockType, Floats, register
from .grids import flip, grid, with_eighth

# Of each 32 elements four codes, then four times 7 signs and a scale of 4 bits.
DTYPE = np.dtype([("d", "<f2"), ("qs", [("code", "u1", 4), ("signs", "<u4")], 8)])
_SEVENS = np.array([0, 7, 14, 21], np.uint32)


def dequantize_blocks(blocks: Blocks) -> Floats:
    """Blocks [n] -> float32 [n, 256]."""
    code, signs = blocks["qs"]["code"], blocks["qs"]["signs"]
    scale = np.float32(0.5) + (signs >> np.uint32(28)).astype(np.float32)
    d = blocks["d"].astype(np.float32)[:, None] * scale * np.float32(0.25)
    values = d[:, :, None, None] * grid(GGMLType.IQ2_XXS)[code]  # [n, 8, 4, 8]
    return flip(values, with_eighth(signs[:, :, None] >> _SEVENS)).reshape(-1, 256)


IQ2_XXS = register(BlockType(GGMLType.IQ2_XXS, DTYPE, None, dequantize_blocks))
