"""IQ3_XXS: 64 codes of 8 bits, each a codebook entry of 4 magnitudes; 7 signs of 8 (read only).

    x[4i + j] = d * (0.5 + s[i / 8]) / 2 * +-GRID[q[i]][j]

Source: ggml, ``dequantize_row_iq3_xxs``.
"""

from __future__ import annotations

import numpy as np

from ..dtype import GGMLType
from .block import Blocks
from .grids import THREE_BITS, Split, codebook, signed, unsigned, with_eighth

DTYPE = np.dtype([("d", "<f2"), ("qs", "u1", 64), ("signs", "<u4", 8)])
_SEVENS = np.array([0, 7, 14, 21], np.uint32)


def split(blocks: Blocks) -> Split:
    """Blocks [n] -> their parts, 8 steps each."""
    word = blocks["signs"]
    codes = signed(GGMLType.IQ3_XXS, blocks["qs"], with_eighth(word[:, :, None] >> _SEVENS))
    return Split(blocks["d"], 2 * (word >> 28) + 1, codes)


def join(parts: Split) -> Blocks:
    """The inverse of ``split``."""
    entry, signs = unsigned(GGMLType.IQ3_XXS, parts.codes)
    sevens = (signs.reshape(-1, 8, 4) & np.uint32(127)) << _SEVENS
    scale = parts.steps.astype(np.uint32) >> 1 << 28
    blocks = np.empty(len(entry), DTYPE)
    blocks["d"], blocks["qs"] = parts.d, entry
    blocks["signs"] = np.bitwise_or.reduce(sevens, axis=2) | scale
    return blocks


IQ3_XXS = codebook(GGMLType.IQ3_XXS, DTYPE, THREE_BITS, 32, 1 / 4, split, join)
