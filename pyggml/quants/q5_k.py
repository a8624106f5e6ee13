"""Q5_K: 256 codes of 5 bits; each 32 have a scale and a minimum of 6 bits.

    x[j] = d * scale[j // 32] * q[j] - dmin * min[j // 32]

Source: ggml, ``quantize_row_q5_K_ref``, ``quantize_row_q5_K_impl`` and ``dequantize_row_q5_K``.
"""

from __future__ import annotations

import numpy as np

from ..dtype import GGMLType
from .affine import AffineSearch
from .block import Blocks, BlockType, Floats, register
from .scale_min import decode, encode
from .superblock import SUPERBLOCK, pack_halves, unpack_halves

DTYPE = np.dtype(
    [("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128)]
)
SEARCH = AffineSearch(top=31, start=-0.5, stride=0.1, steps=15)
WEIGHTED = AffineSearch(top=31, start=-0.9, stride=0.05, steps=36)


def quantize_blocks(x: Floats, weights: Floats | None = None) -> Blocks:
    """float32 [n, 256] -> blocks [n]."""
    blocks = np.empty(len(x), DTYPE)
    codes = encode(x, weights, SEARCH, WEIGHTED, blocks)
    blocks["qs"] = pack_halves(codes & 15)
    # Byte l has the fifth bits of elements l, l + 32, ...
    fifth = (codes >> 4).astype(np.uint8).reshape(-1, 8, 32)
    blocks["qh"] = np.packbits(fifth, axis=1, bitorder="little")[:, 0]
    return blocks


def dequantize_blocks(blocks: Blocks) -> Floats:
    """Blocks [n] -> float32 [n, 256]."""
    fifth = np.unpackbits(blocks["qh"][:, None], axis=1, bitorder="little")  # [n, 8, 32]
    q = unpack_halves(blocks["qs"]) | fifth.reshape(-1, SUPERBLOCK) << np.uint8(4)
    return decode(blocks, q)


Q5_K = register(BlockType(GGMLType.Q5_K, DTYPE, quantize_blocks, dequantize_blocks))
