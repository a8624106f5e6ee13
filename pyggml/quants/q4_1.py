"""Q4_1: 32 codes of 4 bits with a scale and a minimum.

    x[j] = d * q[j] + m

Source: ggml, ``quantize_row_q4_1_ref``: d = (max - min) / 15, m = min;
and ``quantize_row_q4_1_impl``.
"""

from __future__ import annotations

import numpy as np

from ..dtype import GGMLType
from .affine import AffineSearch, fit_affine
from .block import (
    Blocks,
    BlockType,
    Floats,
    inverse,
    pack_nibbles,
    register,
    row_weights,
    unpack_nibbles,
)
from .exact import first_smallest

DTYPE = np.dtype([("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16)])
WEIGHTED = AffineSearch(top=15, start=-0.9, stride=0.05, steps=36)


def quantize_blocks(x: Floats, weights: Floats | None = None) -> Blocks:
    """float32 [n, 32] -> blocks [n]."""
    if weights is not None:
        return _weighted_blocks(x, weights)
    low = first_smallest(x)[:, None]
    high = np.take_along_axis(x, x.argmax(axis=1)[:, None], axis=1)  # of zeros the first, as low
    d = (high - low) / np.float32(15)
    with np.errstate(invalid="ignore"):  # 0 * inf where d is too small to have an inverse
        q = np.trunc((x - low) * inverse(d) + np.float32(0.5))  # two roundings, as without FMA
    q = np.where(np.isnan(q), np.float32(0), np.minimum(q, 15))
    blocks = np.empty(len(x), DTYPE)
    blocks["d"] = d[:, 0]
    blocks["m"] = low[:, 0]
    blocks["qs"] = pack_nibbles(q.astype(np.uint8))
    return blocks


def _weighted_blocks(x: Floats, weights: Floats) -> Blocks:
    blocks = np.empty(len(x), DTYPE)
    blocks["d"], blocks["m"], q = fit_affine(x, weights, WEIGHTED)
    blocks["qs"] = pack_nibbles(q.astype(np.uint8))
    return blocks


def dequantize_blocks(blocks: Blocks) -> Floats:
    """Blocks [n] -> float32 [n, 32]."""
    d, m = (blocks[f].astype(np.float32)[:, None] for f in ("d", "m"))
    out: Floats = d * unpack_nibbles(blocks["qs"]).astype(np.float32) + m
    return out


Q4_1 = register(BlockType(GGMLType.Q4_1, DTYPE, quantize_blocks, dequantize_blocks, row_weights))
