"""IQ4_XS: 8 groups of 32 codes as in IQ4_NL, each with a scale of 6 bits under one scale.

    x[j] = d * (s[j / 32] - 32) * VALUES[q[j]]

Source: ggml, ``quantize_row_iq4_nl_impl`` with super-blocks of 256: each group's best scale; the
largest of them becomes -32, and codes are chosen anew under the rounded ones.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..dtype import GGMLType
from .block import Blocks, BlockType, Floats, pack_nibbles, register, unpack_nibbles
from .iq4_nl import VALUES, importance, nearest, search

DTYPE = np.dtype([("d", "<f2"), ("scales_h", "<u2"), ("scales_l", "u1", 4), ("qs", "u1", (8, 16))])
_HIGH_BITS = 2 * np.arange(8, dtype=np.uint16)
_VALUES = np.array(VALUES, np.float32)


def quantize_blocks(x: Floats, weights: Floats | None = None) -> Blocks:
    """float32 [n, 256], importance weights of the same shape or none -> blocks [n]."""
    groups = x.reshape(-1, 32)
    scales = search(groups, importance(x, weights).reshape(groups.shape)).reshape(-1, 8)
    largest = np.take_along_axis(scales, np.abs(scales).argmax(axis=1)[:, None], axis=1)
    d = -(largest + np.float32(0)) / np.float32(32)  # [n, 1]; of zeros it is -0
    with np.errstate(all="ignore"):
        inverse = np.where(d != 0, np.float32(1) / d, np.float32(0))
        steps = np.clip(np.rint(inverse * scales), -32, 31)
        scale = d * steps
        inverse = np.where(scale != 0, np.float32(1) / scale, np.float32(0))
        codes = nearest(inverse.reshape(-1, 1) * groups)
        s = (steps + 32).astype(np.uint8)
    blocks = np.empty(len(x), DTYPE)
    blocks["d"] = d[:, 0]
    blocks["scales_l"] = s[:, ::2] & np.uint8(15) | s[:, 1::2] << np.uint8(4)
    blocks["scales_h"] = np.bitwise_or.reduce((s >> 4).astype(np.uint16) << _HIGH_BITS, axis=1)
    blocks["qs"] = pack_nibbles(codes).reshape(-1, 8, 16)
    return blocks


def dequantize_blocks(blocks: Blocks) -> Floats:
    """Blocks [n] -> float32 [n, 256]."""
    d = blocks["d"].astype(np.float32)[:, None] * _steps(blocks)
    q = unpack_nibbles(blocks["qs"].reshape(-1, 16)).reshape(-1, 8, 32)
    out: Floats = (d[:, :, None] * _VALUES[q]).reshape(-1, 256)
    return out


def _steps(blocks: Blocks) -> npt.NDArray[np.float32]:
    """The groups' scales in units of the block's, [n, 8]."""
    low = np.stack([blocks["scales_l"] & np.uint8(15), blocks["scales_l"] >> np.uint8(4)], axis=2)
    high = blocks["scales_h"][:, None] >> _HIGH_BITS & np.uint16(3)
    codes: npt.NDArray[np.uint16] = low.reshape(-1, 8) | high << np.uint16(4)
    return codes.astype(np.float32) - np.float32(32)


IQ4_XS = register(BlockType(GGMLType.IQ4_XS, DTYPE, quantize_blocks, dequantize_blocks))
