"""Between ggml's rows and groups of 16 interleaved rows (see ``layout``), for jitted code.

    pack_group(kind, rows_address, row_bytes, 16, n, group_address)
    take_block(kind, group_address, lane, i, block_address)          # back to one ggml block

Access: plain rows are read front to back; a group is written with a stride of 16 values.
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
def _spread(word):  # type: ignore[no-untyped-def]
    """32 bits: bit 4j+i becomes bit 8i+j (a transpose of 8 times 4 bits)."""
    x = np.uint32(word)
    # As 4 times 4 bits of each half: swap corners of 2 by 2, then of 1 by 1.
    y = (x ^ (x >> np.uint32(6))) & np.uint32(0x00CC00CC)
    x = x ^ y ^ (y << np.uint32(6))
    y = (x ^ (x >> np.uint32(3))) & np.uint32(0x0A0A0A0A)
    x = x ^ y ^ (y << np.uint32(3))
    # Nibble i of half h is now bits 4h.. of byte i.
    low, high = x & np.uint32(0xFFFF), x >> np.uint32(16)
    return _nibbles_to_bytes(low) | _nibbles_to_bytes(high) << np.uint32(4)


@inline
def _gather(word):  # type: ignore[no-untyped-def]
    """The inverse of ``_spread``."""
    w = np.uint32(word)
    high = _bytes_to_nibbles((w >> np.uint32(4)) & np.uint32(0x0F0F0F0F))
    x = _bytes_to_nibbles(w & np.uint32(0x0F0F0F0F)) | high << np.uint32(16)
    y = (x ^ (x >> np.uint32(6))) & np.uint32(0x00CC00CC)
    x = x ^ y ^ (y << np.uint32(6))
    y = (x ^ (x >> np.uint32(3))) & np.uint32(0x0A0A0A0A)
    return x ^ y ^ (y << np.uint32(3))


@inline
def _nibbles_to_bytes(x):  # type: ignore[no-untyped-def]
    x = (x | x << np.uint32(8)) & np.uint32(0x00FF00FF)
    return (x | x << np.uint32(4)) & np.uint32(0x0F0F0F0F)


@inline
def _bytes_to_nibbles(x):  # type: ignore[no-untyped-def]
    x = (x | x >> np.uint32(4)) & np.uint32(0x00FF00FF)
    return (x | x >> np.uint32(8)) & np.uint32(0xFFFF)


@inline
def pack_group(kind, source, stride, rows, n, out):  # type: ignore[no-untyped-def]
    """``rows`` (at most 16) plain rows of ``n`` columns as one interleaved group."""
    if kind == _F32:
        for r in range(ROWS):
            x = i32_ptr(source + r * stride)
            y = i32_ptr(out + 4 * r)
            for i in range(n):
                y[ROWS * i] = x[i] if r < rows else 0
        return
    if kind in (_F16, _BF16):
        for r in range(ROWS):
            x2 = u16_ptr(source + r * stride)
            y2 = u16_ptr(out + 2 * r)
            for i in range(n):
                y2[ROWS * i] = x2[i] if r < rows else 0
        return
    header = 2 if kind in (_Q4_1, _Q5_1) else 1  # float16 values before the codes
    five_bits = kind in (_Q5_0, _Q5_1)
    words = 8 if kind == _Q8_0 else 4 + five_bits  # codes as 32-bit words
    block = 2 * header + 4 * words
    for r in range(ROWS):
        for i in range(n // 32):
            x2 = u16_ptr(source + r * stride + i * block)
            y2 = u16_ptr(out + ROWS * i * block + 2 * r)
            y = i32_ptr(out + ROWS * (i * block + 2 * header) + 4 * r)
            for j in range(header):
                y2[ROWS * j] = x2[j] if r < rows else 0
            x = u16_ptr(source + r * stride + i * block + 2 * header)  # only 2-byte aligned
            for j in range(words):
                y[ROWS * j] = (x[2 * j] | (x[2 * j + 1] << 16)) if r < rows else 0
            if five_bits:
                y[0] = np.int32(_spread(y[0]))


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
