"""IQ2_S: 32 codes of 10 bits, each a codebook entry of 8 magnitudes, with 8 signs (read only).

    x[8i + j] = d * (0.5 + s[i / 2]) / 4 * +-GRID[q[i]][j]

Source: ggml, ``dequantize_row_iq2_s``.
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
)

DTYPE = np.dtype(
    [("d", "<f2"), ("qs", "u1", 32), ("signs", "u1", 32), ("qh", "u1", 8), ("scales", "u1", 8)]
)
_PAIRS = np.array([0, 2, 4, 6], np.uint8)


def split(blocks: Blocks) -> Split:
    """Blocks [n] -> their parts, 16 steps each."""
    high = (blocks["qh"][:, :, None] >> _PAIRS & 3).reshape(-1, 32)
    codes = signed(GGMLType.IQ2_S, blocks["qs"] | high.astype(np.uint16) << 8, blocks["signs"])
    return Split(blocks["d"], 2 * nibbles(blocks["scales"]) + 1, codes)


def join(parts: Split) -> Blocks:
    """The inverse of ``split``."""
    entry, signs = unsigned(GGMLType.IQ2_S, parts.codes)
    blocks = np.empty(len(entry), DTYPE)
    blocks["d"], blocks["scales"] = parts.d, packed_nibbles(parts.steps >> 1)
    blocks["qs"], blocks["signs"] = entry & 255, signs
    blocks["qh"] = np.bitwise_or.reduce((entry >> 8).reshape(-1, 8, 4) << _PAIRS, axis=2)
    return blocks


IQ2_S = register_codebook(Codebook(GGMLType.IQ2_S, DTYPE, TWO_BITS, 16, 1 / 8, split, join))
