"""SCALE: ``s * x + b``. Access: rows front to back, split inside long rows."""

from __future__ import annotations

from typing import NamedTuple

from ....jit import kernel
from ....tensor import Tensor
from ..abi import DST, SRC0, first_row, ne, nrows, params_of, row_address
from ..lowering import GRAIN, Lowering, all_f32, lowers
from ..simd.element import F32, put, take
from .span import columns, split


class Scale(NamedTuple):
    """``s * x + b``."""

    parts: int  # of each row, see ``span``
    s: float
    b: float


@kernel
def scale_f32(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
    """Pieces of rows."""
    p = params_of(node, Scale)
    n, parts, s, b = ne(node, DST, 0), p.parts, p.s, p.b
    units = nrows(node, DST) * parts
    for u in range(first_row(units, chunk, n_chunks), first_row(units, chunk + 1, n_chunks)):
        row = u // parts
        begin, end = columns(n, u - row * parts, parts)
        x, y = row_address(node, SRC0, row), row_address(node, DST, row)
        for i in range(begin, end):
            put(F32, y, i, take(F32, x, i) * s + b)


@lowers("SCALE", all_f32)
def _lower_scale(low: Lowering, node: Tensor) -> None:
    parts, chunks = split(low, node, GRAIN)
    params = Scale(parts, s=node.op_params["s"], b=node.op_params["b"])
    low.launch(scale_f32, node, params, chunks)
