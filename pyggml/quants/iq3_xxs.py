"""IQ3_XXS: 64 codes of 8 bits, each a codebook entry of 4 magnitudes; 7 signs of 8 (read only).

    x[4i + j] = d * (0.5 + s[i / 8]) / 2 * +-GRID[q[i]][j]

Source: ggml, ``dequantize_row_iq3_xxs``.
"""

from __future__ import annotations

import numpy as np

from ..dtype import GGMLType
from .block import Blocks
from .grids import (
    SEVENS,
    Codebook,
    Split,
    register_codebook,
    signed,
    signs_and_scale,
    unsigned,
    with_eighth,
)

VALUES = (4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62)
DTYPE = np.dtype([("d", "<f2"), ("qs", "u1", 64), ("signs", "<u4", 8)])


def split(blocks: Blocks) -> Split:
    """Blocks [n] -> their parts, 8 steps each."""
    word = blocks["signs"]
    codes = signed(GGMLType.IQ3_XXS, blocks["qs"], with_eighth(word[:, :, None] >> SEVENS))
    return Split(blocks["d"], 2 * (word >> 28) + 1, codes)


def join(parts: Split) -> Blocks:
    """The inverse of ``split``."""
    entry, signs = unsigned(GGMLType.IQ3_XXS, parts.codes)
    blocks = np.empty(len(entry), DTYPE)
    blocks["d"], blocks["qs"] = parts.d, entry
    blocks["signs"] = signs_and_scale(signs, parts.steps)
    return blocks


IQ3_XXS = register_codebook(Codebook(GGMLType.IQ3_XXS, DTYPE, VALUES, 32, 1 / 4, split, join))
