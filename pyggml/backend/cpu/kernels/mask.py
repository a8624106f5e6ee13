"""DIAG, DIAG_MASK_INF, DIAG_MASK_ZERO and TRI: a run of each row is kept, the rest is one value.

Access: rows of the result front to back; only what is kept is read.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ....jit import kernel
from ....tensor import Tensor
from ..abi import DST, SRC0, data, first_row, nb, ne, nrows, params_of, row_address
from ..lowering import Lowering, all_f32, lowers
from ..simd.element import F32, put, take

WHOLE = 1 << 40  # columns: more than any row has


class Keep(NamedTuple):
    """The values of ``keep_f32``."""

    value: float
    begin: int
    end: int


@kernel
def keep_f32(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
    """Row j keeps columns j + begin to j + end (at most WHOLE), and has ``value`` elsewhere."""
    p = params_of(node, Keep)
    n, rows, ne1 = ne(node, DST, 0), nrows(node, DST), ne(node, DST, 1)
    value = p.value
    for row in range(first_row(rows, chunk, n_chunks), first_row(rows, chunk + 1, n_chunks)):
        x, y, j = row_address(node, SRC0, row), row_address(node, DST, row), row % ne1
        begin = max(0, min(n, j + p.begin))
        end = max(begin, min(n, j + p.end))
        for i in range(begin):
            put(F32, y, i, value)
        for i in range(begin, end):
            put(F32, y, i, take(F32, x, i))
        for i in range(end, n):
            put(F32, y, i, value)


@kernel
def diag_f32(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
    """Row j of a matrix is zeros but for element j of the source's row."""
    n, rows, ne2 = ne(node, DST, 0), nrows(node, DST), ne(node, DST, 2)
    for row in range(first_row(rows, chunk, n_chunks), first_row(rows, chunk + 1, n_chunks)):
        matrix = row // n
        i1, i3 = row - matrix * n, matrix // ne2
        x = data(node, SRC0) + (matrix - i3 * ne2) * nb(node, SRC0, 2) + i3 * nb(node, SRC0, 3)
        y = row_address(node, DST, row)
        for i in range(n):
            put(F32, y, i, 0.0)
        put(F32, y, i1, take(F32, x, i1))


_KEPT = {  # columns that row 0 of each triangle keeps
    "lower": (-WHOLE, 0),
    "lower_diag": (-WHOLE, 1),
    "upper": (1, WHOLE),
    "upper_diag": (0, WHOLE),
}


@lowers("TRI", all_f32)
def _lower_tri(low: Lowering, node: Tensor) -> None:
    low.launch(keep_f32, node, Keep(0.0, *_KEPT[node.op_params["kind"]]), low.row_chunks(node))


@lowers("DIAG_MASK_INF", all_f32)
def _lower_diag_mask_inf(low: Lowering, node: Tensor) -> None:
    params = Keep(-math.inf, -WHOLE, node.op_params["n_past"] + 1)
    low.launch(keep_f32, node, params, low.row_chunks(node))


@lowers("DIAG_MASK_ZERO", all_f32)
def _lower_diag_mask_zero(low: Lowering, node: Tensor) -> None:
    params = Keep(0.0, -WHOLE, node.op_params["n_past"] + 1)
    low.launch(keep_f32, node, params, low.row_chunks(node))


@lowers("DIAG", all_f32)
def _lower_diag(low: Lowering, node: Tensor) -> None:
    low.launch(diag_f32, node, chunks=low.row_chunks(node))
