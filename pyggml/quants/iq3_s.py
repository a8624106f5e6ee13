"""IQ3_S: 64 codes of 9 bits, each a codebook entry of 4 magnitudes, with all signs (read only).

    x[4i + j] = d * (1 + 2 * s[i / 8]) * +-GRID[q[i]][j]

Source: ggml, ``dequantize_row_iq3_s``.
"""

from __future__ import annotations

import numpy as np

from ..dtype import GGMLType
from .block import Blocks
from .grids import Codebook, Split, nibbles, packed_nibbles, register_codebook, signed, unsigned

VALUES = (1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15)
DTYPE = np.dtype(
    [("d", "<f2"), ("qs", "u1", 64), ("qh", "u1", 8), ("signs", "u1", 32), ("scales", "u1", 4)]
)


def split(blocks: Blocks) -> Split:
    """Blocks [n] -> their parts, 8 steps each."""
    high = np.unpackbits(blocks["qh"], axis=1, bitorder="little").astype(np.uint16)
    codes = signed(GGMLType.IQ3_S, blocks["qs"] | high << 8, blocks["signs"])
    return Split(blocks["d"], 2 * nibbles(blocks["scales"]) + 1, codes)


def join(parts: Split) -> Blocks:
    """The inverse of ``split``."""
    entry, signs = unsigned(GGMLType.IQ3_S, parts.codes)
    blocks = np.empty(len(entry), DTYPE)
    blocks["d"], blocks["scales"] = parts.d, packed_nibbles(parts.steps >> 1)
    blocks["qs"], blocks["signs"] = entry & 255, signs
    blocks["qh"] = np.packbits(entry >> 8 != 0, axis=1, bitorder="little")
    return blocks


IQ3_S = register_codebook(Codebook(GGMLType.IQ3_S, DTYPE, VALUES, 32, 1.0, split, join))
