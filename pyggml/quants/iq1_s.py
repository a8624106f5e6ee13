"""IQ1_S: 32 codes of 11 bits, each a codebook entry of 8 times -1, 0 or 1 (read only).

    x[8i + j] = d * (2 * s[i / 4] + 1) * (GRID[q[i]][j] +- 1/8)

Source: ggml, ``dequantize_row_iq1_s``.
"""

from __future__ import annotations

import numpy as np

from ..dtype import GGMLType
from .block import Blocks
from .grids import THREES, Codebook, Split, register_codebook, signed, unsigned

# Of each 32 elements: high bits of four codes, a scale of 3 bits, a sign.
DTYPE = np.dtype([("d", "<f2"), ("qs", "u1", (8, 4)), ("qh", "<u2", 8)])
VALUES = (-7, 1, 9, 0, -9, -1, 7, 0)  # eighths, moved up and down


def split(blocks: Blocks) -> Split:
    """Blocks [n] -> their parts, 8 steps each."""
    qh = blocks["qh"]
    entry = blocks["qs"] | (qh[:, :, None] >> THREES & 7) << 8
    signs = np.repeat((qh >> 15) * 255, 4, axis=1)
    codes = signed(GGMLType.IQ1_S, entry, signs)
    return Split(blocks["d"], 2 * (qh >> 12 & 7) + 1, codes)


def join(parts: Split) -> Blocks:
    """The inverse of ``split``."""
    entry, signs = unsigned(GGMLType.IQ1_S, parts.codes)
    entry = entry.reshape(-1, 8, 4)
    blocks = np.empty(len(entry), DTYPE)
    blocks["d"], blocks["qs"] = parts.d, entry & 255
    top = (signs[:, ::4] & np.uint16(1)) << 15 | (parts.steps >> 1).astype(np.uint16) << 12
    blocks["qh"] = top | np.bitwise_or.reduce(entry >> 8 << THREES, axis=2)
    return blocks


IQ1_S = register_codebook(Codebook(GGMLType.IQ1_S, DTYPE, VALUES, 32, 1 / 8, split, join))
