"""Q8_0: 32 signed bytes with one scale.

    x[j] = d * qs[j]

Source: ggml, ``quantize_row_q8_0_ref``: d = amax / 127, codes rounded half away from zero with the
reciprocal of the unrounded d.
"""

from __future__ import annotations

import numpy as np

from ..dtype import GGMLType
from .block import Blocks, BlockType, Floats, inverse, register

DTYPE = np.dtype([("d", "<f2"), ("qs", "i1", 32)])


def quantize_blocks(x: Floats, weights: Floats | None = None) -> Blocks:
    """float32 [n, 32] -> blocks [n]."""
    d = np.abs(x).max(axis=1, keepdims=True) / np.float32(127)
    scaled = x * inverse(d)
    size = np.abs(scaled)
    whole = np.floor(size)  # size + 0.5 could round up to the next integer in float32
    q = np.copysign(whole + (size - whole >= np.float32(0.5)), scaled)
    blocks = np.empty(len(x), DTYPE)
    blocks["d"] = d[:, 0]
    blocks["qs"] = q
    return blocks


def dequantize_blocks(blocks: Blocks) -> Floats:
    """Blocks [n] -> float32 [n, 32]."""
    out: Floats = blocks["d"].astype(np.float32)[:, None] * blocks["qs"].astype(np.float32)
    return out


Q8_0 = register(BlockType(GGMLType.Q8_0, DTYPE, quantize_blocks, dequantize_blocks))
