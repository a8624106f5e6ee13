"""IQ2_XS: 32 codes of 9 bits, each a codebook entry of 8 magnitudes, with 7 signs (read only).

    x[8i + j] = d * (0.5 + s[i / 2]) / 4 * +-GRID[q[i]][j]

Source: ggml, ``dequantize_row_iq2_xs``.
"""

from __future__ import annotations

import numpy as np

from ..dtype import GGMLType
from .block import Blocks
from .grids import (
    TWO_BITS,
    Codebook,
    Split,
    nibbles,
    packed_nibbles,
    register_codebook,
    signed,
    unsigned,
    with_eighth,
)

DTYPE = np.dtype([("d", "<f2"), ("qs", "<u2", 32), ("scales", "u1", 8)])


def split(blocks: Blocks) -> Split:
    """Blocks [n] -> their parts, 16 steps each."""
    codes = signed(GGMLType.IQ2_XS, blocks["qs"] & 511, with_eighth(blocks["qs"] >> 9))
    return Split(blocks["d"], 2 * nibbles(blocks["scales"]) + 1, codes)


def join(parts: Split) -> Blocks:
    """The inverse of ``split``."""
    entry, signs = unsigned(GGMLType.IQ2_XS, parts.codes)
    blocks = np.empty(len(entry), DTYPE)
    blocks["d"], blocks["scales"] = parts.d, packed_nibbles(parts.steps >> 1)
    blocks["qs"] = entry | (signs & np.int64(127)) << 9
    return blocks


IQ2_XS = register_codebook(Codebook(GGMLType.IQ2_XS, DTYPE, TWO_BITS, 16, 1 / 8, split, join))
