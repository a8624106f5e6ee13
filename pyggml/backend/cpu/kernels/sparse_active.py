"""Which rows of a row-sparse product any token needs: one ascending list, shared by its readers.

    rows = active_rows(low, idx, placed, threshold, bucket)      # in a lowering
    count, row = i64_ptr(list)[0], i32_ptr(list + ROW0)[i]       # in a kernel

Rows are those of the matrix; the neuron of a row is the row itself, or the bucket's entry. Where
there are several tokens, their scores are first reduced to a byte for each neuron, in chunks.
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

ROW0 = 8  # bytes before the rows: their number
# Parameters
LIST, MARKS, BUCKET, ROWS, THRESHOLD = range(5)


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


@inline
def neuron_of(row, bucket):  # type: ignore[no-untyped-def]
    """The neuron of a matrix's row; ``bucket`` is the address of the placement, or 0."""
    return row if bucket == 0 else i32_ptr(bucket)[row] + 0


@kernel
def list_active(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
    """The list itself, from the marks, from one token's scores (SRC0), or of all that are placed.

    SRC1 has the placement: a bucket, or marks of neurons that are absent.
    """
    out, marks = int_param(node, LIST), u8_ptr(int_param(node, MARKS))
    scores, placed, threshold = data(node, SRC0), data(node, SRC1), float_param(node, THRESHOLD)
    rows, absent = i32_ptr(out + ROW0), i32_ptr(placed)
    in_bucket, n_neurons = int_param(node, BUCKET) != 0, ne(node, SRC0, 0)
    count = bad = 0
    if scores != 0 and int_param(node, MARKS) == 0 and placed == 0:
        for row in range(int_param(node, ROWS)):
            score = take(F32, scores, row)
            rows[count] = row
            count += score >= threshold
            bad |= score != score
    else:
        for row in range(int_param(node, ROWS)):
            neuron = row
            if in_bucket:
                neuron = absent[row] + 0
                if neuron < 0 or neuron >= n_neurons:
                    set_error(node, BAD_INDEX)
                    continue
            elif placed != 0 and absent[row] == 1:
                continue
            if int_param(node, MARKS) == 0 or marks[neuron] != 0:
                rows[count] = row
                count += 1
    i64_ptr(out)[0] = count
    if bad != 0:
        set_error(node, BAD_SCORE)


def active_rows(low: Lowering, node: Tensor) -> WorkRange | None:
    """The list for a MUL_MAT_SPARSE or AXPY, made once for all that select alike; None for all."""
    a, b, idx, placed = node.src
    assert a is not None and b is not None
    if idx is None and placed is None:
        return None
    threshold, bucket = node.op_params["threshold"], node.op_params["bucket"]
    key = (idx, placed, threshold, bucket)
    known = low.known(key, idx, placed)
    if known is not None:
        return known
    n_neurons = b.ne[0] if idx is None else idx.ne[0]
    marks: WorkRange | None = None
    if idx is not None and (idx.ne[1] > 1 or placed is not None):
        i = len(low.launches)
        marks = low.work.take(n_neurons, i)
        chunks = max(1, min(idx.nelements // GRAIN, n_neurons // 64, 8 * low.n_threads))
        low.launches.append(
            Launch(
                mark_active, node, [0, marks.address, 0, 0, threshold], chunks, node, (idx,),
                [byte_range(idx)], [marks.use(i)],
            )
        )  # fmt: skip
    i = len(low.launches)
    reads = [byte_range(s) for s in (idx, placed) if s is not None and s.nelements]
    if marks is not None:
        reads.append(marks.use(i))
    out = low.work.take(ROW0 + 4 * max(a.ne[1], 1), i)
    sizes = idx if idx is not None else b
    params = [out.address, marks.address if marks else 0, int(bucket), a.ne[1], threshold]
    low.launches.append(
        Launch(list_active, node, params, 1, node, (sizes, placed), reads, [out.use(i)])
    )
    return low.remember(key, out)
