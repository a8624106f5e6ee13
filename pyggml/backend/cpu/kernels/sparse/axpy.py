"""AXPY: sums of active rows, each times its value, in the order of the rows.

Rows fall into segments of 1,024. A column's sum over a segment is one chain of fused multiply-adds,
and the segments' sums are added in order, so bits depend neither on threads nor on other tokens.

- One or a few tokens (up to 16): a chunk is a segment, or a stripe of its columns where threads are
  many. In blocks of four tokens: rows that some of them need are decoded in registers, some side by
  side, and added to the sums of those that need them. With several blocks, 64 listed rows at a time
  come from memory once.
- Many tokens, and a few tokens of formats with a decoder: for a stripe of columns and a block of
  tokens, over all segments: 64 rows at a time are decoded into scratch, 8 groups of columns at a
  time, each of which stays in L1 while the tokens pass; a token's sums of a group stay in registers
  while its rows are added. A launch before writes masks: which of 64 listed rows each token takes,
  and their values side by side. Else the values of all neurons would be read for every stripe, a
  cache line for each.

For one or a few tokens another launch adds the sums of the segments.

Access: rows in the order of the list; the next rows are prefetched meanwhile.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .....compiler.jit import CpuKernel, inline, kernel
from .....rounding import ceil_div
from .....tensor import Tensor
from ...abi import (
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
    nrows,
    params_of,
    row_address,
)
from ...atomics import call_address
from ...codec.rows import decode_columns
from ...compile.lowering import CpuLowering, lowers
from ...compile.type_traits import trait
from ...compile.work import WorkRange
from ...simd.axpy import TYPES, axpy_panel, count_bits, group_bytes, group_columns, place_of
from ...simd.element import F32, copy_bytes, load_elem, store_elem, zero_run
from ...simd.plain_rows import prefetch_rows
from ...simd.vector import LINE
from ..matrix.weights import (
    AXPY_BYTES,
    AXPY_COLUMNS,
    AXPY_DECODER,
    AXPY_ORDER,
    AXPY_ROWS,
    AXPY_UNPACK,
    ROW_TOKENS,
    is_decoded,
    layout_name,
    tile_kind,
    weight_traits,
)
from .active import SEGMENT, active_rows, list_place, list_rows, neuron_of, segments
from .mul_mat import supports_sparse

TOGETHER = 8  # rows that are read side by side
PANEL_ROWS = 64
SEGMENT_PANELS = SEGMENT // PANEL_ROWS
_WINDOW = 8  # groups of columns that are decoded at a time: 128 KB, with AVX-512 256 KB
_FEW = 16  # tokens whose sums over each segment are kept
_TOKENS = 256  # tokens of a chunk
_SUM_BYTES = 1 << 17  # of a chunk of many tokens: they stay in L2


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
    traits: int
    whole: int  # see ``part_of``
    share: int


@inline
def part_of(node, chunk):
    """(segment or block of tokens, stripe of columns, number of stripes) of a chunk.

    Each thread has ``share`` chunks: ``whole`` segments that are not cut into stripes, then its
    stripes of the last segments.
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


# --- one or a few tokens ---


def _scratch(kind: int, tokens: int) -> int:
    """Bytes of scratch of ``axpy`` besides decoded rows."""
    listed = SEGMENT if tokens <= ROW_TOKENS else PANEL_ROWS
    ends = TOGETHER * (16 + group_bytes(kind))
    return ends + 8 * (listed + TOGETHER) + 4 * listed * min(tokens, ROW_TOKENS)


@inline
def set_ends(scratch, size):
    """Set up the table of ``add_rows`` for the ends of rows, at ``scratch``."""
    ends = scratch + 16 * TOGETHER
    for r in range(2 * TOGETHER):
        i64_ptr(scratch)[r] = ends + r % TOGETHER * size
    zero_run(ends, TOGETHER * size // 4)


@inline
def add_rows(
    traits, tokens, table, n, values, sums, stride, scratch, floats, full, left, n_columns, column
):
    """Add ``n`` rows to the sums of a few tokens, each row times the tokens' values.

    Args:
        table: addresses of the rows, then of the next ones, which are prefetched.
        values: float32, of the tokens of each row.
        stride: bytes from a token's sums to the next one's.
        scratch: a table of the rows' ends, and these, as ``set_ends`` leaves them.
        floats: room for decoded rows, if the format has a decoder.
        full, left: whole groups of columns; bytes of a row after them.
        n_columns, column: the columns of a decoded row that are used; the first of them.
    """
    columns, size = trait(traits, AXPY_COLUMNS), trait(traits, AXPY_BYTES)
    decoder, add = trait(traits, AXPY_DECODER), trait(traits, AXPY_ROWS + tokens)
    addresses, ends = i64_ptr(table), scratch + 16 * TOGETHER
    for i in range(0, n, TOGETHER):
        some, x = min(TOGETHER, n - i), values + 4 * tokens * i
        if decoder != 0:
            for r in range(some):
                place = floats + 4 * n_columns * r
                decode_columns(decoder, addresses[i + r], place, n_columns, column)
                addresses[i + r] = place
        call_address(add, (table + 8 * i, some, x, sums, stride, full))
        if left != 0:
            for r in range(some):
                copy_bytes(addresses[i + r] + full * size, ends + r * size, left)
            call_address(add, (scratch, some, x, sums + full * 4 * columns, stride, 1))


@kernel
def axpy(node, chunk, n_chunks, scratch):
    """One token and weights of any format, or a few tokens and weights without a decoder.

    Scratch: pointers to the ends of the rows that are added side by side, twice, and these ends;
    pointers to a block's rows and to the next ones; their values, row by row; decoded rows, if the
    format has a decoder.
    """
    p = params_of(node, Axpy)
    traits = p.traits
    columns, size = trait(traits, AXPY_COLUMNS), trait(traits, AXPY_BYTES)
    sum_bytes = 4 * columns
    n, n_rows, width, listed = ne(node, DST, 1), ne(node, SRC0, 1), ne(node, DST, 0), p.listed
    bucket = data(node, SRC3) if p.bucket != 0 else 0
    rows, threshold = list_rows(listed, n_rows), p.threshold
    all_groups = (width + columns - 1) // columns
    segment, stripe, stripes = part_of(node, chunk)
    if segment >= segments(n_rows):
        return
    g0, g1 = first_row(all_groups, stripe, stripes), first_row(all_groups, stripe + 1, stripes)
    full = min(g1, width // columns) - g0
    left = 0 if g0 + full == g1 else (width - (g0 + full) * columns) * size // columns
    decoder = trait(traits, AXPY_DECODER)
    n_columns = min(g1 * columns, width) - g0 * columns
    weights = data(node, SRC0) + (g0 * size if decoder == 0 else 0)
    stride = all_groups * sum_bytes
    sums = p.sums + (segment * n * all_groups + g0) * sum_bytes
    blocks = (n + ROW_TOKENS - 1) // ROW_TOKENS
    panel = SEGMENT if blocks == 1 else PANEL_ROWS
    addresses_at = scratch + TOGETHER * (16 + size)
    values_at = addresses_at + 8 * (panel + TOGETHER)
    floats = values_at + 4 * panel * min(n, ROW_TOKENS)
    addresses, taken = i64_ptr(addresses_at), i32_ptr(values_at)
    values, value_bytes = p.values, nb(node, SRC1, 1)
    scores, score_bytes = data(node, SRC2) if n > 1 else 0, nb(node, SRC2, 1)
    weight_bytes = nb(node, SRC0, 1)
    set_ends(scratch, size)
    for t in range(n):
        zero_run(sums + t * stride, (g1 - g0) * columns)
    first, end = list_place(listed, n_rows, segment), list_place(listed, n_rows, segment + 1)
    later, stripe, stripes = part_of(node, chunk + 1)  # what this thread most likely reads next
    begin = stop = skipped = 0
    if later < segments(n_rows):
        begin, stop = list_place(listed, n_rows, later), list_place(listed, n_rows, later + 1)
        skipped = (first_row(all_groups, stripe, stripes) - g0) * size if decoder == 0 else 0
    row_bytes = full * size if decoder == 0 else weight_bytes
    for start in range(first, end, panel):
        last = min(start + panel, end)
        for block in range(blocks):
            t0, t1 = first_row(n, block, blocks), first_row(n, block + 1, blocks)
            tokens, c = t1 - t0, 0
            for i in range(start, last):
                row = i if listed == 0 else rows[i] + 0
                neuron, needed = neuron_of(row, bucket), 0
                for t in range(tokens):
                    at = values + (t0 + t) * value_bytes
                    is_taken = np.int32(f32_ptr(at)[neuron] != 0)
                    if scores != 0:
                        is_taken &= f32_ptr(scores + (t0 + t) * score_bytes)[neuron] >= threshold
                    taken[c * tokens + t] = i32_ptr(at)[neuron] * is_taken  # float32 0 has no bits
                    needed |= is_taken
                addresses[c] = weights + row * weight_bytes
                c += needed
            ahead = last + TOGETHER * block  # the next rows of this segment, or of the next one
            for i in range(TOGETHER):
                addresses[c + i] = addresses[max(c - 1, 0)]
                at = ahead + i if ahead + i < end else min(begin + ahead + i - end, stop - 1)
                if ahead + i < end or begin < stop:
                    row = at if listed == 0 else rows[at] + 0
                    addresses[c + i] = weights + row * weight_bytes
                    addresses[c + i] += skipped if ahead + i >= end else 0
            if start == first and block == 0:
                prefetch_rows(addresses_at, min(c, TOGETHER), row_bytes)
            add_rows(
                traits, tokens, addresses_at, c, values_at, sums + t0 * stride, stride, scratch,
                floats, full, left, n_columns, g0 * columns,
            )  # fmt: skip


class SegmentSums(NamedTuple):
    """The values of ``axpy_sums``."""

    sums: int  # address of the sums of each segment, of each row of the result
    n_segments: int
    traits: int


@kernel
def axpy_sums(node, chunk, n_chunks, scratch):
    """Add the segments' sums of a few rows of the result, in order."""
    p = params_of(node, SegmentSums)
    traits, n_segments = p.traits, p.n_segments
    columns, ordered = trait(traits, AXPY_COLUMNS), trait(traits, AXPY_ORDER)
    n, width = nrows(node, DST), ne(node, DST, 0)
    groups = (width + columns - 1) // columns
    units = n * groups
    total = f32_ptr(scratch)
    for unit in range(first_row(units, chunk, n_chunks), first_row(units, chunk + 1, n_chunks)):
        for i in range(columns):
            store_elem(F32, scratch, i, np.float32(0))
        for segment in range(n_segments):
            sums = p.sums + 4 * columns * (segment * n * groups + unit)
            for i in range(columns):
                store_elem(F32, scratch, i, total[i] + load_elem(F32, sums, i))
        t, first = unit // groups, unit % groups * columns
        y = f32_ptr(row_address(node, DST, t) + 4 * first)
        for c in range(min(columns, width - first)):
            y[c] = total[place_of(c, columns, ordered)]


# --- many tokens ---


@inline
def _taken(node, unit, t):
    """The address of the values of 64 rows for a block of tokens that begins at ``t``.

    float32, token by token; a token has as many as its mask has bits.
    """
    n, units = ne(node, DST, 1), segments(ne(node, SRC0, 1)) * SEGMENT_PANELS
    return params_of(node, Axpy).masks + 8 * units * n + 4 * PANEL_ROWS * (unit * n + t)


@inline
def _set_pointers(node, table, start, weights):
    """Set the pointers to 64 listed rows; after the end the last row is repeated."""
    listed, n_rows, addresses = params_of(node, Axpy).listed, ne(node, SRC0, 1), i64_ptr(table)
    rows, last = list_rows(listed, n_rows), list_place(listed, n_rows, segments(n_rows)) - 1
    for i in range(PANEL_ROWS):
        p = min(start + i, last)
        row = p if listed == 0 else rows[p] + 0
        addresses[i] = weights + row * nb(node, SRC0, 1)


@kernel
def axpy_masks(node, chunk, n_chunks, scratch):
    """Write for each 64 listed rows and each token a bit mask of its rows, and their values."""
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
    tables = 16 * PANEL_ROWS + LINE
    return group_bytes(kind) + 8 + tables + 4 * group_columns() * (decoded + sums)


@inline
def unpack_row(traits, row, panel, end, floats, full, left, n_columns, column):
    """Decode groups of columns of a row into a panel of ``PANEL_ROWS`` rows.

    Args:
        row: of a format with a decoder the whole row, else its first column that is used.
        end: room for the end of a row, with zeros.
        floats, full, left, n_columns, column: see ``add_rows``.
    """
    size, unpack = trait(traits, AXPY_BYTES), trait(traits, AXPY_UNPACK)
    stride = PANEL_ROWS * 4 * trait(traits, AXPY_COLUMNS)
    if trait(traits, AXPY_DECODER) != 0:
        decode_columns(trait(traits, AXPY_DECODER), row, floats, n_columns, column)
        row = floats
    call_address(unpack, (row, panel, stride, full))
    if left != 0:
        copy_bytes(row + full * size, end, left)
        call_address(unpack, (end, panel + full * stride, 0, 1))


@kernel
def axpy_many(node, chunk, n_chunks, scratch):
    """Weights of any format.

    Scratch: the end of a row; a decoded row, if the format has a decoder; pointers to 64 rows and
    to the next 64; decoded groups; the sums of a segment (unless ``sums`` has them) and the totals.
    """
    p = params_of(node, Axpy)
    traits = p.traits
    columns, size = trait(traits, AXPY_COLUMNS), trait(traits, AXPY_BYTES)
    sum_bytes = 4 * columns
    n, n_rows, width = ne(node, DST, 1), ne(node, SRC0, 1), ne(node, DST, 0)
    n_segments, listed = segments(n_rows), p.listed
    all_groups = (width + columns - 1) // columns
    rest, stripe, stripes = part_of(node, chunk)
    g0, g1 = first_row(all_groups, stripe, stripes), first_row(all_groups, stripe + 1, stripes)
    groups, full = g1 - g0, min(g1, width // columns) - g0
    left = 0 if full == groups else (width - (g0 + full) * columns) * size // columns
    decoder = trait(traits, AXPY_DECODER)
    ordered = trait(traits, AXPY_ORDER)
    n_columns = min(g1 * columns, width) - g0 * columns
    weights = data(node, SRC0) + (g0 * size if decoder == 0 else 0)
    floats = scratch + (size + 7) // 8 * 8
    table = floats + min(groups, _WINDOW) * sum_bytes
    table_next = table + 8 * PANEL_ROWS
    panel = (table_next + 8 * PANEL_ROWS + LINE - 1) // LINE * LINE
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
            needed = 0
            for t in range(t0, t1):
                needed |= masks[t]
            _set_pointers(node, table, start, weights)
            for w0 in range(0, groups, _WINDOW):
                w1 = min(groups, w0 + _WINDOW)
                whole = min(full, w1) - w0
                if w1 < groups:
                    _set_pointers(node, table_next, start, weights + w1 * size)
                else:
                    _set_pointers(node, table_next, start + PANEL_ROWS, weights)
                later = min(_WINDOW, groups - w1 if w1 < groups else groups) * size
                for r in range(count):
                    if decoder == 0:  # prefetch what is decoded next
                        prefetch_rows(table_next + 8 * r, 1, later)
                    if (needed >> r) & 1 != 0:
                        x = addresses[r] + (w0 * size if decoder == 0 else 0)
                        unpack_row(
                            traits, x, panel + r * sum_bytes, scratch, floats, whole,
                            left if w1 == groups else 0,
                            min(w1 * columns, n_columns) - w0 * columns, (g0 + w0) * columns,
                        )  # fmt: skip
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


# --- lowering ---


def launch_axpy(
    lowering: CpuLowering, node: Tensor, values: Tensor | WorkRange, scores: Tensor | None
) -> None:
    """Add the launches of an AXPY.

    Args:
        values: the factors of the rows, for all neurons.
        scores: the tokens' scores; None if values are 0 wherever scores are too low.
    """
    w, b, _, placed = node.src
    n, n_segments = node.ne[1], max(1, ceil_div(w.ne[1], SEGMENT))
    kind, groups = tile_kind(w.type, TYPES), ceil_div(w.ne[0], group_columns())
    listed = active_rows(lowering, node)
    few = n == 1 or (n <= _FEW and not is_decoded(w.type, TYPES))
    functions = [AXPY_UNPACK]
    if few:  # of the blocks of ``axpy``
        blocks = ceil_div(n, ROW_TOKENS)
        functions = [AXPY_ROWS + k for k in {n // blocks, ceil_div(n, blocks)}]
    tokens = ceil_div(n, ceil_div(n, _TOKENS))  # of a block
    if n <= _FEW:
        stripes = min(groups, ceil_div(2 * lowering.n_threads, n_segments))
    else:
        fit = max(1, _SUM_BYTES // (tokens * 4 * group_columns()))
        stripes = max(ceil_div(groups, fit), min(groups, 4 * lowering.n_threads))
    chunks, whole, share, stripe = stripes * n_segments, 0, 0, ceil_div(groups, stripes)
    if n <= _FEW and stripes == 1 and groups >= lowering.n_threads:
        stripes = lowering.n_threads  # of the last segments, so that threads end at the same time
        whole, cut = divmod(n_segments, stripes)
        share = whole + cut
        chunks, stripe = stripes * share, groups if whole else ceil_div(groups, stripes)
    masks = sums = None
    if not few:
        masks = lowering.take((8 + 4 * PANEL_ROWS) * n_segments * SEGMENT_PANELS * n)
    if n <= _FEW:
        sums = lowering.take(4 * group_columns() * groups * n * n_segments)
    params = Axpy(
        values=values.data if isinstance(values, Tensor) else values.address,
        listed=listed.address if listed else 0,
        bucket=node.op_params["bucket"],
        masks=masks.address if masks else 0,
        sums=sums.address if sums else 0,
        stripes=stripes,
        token_blocks=ceil_div(n, _TOKENS),
        threshold=node.op_params["threshold"],
        traits=weight_traits(lowering, w, *functions),
        whole=whole,
        share=share,
    )
    work = [r for r in (listed, values) if isinstance(r, WorkRange)]

    def add(
        made: CpuKernel, chunks: int, work: list[WorkRange], writes: Tensor | WorkRange,
        scratch: int = 0,
    ) -> None:  # fmt: skip
        lowering.launch(
            made, node, params, chunks, src=(w, b, scores, placed), work=work, writes=writes,
            reads=(w, placed, scores, values if isinstance(values, Tensor) else None),
            scratch=scratch, variant=layout_name(w),
        )  # fmt: skip

    made = axpy
    if few:
        scratch = _scratch(kind, n)
        scratch += TOGETHER * 4 * group_columns() * stripe if is_decoded(w.type, TYPES) else 0
    else:
        add(axpy_masks, min(n_segments * SEGMENT_PANELS, 8 * lowering.n_threads), work, masks)
        made, work = axpy_many, [*work, masks]
        scratch = panel_scratch(kind, stripe, 0 if sums else tokens)
    if sums is None:
        add(made, stripes * params.token_blocks, work, node, scratch)
        return
    add(made, chunks, work, sums, scratch)
    n_sums = ceil_div(w.ne[1], SEGMENT)  # none of a matrix without rows
    launch_sums(lowering, node, SegmentSums(sums.address, n_sums, params.traits), sums)


def launch_sums(lowering: CpuLowering, node: Tensor, params: SegmentSums, sums: WorkRange) -> None:
    """Add the launch that adds the segments' sums."""
    n, groups = node.nrows, ceil_div(node.ne[0], group_columns())
    chunks = max(1, min(n * groups, node.nelements // 1024, 8 * lowering.n_threads))
    lowering.launch(
        axpy_sums, node, params, chunks, src=(), work=[sums], scratch=4 * group_columns()
    )


@lowers("AXPY", supports_sparse)
def _lower_axpy(lowering: CpuLowering, node: Tensor) -> None:
    _, b, idx, _ = node.src
    launch_axpy(lowering, node, b, idx)
