"""MXFP4: 32 floats of 4 bits (a sign, 0 0.5 1 1.5 2 3 4 6) with a power of two as scale.

    x[j] = 2^(e - 128) * VALUES[q[j]]

Source: ggml, ``quantize_row_mxfp4_ref``; OCP Microscaling Formats 1.0. The exponent is that of the
largest magnitude less 2, and lies in a byte: of magnitudes below 2^-125 it wraps around, and all
codes are 0.
"""

from __future__ import annotations

import numpy as np

from ..dtype import GGMLType
from .block import Blocks, BlockType, Floats, pack_nibbles, register, unpack_nibbles

DTYPE = np.dtype([("e", "u1"), ("qs", "u1", 16)])
VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # twice the floats
_VALUES = np.array(VALUES, np.float32)


def quantize_blocks(x: Floats, weights: Floats | None = None) -> Blocks:
    """float32 [n, 32] -> blocks [n]; importance weights change nothing."""
    top = np.abs(x).max(axis=1)
    with np.errstate(divide="ignore", over="ignore"):
        # Rounded to float32 before floor: what is just below 2^4 counts as 2^4.
        exponent = np.floor(np.log2(top.astype(np.float64)).astype(np.float32))
        e = np.where(top > 0, exponent + np.float32(125), np.float32(0)).astype(np.int32)
        d = _scale(e.astype(np.uint8))
        errors = np.abs(d[:, None, None] * _VALUES - x[:, :, None])  # [n, 32, 16]
    blocks = np.empty(len(x), DTYPE)
    blocks["e"] = e
    blocks["qs"] = pack_nibbles(errors.argmin(axis=2).astype(np.uint8))
    return blocks


def dequantize_blocks(blocks: Blocks) -> Floats:
    """Blocks [n] -> float32 [n, 32]."""
    out: Floats = _scale(blocks["e"])[:, None] * _VALUES[unpack_nibbles(blocks["qs"])]
    return out


def _scale(e: np.ndarray) -> Floats:
    """2^(e - 128), exactly: the two smallest are subnormal."""
    out: Floats = np.ldexp(np.float32(1), e.astype(np.int32) - 128).astype(np.float32)
    return out


MXFP4 = register(BlockType(GGMLType.MXFP4, DTYPE, quantize_blocks, dequantize_blocks))
