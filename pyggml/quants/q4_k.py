"""Q4_K: 256 codes of 4 bits; each 32 have a scale and a minimum of 6 bits.

    x[j] = d * scale[j // 32] * q[j] - dmin * min[j // 32]

Source: ggml, ``quantize_row_q4_K_ref``, ``quantize_row_q4_K_impl`` and ``dequantize_row_q4_K``.
"""

from __future__ import annotations

import numpy as np

from ..dtype import GGMLType
from .affine import AffineSearch
from .block import Blocks, BlockType, Floats, register
from .scale_min import decode, encode
from .superblock import pack_halves, unpack_halves

DTYPE = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qs", "u1", 128)])
SEARCH = AffineSearch(top=15, start=-1.0, stride=0.1, steps=20)
WEIGHTED = AffineSearch(top=15, start=-0.9, stride=0.05, steps=36)


def quantize_blocks(x: Floats, weights: Floats | None = None) -> Blocks:
    """float32 [n, 256] -> blocks [n]."""
    blocks = np.empty(len(x), DTYPE)
    blocks["qs"] = pack_halves(encode(x, weights, SEARCH, WEIGHTED, blocks))
    return blocks


def dequantize_blocks(blocks: Blocks) -> Floats:
    """Blocks [n] -> float32 [n, 256]."""
    return decode(blocks, unpack_halves(blocks["qs"]))


Q4_K = register(BlockType(GGMLType.Q4_K, DTYPE, quantize_blocks, dequantize_blocks))
