"""IQ1_M: 32 codes of 11 bits, each an entry of IQ1_S' codebook (read only).

    x[8i + j] = d * (2 * s[i / 2] + 1) * (GRID[q[i]][j] +- 1/8)

The scale d, a float16, is spread over the top four bits of the four words of scales.
Source: ggml, ``dequantize_row_iq1_m``.
"""

from __future__ import annotations

import numpy as np

from ..dtype import GGMLType
from .block import Blocks
from .grids import (
    THREES,
    Codebook,
    Split,
    nibbles,
    packed_nibbles,
    register_codebook,
    signed,
    unsigned,
)
from .iq1_s import VALUES

# Of each 16 elements a byte of ``qh``: twice the high bits of a code and a sign.
DTYPE = np.dtype([("qs", "u1", 32), ("qh", "u1", 16), ("scales", "<u2", 4)])
_PARTS = np.array([12, 8, 4, 0], np.uint16)


def split(blocks: Blocks) -> Split:
    """Blocks [n] -> their parts, 16 steps each."""
    words, high = blocks["scales"], nibbles(blocks["qh"])
    d = np.bitwise_or.reduce((words & np.uint16(0xF000)) >> _PARTS, axis=1).view(np.float16)
    steps = (words[:, :, None] >> THREES & np.uint16(7)).reshape(-1, 16)
    entry = blocks["qs"] | (high & np.uint16(7)) << 8
    return Split(d, 2 * steps + 1, signed(GGMLType.IQ1_M, entry, (high >> 3) * 255))


def join(parts: Split) -> Blocks:
    """The inverse of ``split``."""
    entry, signs = unsigned(GGMLType.IQ1_M, parts.codes)
    blocks = np.empty(len(entry), DTYPE)
    steps = (parts.steps >> 1).astype(np.uint16).reshape(-1, 4, 4) << THREES
    d = parts.d.view(np.uint16)[:, None] << _PARTS & np.uint16(0xF000)
    blocks["scales"] = np.bitwise_or.reduce(steps, axis=2) | d
    blocks["qs"], blocks["qh"] = entry & 255, packed_nibbles(entry >> 8 | (signs & 1) << 3)
    return blocks


IQ1_M = register_codebook(Codebook(GGMLType.IQ1_M, DTYPE, VALUES, 16, 1 / 8, split, join))
