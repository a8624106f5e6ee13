"""MXFP4: 32 floats of 4 bits (a sign, 0 0.5 1 1.5 2 3 4 6) with a power of two as scale.

    x[j] = 2^(e - 128) * VALUES[q[j]]

Source: ggml, ``quantize_row_mxfp4_ref``; OCP Microscaling Formats 1.0. The exponent is that of the
largest magnitude less 2, and lies in a byte: of magnitudes below 2^-125 it wraps around, and all
codes are 0.
"""

from __future__ import annotations

import numpy as np

from ..dtype import GGMLType
from .block import Bits, BlockType, Bytes, Floats, nibbles, register

VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # twice the floats


def encode_exponents(f: BlockType, x: Floats, weights: Floats | None) -> Bytes:
    """float32 [n, 32] -> blocks [n]."""
    top = np.abs(x).max(axis=1)
    with np.errstate(divide="ignore", over="ignore"):
        # Rounded to float32 before floor: what is just below 2^4 counts as 2^4.
        exponent = np.floor(np.log2(top.astype(np.float64)).astype(np.float32))
        e = np.where(top > 0, exponent + np.float32(125), np.float32(0)).astype(np.int32)
        blocks = f.blocks(e & 255)
        scale, _ = f.scales(blocks)
        errors = np.abs(scale[:, :, None] * f.numbers - x[:, :, None])  # [n, 32, 16]
    f.put_codes(errors.argmin(axis=2), blocks)
    return blocks


MXFP4 = register(
    BlockType(
        GGMLType.MXFP4,
        nibbles(1),
        (Bits(8, 0),),
        scale="e8m0",
        values=VALUES,
        encode=encode_exponents,
    )
)
