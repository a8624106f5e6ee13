"""The list of active rows of a row-sparse product: ascending, shared by the nodes that read it.

    listed = active_rows(lowering, node)                # in a lowering; None if all rows are active
    rows = list_rows(listed, n_rows)               # in a kernel
    count = list_place(listed, n_rows, segments(n_rows))

A row of the matrix is active if any token's score of its neuron reaches the threshold. The neuron
of row r is r, or entry r of the bucket. For several tokens, their scores are first reduced to a
byte per neuron, in chunks. The list also has the place where each segment of 1,024 rows begins,
since sums over rows are cut there.
Access: scores front to back. A NaN score reports an error.
"""

from __future__ import annotations

from typing import NamedTuple

from .....compiler.jit import inline, kernel
from .....rounding import ceil_div
from .....tensor import Tensor
from ...abi import (
    BAD_INDEX,
    BAD_SCORE,
    SRC0,
    SRC1,
    data,
    first_row,
    i32_ptr,
    i64_ptr,
    nb,
    ne,
    params_of,
    set_error,
    u8_ptr,
)
from ...compile.lowering import GRAIN, CpuLowering
from ...compile.work import WorkRange
from ...simd.element import F32, I8, load_elem, store_elem

SEGMENT = 1024  # rows: sums over rows are cut at its multiples, for any number of threads


class Active(NamedTuple):
    """The values of ``mark_active`` and ``list_active``."""

    listed: int  # address of the list
    marks: int  # address of a byte for each neuron, or 0
    bucket: int  # whether the placement is a bucket
    rows: int  # of the matrix
    threshold: float


@inline
def segments(n_rows):
    """The number of segments of so many rows."""
    return (n_rows + SEGMENT - 1) // SEGMENT


@inline
def list_place(listed, n_rows, segment):
    """The place in the list where a segment begins; ``listed`` 0: all rows are listed."""
    if listed == 0:
        return min(segment * SEGMENT, n_rows)
    return i64_ptr(listed)[segment]


@inline
def list_at(listed, n_rows):
    """The address of the listed rows, int32, unless ``listed`` is 0."""
    return listed + 8 * (segments(n_rows) + 1)


@inline
def list_rows(listed, n_rows):
    """The listed rows as a pointer, unless ``listed`` is 0."""
    return i32_ptr(list_at(listed, n_rows))


@inline
def neuron_of(row, bucket):
    """The neuron of a matrix's row; ``bucket`` is the address of the placement, or 0."""
    return row if bucket == 0 else i32_ptr(bucket)[row] + 0


@kernel
def mark_active(node, chunk, n_chunks, scratch):
    """Write a byte for each neuron: whether any token's score reaches the threshold."""
    p = params_of(node, Active)
    n, marks, threshold = ne(node, SRC0, 0), p.marks, p.threshold
    first, end = first_row(n, chunk, n_chunks), first_row(n, chunk + 1, n_chunks)
    bad = 0
    for t in range(ne(node, SRC0, 1)):
        scores = data(node, SRC0) + t * nb(node, SRC0, 1)
        for i in range(first, end):
            score = load_elem(F32, scores, i)
            before = 0 if t == 0 else load_elem(I8, marks, i)
            store_elem(I8, marks, i, before | (score >= threshold))
            bad |= score != score
    if bad != 0:
        set_error(node, BAD_SCORE)


@kernel
def list_active(node, chunk, n_chunks, scratch):
    """Write the list: from the marks, from one token's scores (SRC0), or of all rows present.

    SRC1 is the placement: a bucket, or marks of absent neurons.
    """
    p = params_of(node, Active)
    out, n_rows = p.listed, p.rows
    marks, from_marks = u8_ptr(p.marks), p.marks != 0
    scores, placed, threshold = data(node, SRC0), data(node, SRC1), p.threshold
    starts, rows, places = i64_ptr(out), list_rows(out, n_rows), i32_ptr(placed)
    in_bucket, n_neurons = p.bucket != 0, ne(node, SRC0, 0)
    count = bad = 0
    for segment in range(segments(n_rows)):
        starts[segment] = count
        for row in range(segment * SEGMENT, min(n_rows, (segment + 1) * SEGMENT)):
            if placed == 0 and not from_marks:
                score = load_elem(F32, scores, row)
                rows[count] = row
                count += score >= threshold
                bad |= score != score
                continue
            neuron = row
            if in_bucket:
                neuron = places[row] + 0
                if neuron < 0 or neuron >= n_neurons:
                    set_error(node, BAD_INDEX)
                    continue
            elif placed != 0 and places[row] == 1:
                continue
            if not from_marks or marks[neuron] != 0:
                rows[count] = row
                count += 1
    starts[segments(n_rows)] = count
    if bad != 0:
        set_error(node, BAD_SCORE)


def active_rows(lowering: CpuLowering, node: Tensor) -> WorkRange | None:
    """The list for a MUL_MAT_SPARSE or AXPY, shared by equal selections; None if all are active."""
    a, b, idx, placed = node.src
    if idx is None and placed is None:
        return None
    threshold, bucket = node.op_params["threshold"], node.op_params["bucket"]
    key = ("active rows", idx, placed, threshold, bucket, a.ne[1])
    known = lowering.known(key, idx, placed)
    if known is not None:
        return known
    n_rows, marks = a.ne[1], None
    if idx is not None and (idx.ne[1] > 1 or placed is not None):
        marks = lowering.take(idx.ne[0])
        chunks = max(1, min(idx.nelements // GRAIN, idx.ne[0] // 64, 8 * lowering.n_threads))
        params = Active(0, marks.address, bucket=0, rows=0, threshold=threshold)
        lowering.launch(mark_active, node, params, chunks, src=(idx,), writes=marks)
    out = lowering.take(4 * n_rows + 8 * (ceil_div(n_rows, SEGMENT) + 1))
    at = marks.address if marks else 0
    params = Active(out.address, at, bucket=bucket, rows=n_rows, threshold=threshold)
    src, work = (b if idx is None else idx, placed), [marks] if marks else []
    lowering.launch(list_active, node, params, src=src, work=work, writes=out)
    return lowering.remember(key, out)
