"""Between ggml's rows and groups of 16 interleaved rows (see ``layout``), for jitted code.

    pack_group(kind, rows_address, row_bytes, 16, n, group_address)
    take_block(kind, group_address, lane, i, block_address)          # back to one ggml block

Access: plain rows are read front to back; a group is written with a stride of 16 values.
"""

from __future__ import annotations

from ....jit import inline
from ..abi import i32_ptr, u16_ptr
from ..layout import ROWS

_BF16 = 30  # GGMLType.BF16


@inline
def pack_group(kind, source, stride, rows, n, out):  # type: ignore[no-untyped-def]
    """``rows`` (at most 16) plain rows of ``n`` columns as one interleaved group (BF16 as F32)."""
    if kind == _BF16:
        for r in range(ROWS):
            x2 = u16_ptr(source + r * stride)
            y = i32_ptr(out + 4 * r)
            for i in range(n):
                y[ROWS * i] = x2[i] << 16 if r < rows else 0
        return
    if kind == 0:
        for r in range(ROWS):
            x = i32_ptr(source + r * stride)
            y = i32_ptr(out + 4 * r)
            for i in range(n):
                y[ROWS * i] = x[i] if r < rows else 0
        return
    if kind == 1:
        for r in range(ROWS):
            x2 = u16_ptr(source + r * stride)
            y2 = u16_ptr(out + 2 * r)
            for i in range(n):
                y2[ROWS * i] = x2[i] if r < rows else 0
        return
    header = 2 if kind == 3 else 1  # float16 values before the codes
    words = 8 if kind == 8 else 4  # codes as 32-bit words
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


@inline
def take_block(kind, group, lane, i, out):  # type: ignore[no-untyped-def]
    """Block ``i`` of row ``lane`` of a group, as ggml's bytes (one value for F16 and F32)."""
    if kind == 0:
        i32_ptr(out)[0] = i32_ptr(group + 4 * ROWS * i)[lane]
        return
    if kind == 1:
        u16_ptr(out)[0] = u16_ptr(group + 2 * ROWS * i)[lane]
        return
    header = 2 if kind == 3 else 1
    words = 8 if kind == 8 else 4
    block = group + ROWS * i * (2 * header + 4 * words)
    y = u16_ptr(out)
    for j in range(header):
        y[j] = u16_ptr(block)[ROWS * j + lane]
    x = u16_ptr(block + 2 * ROWS * header + 4 * lane)
    for j in range(words):
        y[header + 2 * j] = x[2 * ROWS * j]
        y[header + 2 * j + 1] = x[2 * ROWS * j + 1]
