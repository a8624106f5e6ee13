"""MXFP4 and NVFP4: floats of 4 bits (a sign, 0 0.5 1 1.5 2 3 4 6) with scales of a byte.

    x[j] = 2^(e - 128) * VALUES[q[j]]              # MXFP4: 32 with a power of two
    x[j] = d[j / 16] * VALUES[q[j]]                # NVFP4: 4 groups of 16, scales of format E4M3

Source: ggml, ``quantize_row_mxfp4_ref`` and ``quantize_row_nvfp4_ref``; OCP Microscaling Formats
1.0. MXFP4's exponent is that of the largest magnitude less 2, and lies in a byte: of magnitudes
below 2^-125 it wraps around, and all codes are 0. NVFP4's scale is a sixth of a group's largest
magnitude, rounded to a float of 4 bits of exponent and 3 of mantissa without sign, halves up; of
256 and more it is the largest, 448.
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
        # Rounded to float32 before floor, so a number just below 2^4 has exponent 4.
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


def encode_e4m3(f: BlockType, x: Floats, weights: Floats | None) -> Bytes:
    """float32 [n, 64] -> blocks [n]."""
    groups = x.reshape(len(x), f.groups, -1)
    size = np.minimum(np.abs(groups).max(axis=2) / np.float32(6), np.float32(448))  # [n, 4]
    bits = size.view(np.uint32)
    code = (bits >> 20) + (bits >> 19 & 1) - np.uint32((127 - 7) << 3)  # round up from half
    code = np.where(code < 15 << 3, code, 0x7E)
    small = np.minimum(size * np.float32(512) + np.float32(0.5), 7)  # below 2^-6: units of 2^-9
    blocks = f.blocks(np.where(size < 2.0**-6, small, code).astype(np.uint8))
    scale, _ = f.scales(blocks)  # [n, 4]
    errors = np.abs(scale[:, :, None, None] * f.numbers - groups[..., None])  # [n, 4, 16, 16]
    f.put_codes(errors.argmin(axis=3).reshape(x.shape), blocks)
    return blocks


NVFP4 = register(
    BlockType(
        GGMLType.NVFP4,
        (Bits(4, 8 * 4, (4, 2, 8), (64, 4, 8)),),  # of each 16, i and 8 + i in byte i
        (Bits(8, 0, (4,), (8,)),),
        scale="ue4m3",
        values=VALUES,
        encode=encode_e4m3,
    )
)
