"""Q8_K: 256 signed bytes with one float32 scale, and the sums of each 16: activations in ggml.

    x[j] = d * qs[j]

Source: ggml, ``quantize_row_q8_K_ref`` and ``dequantize_row_q8_K``: the element of largest
magnitude (the first of equal ones) becomes code -127. Of a block of zeros ggml leaves the sums as
they were; here they are 0.
"""

from __future__ import annotations

import numpy as np

from ..dtype import GGMLType
from .block import Blocks, BlockType, Floats, register
from .exact import F, first_largest, nearest_int

DTYPE = np.dtype([("d", "<f4"), ("qs", "i1", 256), ("bsums", "<i2", 16)])


def quantize_blocks(x: Floats, weights: Floats | None = None) -> Blocks:
    """float32 [n, 256] -> blocks [n]."""
    blocks = np.empty(len(x), DTYPE)
    largest = first_largest(x)[:, None]
    inverse = F(-127) / largest
    blocks["d"] = (F(1) / inverse)[:, 0]
    blocks["qs"] = np.minimum(nearest_int(inverse * x), 127).astype(np.int8)
    blocks["bsums"] = blocks["qs"].reshape(-1, 16, 16).sum(axis=2, dtype=np.int16)
    blocks[largest[:, 0] == 0] = np.zeros((), DTYPE)
    return blocks


def dequantize_blocks(blocks: Blocks) -> Floats:
    """Blocks [n] -> float32 [n, 256]."""
    out: Floats = blocks["d"][:, None] * blocks["qs"].astype(np.float32)
    return out


Q8_K = register(BlockType(GGMLType.Q8_K, DTYPE, quantize_blocks, dequantize_blocks))
