"""AXPY of several tokens: rows decoded once for all, and a walk of each token through its mask.

Where few of a few tokens need the same rows, each token's are decoded in registers instead.

Of each 64 listed rows a token has a mask, the rows it takes, and their values side by side: those
of all neurons would be read again for every stripe of columns, a cache line for each.

Access: 64 rows are decoded into scratch, 8 groups of columns at a time, of which each stays in L1
while the tokens pass; a token's sums of a group stay in registers while its rows of the 64 are
added, in order. The 64 rows that come next are asked of memory meanwhile.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ....jit import inline, kernel
from ..abi import (
    DST,
    SRC0,
    SRC1,
    SRC2,
    SRC3,
    data,
    f32_ptr,
    first_row,
    i32_ptr,
    i64_ptr,
    nb,
    ne,
    params_of,
)
from ..atomics import call_address
from ..codec.rows import decode_columns
from ..facts import fact
from ..simd.axpy import axpy_panel, count_bits, group_bytes, group_columns, place_of
from ..simd.element import copy_bytes, zero_run
from ..simd.plain_rows import ask_for_rows
from ..simd.vector import LINE
from .sparse_active import SEGMENT, list_place, list_rows, neuron_of, segments
from .weights import (
    AXPY_BYTES,
    AXPY_COLUMNS,
    AXPY_DECODER,
    AXPY_ORDER,
    AXPY_ROWS,
    AXPY_UNPACK,
)  # fmt: skip

TOGETHER = 8  # rows of one token that are read side by side
PANEL_ROWS = 64
SEGMENT_PANELS = SEGMENT // PANEL_ROWS
_WINDOW = 8  # groups of columns that are decoded at a time: 128 KB, with AVX-512 256 KB
_DIRECT = 4  # tokens a row, below which decoding it for each costs less than keeping it


class Axpy(NamedTuple):
    """The values of all kernels of AXPY."""

    values: int  # address
    listed: int  # address of the list of active rows, 0: all are
    bucket: int  # whether SRC3 is a bucket
    masks: int  # address of the tokens' masks
    sums: int  # address of the sums of each segment, or 0
    stripes: int  # of columns
    token_blocks: int
    threshold: float
    facts: int
    whole: int  # see ``part_of``
    share: int


@inline
def part_of(node, chunk):  # type: ignore[no-untyped-def]
    """A chunk's segment or block of tokens, its stripe of columns, and of how many.

    Of the ``share`` chunks of each thread the first ``whole`` are segments that are not cut into
    stripes, and the others its stripes of the last segments.
    """
    p = params_of(node, Axpy)
    whole, stripes = p.whole, p.stripes
    if whole == 0:
        return chunk // stripes, chunk % stripes, stripes
    thread = chunk // p.share
    i = chunk - thread * p.share
    if i < whole:
        return thread * whole + i, 0, 1
    return stripes * whole + i - whole, thread, stripes


@inline
def _taken(node, unit, t):  # type: ignore[no-untyped-def]
    """Where the values are that a block of tokens, the first of which is ``t``, takes of 64 rows.

    float32, token by token, of each as many as its mask says.
    """
    n, units = ne(node, DST, 1), segments(ne(node, SRC0, 1)) * SEGMENT_PANELS
    return params_of(node, Axpy).masks + 8 * units * n + 4 * PANEL_ROWS * (unit * n + t)


@inline
def _aim(node, table, start, weights):  # type: ignore[no-untyped-def]
    """The addresses of 64 listed rows, of the last one again and again behind the end."""
    listed, n_rows, addresses = params_of(node, Axpy).listed, ne(node, SRC0, 1), i64_ptr(table)
    rows, last = list_rows(listed, n_rows), list_place(listed, n_rows, segments(n_rows)) - 1
    for i in range(PANEL_ROWS):
        p = min(start + i, last)
        row = p if listed == 0 else rows[p] + 0
        addresses[i] = weights + row * nb(node, SRC0, 1)


@inline
def set_ends(ends, size):  # type: ignore[no-untyped-def]
    """What ``add_rows`` needs at ``ends``: the addresses of 8 rows' ends twice, then the ends."""
    for r in range(2 * TOGETHER):
        i64_ptr(ends)[r] = ends + 16 * TOGETHER + r % TOGETHER * size
    zero_run(ends + 16 * TOGETHER, TOGETHER * size // 4)


@inline
def add_rows(facts, table, c, values, sums, full, left, ends):  # type: ignore[no-untyped-def]
    """At most 8 rows times a token's values: ``full`` groups, and ``left`` bytes of another."""
    add, size = fact(facts, AXPY_ROWS), fact(facts, AXPY_BYTES)
    call_address(add, (table, c, values, sums, full))
    if left != 0:
        for r in range(c):
            copy_bytes(i64_ptr(table)[r] + full * size, ends + 16 * TOGETHER + r * size, left)
        end_sums = sums + 4 * full * fact(facts, AXPY_COLUMNS)
        call_address(add, (ends, c, values, end_sums, 1))


@inline
def _add_token(facts, mask, table, coming, asked, some, values, sums, full, left, ends):  # type: ignore[no-untyped-def]
    """The rows of a mask times a token's values; meanwhile as many that come next are asked for.

    ``some`` has room for 8 addresses twice. Returns the number of rows asked for, and the place
    behind the values.
    """
    rows, c, missing = i64_ptr(some), 0, count_bits(mask)
    for r in range(PANEL_ROWS):
        if missing == 0:
            break
        rows[c] = i64_ptr(table)[r]
        bit = (mask >> r) & 1
        c, missing = c + bit, missing - bit
        if c == TOGETHER or (missing == 0 and c > 0):
            for i in range(c):
                rows[c + i] = i64_ptr(coming)[min(asked, PANEL_ROWS - 1)]
                asked += 1
            add_rows(facts, some, c, values, sums, full, left, ends)
            values += 4 * c
            c = 0
    return asked, values


@kernel
def axpy_masks(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
    """For each 64 listed rows and each token: which rows it takes, as bits, and their values."""
    p = params_of(node, Axpy)
    n, n_rows, listed = ne(node, DST, 1), ne(node, SRC0, 1), p.listed
    bucket = data(node, SRC3) if p.bucket != 0 else 0
    threshold = p.threshold
    rows = list_rows(listed, n_rows)
    total, blocks = segments(n_rows) * SEGMENT_PANELS, p.token_blocks
    neurons = i32_ptr(scratch)
    for unit in range(first_row(total, chunk, n_chunks), first_row(total, chunk + 1, n_chunks)):
        segment = unit // SEGMENT_PANELS
        first = list_place(listed, n_rows, segment) + unit % SEGMENT_PANELS * PANEL_ROWS
        count = min(PANEL_ROWS, list_place(listed, n_rows, segment + 1) - first)
        for i in range(count):
            neurons[i] = neuron_of(first + i if listed == 0 else rows[first + i] + 0, bucket)
        masks = i64_ptr(p.masks + 8 * unit * n)
        block, c, taken = 0, 0, f32_ptr(_taken(node, unit, 0))
        for t in range(n):
            if t == first_row(n, block, blocks):
                taken, c = f32_ptr(_taken(node, unit, t)), 0
                block += 1
            values = f32_ptr(p.values + t * nb(node, SRC1, 1))
            scores = f32_ptr(data(node, SRC2) + t * nb(node, SRC2, 1))
            mask = 0
            for i in range(count):
                value = values[neurons[i]]
                bit = value != 0
                if data(node, SRC2) != 0:
                    bit &= scores[neurons[i]] >= threshold
                mask |= np.int64(bit) << i
                taken[c] = value
                c += bit
            masks[t] = mask


def panel_scratch(kind: int, groups: int, tokens: int) -> int:
    """Bytes of scratch for a stripe of so many groups and a block of tokens with their totals."""
    decoded, sums = (1 + PANEL_ROWS) * min(groups, _WINDOW), 2 * groups * tokens
    tables = 16 * PANEL_ROWS + 32 * TOGETHER + LINE
    return (1 + TOGETHER) * group_bytes(kind) + 8 + tables + 4 * group_columns() * (decoded + sums)


@kernel
def axpy_many(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
    """Weights of any format.

    Scratch: the end of a row; a row in a format that has a decoder, as float32; addresses of 64
    rows and of those to come, of 8 rows and of 8 to come, the ends of 8 rows; decoded rows; the
    sums of a segment (unless ``sums`` has them) and the totals.
    """
    p = params_of(node, Axpy)
    facts = p.facts
    columns, size = fact(facts, AXPY_COLUMNS), fact(facts, AXPY_BYTES)
    sum_bytes = 4 * columns
    n, n_rows, width = ne(node, DST, 1), ne(node, SRC0, 1), ne(node, DST, 0)
    n_segments, listed = segments(n_rows), p.listed
    all_groups = (width + columns - 1) // columns
    rest, stripe, stripes = part_of(node, chunk)
    g0, g1 = first_row(all_groups, stripe, stripes), first_row(all_groups, stripe + 1, stripes)
    groups, full = g1 - g0, min(g1, width // columns) - g0
    left = 0 if full == groups else (width - (g0 + full) * columns) * size // columns
    decoder, unpack = fact(facts, AXPY_DECODER), fact(facts, AXPY_UNPACK)
    ordered = fact(facts, AXPY_ORDER)
    n_columns = min(g1 * columns, width) - g0 * columns
    weights = data(node, SRC0) + (g0 * size if decoder == 0 else 0)
    floats = scratch + (size + 7) // 8 * 8
    table = floats + min(groups, _WINDOW) * sum_bytes
    table_next = table + 8 * PANEL_ROWS
    some = table_next + 8 * PANEL_ROWS
    ends = some + 16 * TOGETHER
    panel = (ends + 16 * TOGETHER + TOGETHER * size + LINE - 1) // LINE * LINE
    addresses = i64_ptr(table)
    kept = p.sums
    if kept != 0:
        s0, s1, t0, t1 = rest, min(rest + 1, n_segments), 0, n
        group_stride, token_stride = sum_bytes, all_groups * sum_bytes
        sums = kept + (rest * n * all_groups + g0) * sum_bytes
    else:
        s0, s1, blocks = 0, n_segments, p.token_blocks
        t0, t1 = first_row(n, rest, blocks), first_row(n, rest + 1, blocks)
        group_stride, token_stride = (t1 - t0) * sum_bytes, sum_bytes
        sums = panel + PANEL_ROWS * min(groups, _WINDOW) * sum_bytes
    tokens = t1 - t0
    totals = sums + tokens * groups * sum_bytes
    zero_run(scratch, size // 4)
    set_ends(ends, size)
    if kept == 0:
        zero_run(totals, tokens * groups * columns)
    for segment in range(s0, s1):
        first = list_place(listed, n_rows, segment)
        end = list_place(listed, n_rows, segment + 1)
        for t in range(tokens):
            for g in range(groups):
                zero_run(sums + t * token_stride + g * group_stride, columns)
        for k in range(SEGMENT_PANELS):
            start = first + k * PANEL_ROWS
            count = min(PANEL_ROWS, end - start)
            if count <= 0:
                break
            masks = i64_ptr(p.masks + 8 * (segment * SEGMENT_PANELS + k) * n)
            needed = pairs = 0
            for t in range(t0, t1):
                needed |= masks[t]
                pairs += count_bits(masks[t])
            _aim(node, table, start, weights)
            if kept != 0 and decoder == 0 and pairs < _DIRECT * count:
                if k == 0:
                    ask_for_rows(table, min(count, TOGETHER), groups * size)
                _aim(node, table_next, start + PANEL_ROWS, weights)
                asked, values = 0, _taken(node, segment * SEGMENT_PANELS + k, t0)
                for t in range(t0, t1):
                    at = sums + (t - t0) * token_stride
                    asked, values = _add_token(
                        facts,
                        masks[t],
                        table,
                        table_next,
                        asked,
                        some,
                        values,
                        at,
                        full,
                        left,
                        ends,
                    )
                continue
            for w0 in range(0, groups, _WINDOW):
                w1 = min(groups, w0 + _WINDOW)
                whole = min(full, w1) - w0
                if w1 < groups:
                    _aim(node, table_next, start, weights + w1 * size)
                else:
                    _aim(node, table_next, start + PANEL_ROWS, weights)
                later = min(_WINDOW, groups - w1 if w1 < groups else groups) * size
                for r in range(count):
                    if decoder == 0:  # meanwhile, memory is asked for what is decoded next
                        ask_for_rows(table_next + 8 * r, 1, later)
                    if (needed >> r) & 1 != 0:
                        x, y = addresses[r] + w0 * size, panel + r * sum_bytes
                        if decoder != 0:
                            c = min(w1 * columns, n_columns) - w0 * columns
                            column = (g0 + w0) * columns
                            decode_columns(decoder, addresses[r] + 0, floats, c, column)
                            x = floats
                        stride = PANEL_ROWS * sum_bytes
                        call_address(unpack, (x, y, stride, whole))
                        if left != 0 and w1 == groups:
                            copy_bytes(x + whole * size, scratch, left)
                            y += whole * PANEL_ROWS * sum_bytes
                            call_address(unpack, (scratch, y, 0, 1))
                for g in range(w0, w1):
                    taken = _taken(node, segment * SEGMENT_PANELS + k, t0)
                    for t in range(t0, t1):
                        sums_at = sums + (t - t0) * token_stride + g * group_stride
                        values = taken
                        taken += 4 * count_bits(masks[t])
                        axpy_panel(
                            masks[t], panel + (g - w0) * PANEL_ROWS * sum_bytes, values, sums_at
                        )
        if kept == 0:
            total, added = f32_ptr(totals), f32_ptr(sums)
            for i in range(tokens * groups * columns):
                total[i] += added[i]
    if kept == 0:
        for t in range(tokens):
            y = f32_ptr(data(node, DST) + (t0 + t) * nb(node, DST, 1) + g0 * sum_bytes)
            for c in range(min(groups * columns, width - g0 * columns)):
                total = f32_ptr(totals + (c // columns * tokens + t) * sum_bytes)
                y[c] = total[place_of(c % columns, columns, ordered)]
