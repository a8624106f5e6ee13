"""ARGMAX, SUM, SUM_ROWS, MEAN, CUMSUM, COUNT_EQUAL and REPEAT_BACK.

ARGMAX gives the first of equal maxima: a row is read once, in blocks of 512 with a vectorised
maximum, and the best block again. SUM and COUNT_EQUAL reduce pieces of about 8192 elements, then
add these up, so that the order of sums depends on sizes alone. In the others, a row is computed by
one thread. Sums are float64.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from .....compiler.jit import CpuKernel, fast_kernel, inline, inline_strict, kernel
from .....dtype import GGMLType
from .....rounding import ceil_div
from .....tensor import Tensor
from ...abi import (
    DST,
    SRC0,
    SRC1,
    data,
    f32_bits,
    f32_ptr,
    f64_ptr,
    first_row,
    i64_ptr,
    nb,
    ne,
    nrows,
    params_of,
    row_address,
)
from ...compile.lowering import GRAIN, CpuLowering, by_rows, lowers
from ...simd.element import F32, I32, load_elem, store_elem, zero_run
from ...simd.total import total_f32
from ..span import BLOCK, Parts, columns

_BLOCK = 512
_PIECE = 8192  # elements
LOWEST, _HIGHEST = np.int32(-(2**31)), np.int32(2**31 - 1)


class Pieces(NamedTuple):
    """The values of a kernel that reduces pieces."""

    parts: int  # of each row
    rows: int  # of a piece
    out: int  # address of the results


class Total(NamedTuple):
    """The values of a kernel that adds up pieces: their number and address."""

    n: int
    results: int


class RowSum(NamedTuple):
    """The values of SUM_ROWS and MEAN."""

    divisor: int


@inline_strict
def order_key(x):
    """An int32 that orders like the float (0 equals -0; NaN is above inf)."""
    bits = f32_bits(x + np.float32(0))
    return np.int32(bits ^ ((bits >> 31) & 0x7FFFFFFF)) if x == x else _HIGHEST


@inline_strict
def largest_key(x, first, end):
    """The largest ``order_key`` of elements ``first`` to ``end`` of a row."""
    top = LOWEST
    for i in range(first, end):
        key = order_key(load_elem(F32, x, i))
        top = key if key > top else top
    return top


@kernel
def argmax_f32(node, chunk, n_chunks, scratch):
    """Rows of a matrix."""
    n, rows, y = ne(node, SRC0, 0), ne(node, SRC0, 1), data(node, DST)
    for row in range(first_row(rows, chunk, n_chunks), first_row(rows, chunk + 1, n_chunks)):
        x = data(node, SRC0) + row * nb(node, SRC0, 1)
        top, at = LOWEST, 0
        for block in range((n + _BLOCK - 1) // _BLOCK):
            key = largest_key(x, block * _BLOCK, min(n, (block + 1) * _BLOCK))
            if key > top:
                top, at = key, block * _BLOCK
        while at < n and order_key(load_elem(F32, x, at)) != top:
            at += 1
        store_elem(I32, y, row, np.int32(at))


@lowers("ARGMAX")
def _lower_argmax(lowering: CpuLowering, node: Tensor) -> None:
    lowering.launch(argmax_f32, node, chunks=lowering.row_chunks(node.src[0]))


@cache
def sum_pieces_kernel(fmt: int) -> CpuKernel:
    """The kernel that writes the float64 sum of each piece."""

    def sum_pieces(node, chunk, n_chunks, scratch):
        n, rows = ne(node, SRC0, 0), nrows(node, SRC0)
        p = params_of(node, Pieces)
        parts, group = p.parts, p.rows
        pieces = (rows + group - 1) // group * parts
        out = f64_ptr(p.out)
        for k in range(first_row(pieces, chunk, n_chunks), first_row(pieces, chunk + 1, n_chunks)):
            first = k // parts * group
            begin, end = columns(n, k % parts, parts)
            total = 0.0
            for row in range(first, min(rows, first + group)):
                x = row_address(node, SRC0, row)
                for i in range(begin, end):
                    total += np.float64(load_elem(fmt, x, i))
            out[k] = total

    return fast_kernel(sum_pieces, f"sum_pieces_{GGMLType(fmt).name.lower()}")


@cache
def sum_total_kernel(fmt: int) -> CpuKernel:
    """The kernel that adds up the pieces."""

    def sum_total(node, chunk, n_chunks, scratch):
        p, total = params_of(node, Total), 0.0
        sums = f64_ptr(p.results)
        for i in range(p.n):
            total += sums[i]
        store_elem(fmt, data(node, DST), 0, np.float32(total))

    return kernel(sum_total, f"sum_total_{GGMLType(fmt).name.lower()}")


@kernel
def count_pieces_i32(node, chunk, n_chunks, scratch):
    """The number of equal elements of each piece."""
    n, rows = ne(node, SRC0, 0), nrows(node, SRC0)
    p = params_of(node, Pieces)
    parts, group = p.parts, p.rows
    pieces = (rows + group - 1) // group * parts
    out = i64_ptr(p.out)
    for k in range(first_row(pieces, chunk, n_chunks), first_row(pieces, chunk + 1, n_chunks)):
        first = k // parts * group
        begin, end = columns(n, k % parts, parts)
        total = 0
        for row in range(first, min(rows, first + group)):
            x, y = row_address(node, SRC0, row), row_address(node, SRC1, row)
            for i in range(begin, end):
                total += 1 if load_elem(I32, x, i) == load_elem(I32, y, i) else 0
        out[k] = total


@kernel
def count_total(node, chunk, n_chunks, scratch):
    """Add up the counts of the pieces."""
    p, total = params_of(node, Total), 0
    counts = i64_ptr(p.results)
    for i in range(p.n):
        total += counts[i]
    i64_ptr(data(node, DST))[0] = total


def _launch_pieces(
    lowering: CpuLowering, node: Tensor, pieces: CpuKernel, total: CpuKernel
) -> None:
    """Two launches: the results of pieces into work memory, then their sum."""
    x = node.src[0]
    parts = max(1, ceil_div(x.ne[0], _PIECE))
    group = max(1, _PIECE // max(1, x.ne[0]))
    n = ceil_div(x.nrows, group) * parts
    out = lowering.take(8 * max(1, n))
    chunks = max(1, min(n, 8 * lowering.n_threads))
    lowering.launch(pieces, node, Pieces(parts, group, out.address), chunks, writes=out)
    lowering.launch(total, node, Total(n, out.address), src=(), work=[out])


@lowers("SUM")
def _lower_sum(lowering: CpuLowering, node: Tensor) -> None:
    fmt = int(node.type)
    _launch_pieces(lowering, node, sum_pieces_kernel(fmt), sum_total_kernel(fmt))


@lowers("COUNT_EQUAL")
def _lower_count_equal(lowering: CpuLowering, node: Tensor) -> None:
    _launch_pieces(lowering, node, count_pieces_i32, count_total)


@inline
def sum_f32(x, n):
    """The float64 sum of ``n`` float32, in one order for each ``n``."""
    total = 0.0
    for i in range(n):
        total += np.float64(load_elem(F32, x, i))
    return total


@kernel
def sum_rows_f32(node, chunk, n_chunks, scratch):
    """Sums of rows, divided by a number."""
    n, rows = ne(node, SRC0, 0), nrows(node, SRC0)
    divisor = np.float64(params_of(node, RowSum).divisor)
    for row in range(first_row(rows, chunk, n_chunks), first_row(rows, chunk + 1, n_chunks)):
        total = sum_f32(row_address(node, SRC0, row), n)
        store_elem(F32, row_address(node, DST, row), 0, np.float32(total / divisor))


@lowers("SUM_ROWS")
@lowers("MEAN")
def _lower_sum_rows(lowering: CpuLowering, node: Tensor) -> None:
    x = node.src[0]
    divisor = x.ne[0] if node.op.name == "MEAN" else 1
    lowering.launch(sum_rows_f32, node, RowSum(divisor), lowering.row_chunks(x))


@kernel
def repeat_back_f32(node, chunk, n_chunks, scratch):
    """A part of a row of the result: the rows that repeat it are added in order."""
    n, period, parts = ne(node, SRC0, 0), ne(node, DST, 0), params_of(node, Parts).parts
    ne1, ne2, ne3 = ne(node, DST, 1), ne(node, DST, 2), ne(node, DST, 3)
    units = nrows(node, DST) * parts
    for u in range(first_row(units, chunk, n_chunks), first_row(units, chunk + 1, n_chunks)):
        row = u // parts
        begin, end = columns(period, u - row * parts, parts)
        i1, rest = row % ne1, row // ne1
        i2, i3 = rest % ne2, rest // ne2
        out = row_address(node, DST, row)
        sums = f32_ptr(out)
        zero_run(out + 4 * begin, end - begin)
        for j3 in range(i3, ne(node, SRC0, 3), ne3):
            for j2 in range(i2, ne(node, SRC0, 2), ne2):
                x = data(node, SRC0) + j2 * nb(node, SRC0, 2) + j3 * nb(node, SRC0, 3)
                for j1 in range(i1, ne(node, SRC0, 1), ne1):
                    r = x + j1 * nb(node, SRC0, 1)
                    if period == 1:
                        sums[0] += total_f32(r, n)
                        continue
                    for k in range(n // period):
                        for i in range(begin, end):
                            v = sums[i] + load_elem(F32, r + 4 * period * k, i)
                            store_elem(F32, out, i, v)


@lowers("REPEAT_BACK")
def _lower_repeat_back(lowering: CpuLowering, node: Tensor) -> None:
    chunks = max(1, min(node.src[0].nelements // GRAIN, 8 * lowering.n_threads))
    parts = max(1, min(ceil_div(chunks, node.nrows), node.ne[0] // BLOCK))
    lowering.launch(repeat_back_f32, node, Parts(parts), min(chunks, node.nrows * parts))


@kernel
def cumsum_f32(node, chunk, n_chunks, scratch):
    """Prefix sums of rows, one addition after the other."""
    n, rows = ne(node, DST, 0), nrows(node, DST)
    for row in range(first_row(rows, chunk, n_chunks), first_row(rows, chunk + 1, n_chunks)):
        x, y = row_address(node, SRC0, row), row_address(node, DST, row)
        total = 0.0
        for i in range(n):
            total += np.float64(load_elem(F32, x, i))
            store_elem(F32, y, i, np.float32(total))


lowers("CUMSUM")(by_rows(cumsum_f32))
