"""Q5_0: 32 codes of 5 bits with one scale, centred at 16.

    x[j] = d * (q[j] - 16)

Source: ggml, ``quantize_row_q5_0_ref``: the element of largest magnitude (the first of equal ones)
becomes code 0, d = that element / -16; and ``quantize_row_q5_0_impl``.
"""

from __future__ import annotations

import numpy as np

from ..dtype import GGMLType
from .block import (
    Blocks,
    BlockType,
    Floats,
    pack_fives,
    register,
    row_weights,
    unpack_fives,
)
from .symmetric import fit_symmetric

DTYPE = np.dtype([("d", "<f2"), ("qh", "<u4"), ("qs", "u1", 16)])


def quantize_blocks(x: Floats, weights: Floats | None = None) -> Blocks:
    """float32 [n, 32] -> blocks [n]."""
    if weights is not None:
        return _weighted_blocks(x, weights)
    top = np.take_along_axis(x, np.abs(x).argmax(axis=1)[:, None], axis=1)
    d = (top + np.float32(0)) / np.float32(-16)  # -0 becomes 0: ggml starts its search with 0
    q = x * (np.float32(1) / d) + np.float32(16.5)  # two roundings, as without FMA
    # d = 0 has codes 16. Where d is so small that its inverse overflows, C's conversion gives 0.
    q = np.where(np.isfinite(q), np.clip(np.trunc(q), 0, 31), np.float32(0))
    q = np.where(d == 0, np.float32(16), q)
    blocks = np.empty(len(x), DTYPE)
    blocks["d"] = d[:, 0]
    blocks["qh"], blocks["qs"] = pack_fives(q.astype(np.uint8))
    return blocks


def _weighted_blocks(x: Floats, weights: Floats) -> Blocks:
    blocks = np.empty(len(x), DTYPE)
    blocks["d"], q = fit_symmetric(x, weights, 16)
    blocks["qh"], blocks["qs"] = pack_fives(q.astype(np.uint8))
    return blocks


def dequantize_blocks(blocks: Blocks) -> Floats:
    """Blocks [n] -> float32 [n, 32]."""
    q = unpack_fives(blocks["qh"], blocks["qs"]).astype(np.float32) - np.float32(16)
    out: Floats = blocks["d"].astype(np.float32)[:, None] * q
    return out


Q5_0 = register(BlockType(GGMLType.Q5_0, DTYPE, quantize_blocks, dequantize_blocks, row_weights))
