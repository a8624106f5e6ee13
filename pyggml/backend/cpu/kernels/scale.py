"""SCALE: ``s * x + b``. Access: rows front to back, split inside long rows."""

from __future__ import annotations

from ....jit import kernel
from ....tensor import Tensor
from ..abi import DST, SRC0, first_row, float_param, int_param, ne, nrows, row_address
from ..lowering import GRAIN, Lowering, all_f32, lowers
from ..simd.element import F32, put, take
from .span import columns, split


@kernel
def scale_f32(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
    """Parameters: parts of a row, s, b."""
    n, parts = ne(node, DST, 0), int_param(node, 0)
    s, b = float_param(node, 1), float_param(node, 2)
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
    low.launch(scale_f32, node, (parts, node.op_params["s"], node.op_params["b"]), chunks)
