"""From groups of 16 interleaved rows (see ``layout``) back to ggml's blocks, for jitted code.

take_block(kind, group_address, lane, i, block_address)
"""

from __future__ import annotations

import numpy as np

from ....dtype import GGMLType
from ....jit import inline
from ..abi import i32_ptr, u16_ptr
from ..layout import ROWS

_F32, _F16, _BF16, _Q8_0, _Q4_1, _Q5_0, _Q5_1 = (
    int(GGMLType[name]) for name in ("F32", "F16", "BF16", "Q8_0", "Q4_1", "Q5_0", "Q5_1")
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
    header = 2 if kind in (_Q4_1, _Q5_1) else 1
    five_bits = kind in (_Q5_0, _Q5_1)
    words = 8 if kind == _Q8_0 else 4 + five_bits
    block = group + ROWS * i * (2 * header + 4 * words)
    y = u16_ptr(out)
    for j in range(header):
        y[j] = u16_ptr(block)[ROWS * j + lane]
    x = u16_ptr(block + 2 * ROWS * header + 4 * lane)
    for j in range(words):
        y[header + 2 * j] = x[2 * ROWS * j]
        y[header + 2 * j + 1] = x[2 * ROWS * j + 1]
    if five_bits:
        fifth = _gather(i32_ptr(block + 2 * ROWS * header + 4 * lane)[0])
        y[header], y[header + 1] = np.uint16(fifth), np.uint16(fifth >> np.uint32(16))
