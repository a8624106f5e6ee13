"""IQ2_XXS: 32 codes of 8 bits, each a codebook entry of 8 magnitudes with 7 signs (read only).

    x[8i + j] = d * (0.5 + s[i / 4]) / 4 * +-GRID[q[i]][j]

Source: ggml, ``dequantize_row_iq2_xxs``.
"""

from __future__ import annotations

import numpy as np

from ..dtype import GGMLType
from .block import Blocks
from .grids import (
    SEVENS,
    TWO_BITS,
    Codebook,
    Split,
    register_codebook,
    signed,
    signs_and_scale,
    unsigned,
    with_eighth,
)

# Of each 32 elements four codes, then four times 7 signs and a scale of 4 bits.
DTYPE = np.dtype([("d", "<f2"), ("qs", [("code", "u1", 4), ("signs", "<u4")], 8)])


def split(blocks: Blocks) -> Split:
    """Blocks [n] -> their parts, 8 steps each."""
    word = blocks["qs"]["signs"]
    signs = with_eighth(word[:, :, None] >> SEVENS)
    codes = signed(GGMLType.IQ2_XXS, blocks["qs"]["code"], signs)
    return Split(blocks["d"], 2 * (word >> 28) + 1, codes)


def join(parts: Split) -> Blocks:
    """The inverse of ``split``."""
    entry, signs = unsigned(GGMLType.IQ2_XXS, parts.codes)
    blocks = np.empty(len(entry), DTYPE)
    blocks["d"] = parts.d
    blocks["qs"]["code"] = entry.reshape(-1, 8, 4)
    blocks["qs"]["signs"] = signs_and_scale(signs, parts.steps)
    return blocks


IQ2_XXS = register_codebook(Codebook(GGMLType.IQ2_XXS, DTYPE, TWO_BITS, 32, 1 / 8, split, join))
