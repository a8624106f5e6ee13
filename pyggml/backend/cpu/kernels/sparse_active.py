"""Which rows of a row-sparse product any token needs: one ascending list, shared by its readers.

    listed = active_rows(low, node)                # in a lowering; None where all rows are needed
    count, rows = list_end(listed, n_rows), list_rows(listed, n_rows)      # in a kernel

Rows are those of the matrix; the neuron of a row is the row itself, or the bucket's entry. Where
there are several tokens, their scores are first reduced to a byte for each neuron, in chunks.
The list says where each segment of 1,024 rows begins, since sums over rows are cut there.
Access: scores front to back. A score that is not a number reports an error.
"""

from __future__ import annotations

from ....jit import inline, kernel
from ....tensor import Tensor
from ..abi import (
    BAD_INDEX,
    BAD_SCORE,
    SRC0,
    SRC1,
    data,
    first_row,
    float_param,
    i32_ptr,
    i64_ptr,
    int_param,
    nb,
    ne,
    set_error,
    u8_ptr,
)  # fmt: skip
from ..lowering import GRAIN, Launch, Lowering, byte_range
from ..simd.element import F32, I8, put, take
from ..work import WorkRange

SEGMENT = 1024  # rows: sums over rows are cut at its multiples, whatever the threads
# Parameters
LIST, MARKS, BUCKET, ROWS, THRESHOLD = range(5)


@inline
def segments(n_rows):  # type: ignore[no-untyped-def]
    """How many segments so many rows have."""
    return (n_rows + SEGMENT - 1) // SEGMENT


@inline
def list_place(listed, n_rows, segment):  # type: ignore[no-untyped-def]
    """Where a segment's rows begin in the list; ``listed`` 0: all rows are listed."""
    if listed == 0:
        return min(segment * SEGMENT, n_rows)
    return i64_ptr(listed)[segment]


@inline
def list_at(listed, n_rows):  # type: ignore[no-untyped-def]
    """Where the rows themselves are, int32, unless ``listed`` is 0."""
    return listed + 8 * (segments(n_rows) + 1)


@inline
def list_rows(listed, n_rows):  # type: ignore[no-untyped-def]
    """The rows themselves, unless ``listed`` is 0."""
    return i32_ptr(list_at(listed, n_rows))


@inline
def neuron_of(row, bucket):  # type: ignore[no-untyped-def]
    """The neuron of a matrix's row; ``bucket`` is the address of the placement, or 0."""
    return row if bucket == 0 else i32_ptr(bucket)[row] + 0


@kernel
def mark_active(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
    """A byte for each neuron of a range: whether any token's score reaches the threshold."""
    n, marks, threshold = ne(node, SRC0, 0), int_param(node, MARKS), float_param(node, THRESHOLD)
    first, end = first_row(n, chunk, n_chunks), first_row(n, chunk + 1, n_chunks)
    bad = 0
    for t in range(ne(node, SRC0, 1)):
        scores = data(node, SRC0) + t * nb(node, SRC0, 1)
        for i in range(first, end):
            score = take(F32, scores, i)
            before = 0 if t == 0 else take(I8, marks, i)
            put(I8, marks, i, before | (score >= threshold))
            bad |= score != score
    if bad != 0:
        set_error(node, BAD_SCORE)


@kernel
def list_active(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
    """The list itself, from the marks, from one token's scores (SRC0), or of all that are placed.

    SRC1 has the placement: a bucket, or marks of neurons that are absent.
    """
    out, n_rows = int_param(node, LIST), int_param(node, ROWS)
    marks, from_marks = u8_ptr(int_param(node, MARKS)), int_param(node, MARKS) != 0
    scores, placed, threshold = data(node, SRC0), data(node, SRC1), float_param(node, THRESHOLD)
    starts, rows, places = i64_ptr(out), list_rows(out, n_rows), i32_ptr(placed)
    in_bucket, n_neurons = int_param(node, BUCKET) != 0, ne(node, SRC0, 0)
    count = bad = 0
    for segment in range(segments(n_rows)):
        starts[segment] = count
        for row in range(segment * SEGMENT, min(n_rows, (segment + 1) * SEGMENT)):
            if placed == 0 and not from_marks:
                score = take(F32, scores, row)
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


def active_rows(low: Lowering, node: Tensor) -> WorkRange | None:
    """The list for a MUL_MAT_SPARSE or AXPY, made once for all that select alike; None for all."""
    a, b, idx, placed = node.src
    assert a is not None and b is not None
    if idx is None and placed is None:
        return None
    threshold, bucket = node.op_params["threshold"], node.op_params["bucket"]
    key = ("active rows", idx, placed, threshold, bucket, a.ne[1])
    known = low.known(key, idx, placed)
    if known is not None:
        return known
    marks = None
    if idx is not None and (idx.ne[1] > 1 or placed is not None):
        marks = low.work.take(idx.ne[0], len(low.launches))
        chunks = max(1, min(idx.nelements // GRAIN, idx.ne[0] // 64, 8 * low.n_threads))
        _launch(low, node, [0, marks.address, 0, 0, threshold], (idx,), (), marks, chunks)
        marks.use(len(low.launches))
    size = 4 * a.ne[1] + 8 * (-(-a.ne[1] // SEGMENT) + 1)
    out = low.work.take(size, len(low.launches))
    params = [out.address, marks.address if marks else 0, int(bucket), a.ne[1], threshold]
    sources = (b if idx is None else idx, placed)
    _launch(low, node, params, sources, () if marks is None else (marks,), out, 1)
    return low.remember(key, out)


def _launch(
    low: Lowering, node: Tensor, params: list[int | float], src: tuple[Tensor | None, ...],
    work: tuple[WorkRange, ...], out: WorkRange, chunks: int,
) -> None:  # fmt: skip
    i = len(low.launches)
    reads = [byte_range(s) for s in src if s is not None and s.nelements]
    reads += [w.use(i) for w in work]
    made = list_active if params[LIST] else mark_active
    low.launches.append(Launch(made, node, params, chunks, node, src, reads, [out.use(i)]))
