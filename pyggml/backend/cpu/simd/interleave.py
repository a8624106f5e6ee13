"""From groups of 16 interleaved rows (see ``layout``) back to ggml's blocks, for jitted code.

take_block(kind, group_address, lane, i, block_address)
"""

from __future__ import annotations

import numpy as np

from ....dtype import GGMLType
from ....jit import inline
from ..abi import i32_ptr, u8_ptr, u16_ptr
from ..layout import ROWS

_F32, _F16, _BF16, _Q8_0, _Q4_1, _Q5_0, _Q5_1, _MXFP4 = (
    int(GGMLType[name]) for name in ("F32", "F16", "BF16", "Q8_0", "Q4_1", "Q5_0", "Q5_1", "MXFP4")
)


@inline
def _gather(word):  # type: ignore[no-untyped-def]
    """32 bits: bit 8i+j becomes bit 4j+i, the inverse of ``spread_bits`` of ``transpose``."""
    w = np.uint32(word)
    high = _bytes_to_nibbles((w >> np.uint32(4)) & np.uint32(0x0F0F0F0F))
    x = _bytes_to_nibbles(w & np.uint32(0x0F0F0F0F)) | high << np.uint32(16)
    y = (x ^ (x >> np.uint32(6))) & np.uint32(0x00CC00CC)
    x = x ^ y ^ (y << np.uint32(6))
    y = (x ^ (x >> np.uint32(3))) & np.uint32(0x0A0A0A0A)
    return x ^ y ^ (y << np.uint32(3))


@inline
def _bytes_to_nibbles(x):  # type: ignore[no-untyped-def]
    x = (x | x >> np.uint32(4)) & np.uint32(0x00FF00FF)
    return (x | x >> np.uint32(8)) & np.uint32(0xFFFF)


@inline
def take_block(kind, group, lane, i, out):  # type: ignore[no-untyped-def]
    """Block ``i`` of row ``lane`` of a group, as ggml's bytes (one value for F16, BF16 and F32)."""
    if kind == _F32:
        i32_ptr(out)[0] = i32_ptr(group + 4 * ROWS * i)[lane]
        return
    if kind in (_F16, _BF16):
        u16_ptr(out)[0] = u16_ptr(group + 2 * ROWS * i)[lane]
        return
    header = 4 if kind in (_Q4_1, _Q5_1) else 1 if kind == _MXFP4 else 2
    five_bits = kind in (_Q5_0, _Q5_1)
    words = 8 if kind == _Q8_0 else 4 + five_bits
    block = group + ROWS * i * (header + 4 * words)
    if kind == _MXFP4:
        u8_ptr(out)[0] = u8_ptr(block)[lane]
    for j in range(header // 2):
        u16_ptr(out)[j] = u16_ptr(block)[ROWS * j + lane]
    x, y = u16_ptr(block + ROWS * header + 4 * lane), u16_ptr(out + header)
    for j in range(words):
        y[2 * j] = x[2 * ROWS * j]
        y[2 * j + 1] = x[2 * ROWS * j + 1]
    if five_bits:
        fifth = _gather(i32_ptr(block + ROWS * header + 4 * lane)[0])
        y[0], y[1] = np.uint16(fifth), np.uint16(fifth >> np.uint32(16))
