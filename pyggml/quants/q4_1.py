"""Q4_1: 32 codes of 4 bits with a scale and a minimum.

    x[j] = d * q[j] + m

Source: ggml, ``quantize_row_q4_1_ref``: d = (max - min) / 15, m = min.
"""

from __future__ import annotations

import numpy as np

from ..dtype import GGMLType
from .block import Blocks, BlockType, Floats, inverse, pack_nibbles, register, unpack_nibbles

DTYPE = np.dtype([("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16)])


def quantize_blocks(x: Floats, weights: Floats | None = None) -> Blocks:
    """float32 [n, 32] -> blocks [n]."""
    low = x.min(axis=1, keepdims=True)
    d = (x.max(axis=1, keepdims=True) - low) / np.float32(15)
    with np.errstate(invalid="ignore"):  # 0 * inf where d is too small to have an inverse
        q = np.trunc((x - low) * inverse(d) + np.float32(0.5))  # two roundings, as without FMA
    q = np.where(np.isnan(q), np.float32(0), np.minimum(q, 15))
    blocks = np.empty(len(x), DTYPE)
    blocks["d"] = d[:, 0]
    blocks["m"] = low[:, 0]
    blocks["qs"] = pack_nibbles(q.astype(np.uint8))
    return blocks


def dequantize_blocks(blocks: Blocks) -> Floats:
    """Blocks [n] -> float32 [n, 32]."""
    d, m = (blocks[f].astype(np.float32)[:, None] for f in ("d", "m"))
    out: Floats = d * unpack_nibbles(blocks["qs"]).astype(np.float32) + m
    return out


Q4_1 = register(BlockType(GGMLType.Q4_1, DTYPE, quantize_blocks, dequantize_blocks))
