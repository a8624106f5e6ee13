"""ARGMAX, SUM, SUM_ROWS, MEAN, CUMSUM and COUNT_EQUAL.

ARGMAX: the first of equal ones; a row is read once, in blocks of 512 whose maxima are vectorised,
and the best block again. SUM and COUNT_EQUAL: pieces of about 8192 elements, then their total, so
that the order follows from the sizes. The others: a row belongs to one thread. Sums are float64.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from ....dtype import GGMLType
from ....jit import Kernel, fast_kernel, inline, inline_strict, kernel
from ....tensor import Tensor
from ..abi import (
    DST,
    SRC0,
    SRC1,
    data,
    f32_bits,
    f64_ptr,
    first_row,
    i64_ptr,
    int_param,
    nb,
    ne,
    nrows,
    row_address,
)
from ..lowering import Lowering, lowers
from ..simd.element import F32, I32, put, take
from .span import columns

_BLOCK = 512
_PIECE = 8192  # elements
PARTS, ROWS, OUT = range(3)  # parameters of pieces: parts of a row, or rows a piece; results
LOWEST, _HIGHEST = np.int32(-(2**31)), np.int32(2**31 - 1)


@inline_strict
def order_key(x):  # type: ignore[no-untyped-def]
    """An int32 that orders as the float does (0 equals -0; every NaN is beyond inf)."""
    bits = f32_bits(x + np.float32(0))
    return np.int32(bits ^ ((bits >> 31) & 0x7FFFFFFF)) if x == x else _HIGHEST


@inline_strict
def largest_key(x, first, end):  # type: ignore[no-untyped-def]
    """The largest ``order_key`` of elements ``first`` to ``end`` of a row."""
    top = LOWEST
    for i in range(first, end):
        key = order_key(take(F32, x, i))
        top = key if key > top else top
    return top


@kernel
def argmax_f32(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
    """Rows of a matrix."""
    n, rows, y = ne(node, SRC0, 0), ne(node, SRC0, 1), data(node, DST)
    for row in range(first_row(rows, chunk, n_chunks), first_row(rows, chunk + 1, n_chunks)):
        x = data(node, SRC0) + row * nb(node, SRC0, 1)
        top, at = LOWEST, 0
        for block in range((n + _BLOCK - 1) // _BLOCK):
            key = largest_key(x, block * _BLOCK, min(n, (block + 1) * _BLOCK))
            if key > top:
                top, at = key, block * _BLOCK
        while at < n and order_key(take(F32, x, at)) != top:
            at += 1
        put(I32, y, row, np.int32(at))


@lowers("ARGMAX")
def _lower_argmax(low: Lowering, node: Tensor) -> None:
    assert node.src[0] is not None
    low.launch(argmax_f32, node, (), low.row_chunks(node.src[0]))


@cache
def sum_pieces_kernel(fmt: int) -> Kernel:
    """The kernel that writes the float64 sum of each piece."""

    def sum_pieces(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
        n, rows = ne(node, SRC0, 0), nrows(node, SRC0)
        parts, group = int_param(node, PARTS), int_param(node, ROWS)
        pieces = (rows + group - 1) // group * parts
        out = f64_ptr(int_param(node, OUT))
        for p in range(first_row(pieces, chunk, n_chunks), first_row(pieces, chunk + 1, n_chunks)):
            first = p // parts * group
            begin, end = columns(n, p % parts, parts)
            total = 0.0
            for row in range(first, min(rows, first + group)):
                x = row_address(node, SRC0, row)
                for i in range(begin, end):
                    total += np.float64(take(fmt, x, i))
            out[p] = total

    made = fast_kernel(sum_pieces)
    made.name = f"sum_pieces_{GGMLType(fmt).name.lower()}"
    return made


@cache
def sum_total_kernel(fmt: int) -> Kernel:
    """The kernel that adds up the pieces. Parameters: how many, where."""

    def sum_total(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
        sums, total = f64_ptr(int_param(node, 1)), 0.0
        for p in range(int_param(node, 0)):
            total += sums[p]
        put(fmt, data(node, DST), 0, np.float32(total))

    made = kernel(sum_total)
    made.name = f"sum_total_{GGMLType(fmt).name.lower()}"
    return made


@kernel
def count_pieces_i32(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
    """The number of equal elements of each piece."""
    n, rows = ne(node, SRC0, 0), nrows(node, SRC0)
    parts, group = int_param(node, PARTS), int_param(node, ROWS)
    pieces = (rows + group - 1) // group * parts
    out = i64_ptr(int_param(node, OUT))
    for p in range(first_row(pieces, chunk, n_chunks), first_row(pieces, chunk + 1, n_chunks)):
        first = p // parts * group
        begin, end = columns(n, p % parts, parts)
        total = 0
        for row in range(first, min(rows, first + group)):
            x, y = row_address(node, SRC0, row), row_address(node, SRC1, row)
            for i in range(begin, end):
                total += 1 if take(I32, x, i) == take(I32, y, i) else 0
        out[p] = total


@kernel
def count_total(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
    """Adds up the pieces. Parameters: how many, where."""
    counts, total = i64_ptr(int_param(node, 1)), 0
    for p in range(int_param(node, 0)):
        total += counts[p]
    i64_ptr(data(node, DST))[0] = total


def _launch_pieces(low: Lowering, node: Tensor, pieces: Kernel, total: Kernel) -> None:
    """Two launches: the results of pieces into work memory, then their sum."""
    x = node.src[0]
    assert x is not None
    parts = max(1, -(-x.ne[0] // _PIECE))
    group = max(1, _PIECE // max(1, x.ne[0]))
    n = -(-x.nrows // group) * parts
    at = len(low.launches)
    out = low.work.take(8 * max(1, n), at)
    chunks = max(1, min(n, 8 * low.n_threads))
    launch = low.launch(pieces, node, (parts, group, out.address), chunks)
    launch.writes.append(out.use(at))
    low.launch(total, node, (n, out.address), src=(), work=[out])


@lowers("SUM")
def _lower_sum(low: Lowering, node: Tensor) -> None:
    fmt = int(node.type)
    _launch_pieces(low, node, sum_pieces_kernel(fmt), sum_total_kernel(fmt))


@lowers("COUNT_EQUAL")
def _lower_count_equal(low: Lowering, node: Tensor) -> None:
    _launch_pieces(low, node, count_pieces_i32, count_total)


@inline
def sum_f32(x, n):  # type: ignore[no-untyped-def]
    """The float64 sum of ``n`` float32, in one order for each ``n``."""
    total = 0.0
    for i in range(n):
        total += np.float64(take(F32, x, i))
    return total


@kernel
def sum_rows_f32(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
    """Parameter: what to divide the sums by."""
    n, rows = ne(node, SRC0, 0), nrows(node, SRC0)
    divisor = np.float64(int_param(node, 0))
    for row in range(first_row(rows, chunk, n_chunks), first_row(rows, chunk + 1, n_chunks)):
        total = sum_f32(row_address(node, SRC0, row), n)
        put(F32, row_address(node, DST, row), 0, np.float32(total / divisor))


@lowers("SUM_ROWS")
def _lower_sum_rows(low: Lowering, node: Tensor) -> None:
    assert node.src[0] is not None
    low.launch(sum_rows_f32, node, (1,), low.row_chunks(node.src[0]))


@lowers("MEAN")
def _lower_mean(low: Lowering, node: Tensor) -> None:
    assert node.src[0] is not None
    low.launch(sum_rows_f32, node, (node.src[0].ne[0],), low.row_chunks(node.src[0]))


@kernel
def cumsum_f32(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
    """A row is one chain of additions."""
    n, rows = ne(node, DST, 0), nrows(node, DST)
    for row in range(first_row(rows, chunk, n_chunks), first_row(rows, chunk + 1, n_chunks)):
        x, y = row_address(node, SRC0, row), row_address(node, DST, row)
        total = 0.0
        for i in range(n):
            total += np.float64(take(F32, x, i))
            put(F32, y, i, np.float32(total))


@lowers("CUMSUM")
def _lower_cumsum(low: Lowering, node: Tensor) -> None:
    low.launch(cumsum_f32, node, (), low.row_chunks(node))
