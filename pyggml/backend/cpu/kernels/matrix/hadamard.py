"""HADAMARD by the fast Walsh-Hadamard transform: n log2(n) additions, in an order fixed by ``n``.

Access: rows front to back, in place.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from .....compiler.jit import inline, kernel
from .....tensor import Tensor
from ....common.lowering import all_f32
from ...abi import DST, SRC0, f32_ptr, first_row, ne, nrows, params_of, row_address
from ...compile.lowering import CpuLowering, lowers


class Hadamard(NamedTuple):
    """The values of HADAMARD."""

    n: int  # columns of a transform
    scale: float  # 1 / sqrt(n)


@inline
def _eight(x, y, scale):
    """The first three levels of the transform, on eight elements in registers."""
    a0, a1, a2, a3 = x[0] * scale, x[1] * scale, x[2] * scale, x[3] * scale
    a4, a5, a6, a7 = x[4] * scale, x[5] * scale, x[6] * scale, x[7] * scale
    b0, b1, b2, b3, b4, b5, b6, b7 = (
        a0 + a1, a0 - a1, a2 + a3, a2 - a3, a4 + a5, a4 - a5, a6 + a7, a6 - a7,
    )  # fmt: skip
    a0, a1, a2, a3, a4, a5, a6, a7 = (
        b0 + b2, b1 + b3, b0 - b2, b1 - b3, b4 + b6, b5 + b7, b4 - b6, b5 - b7,
    )  # fmt: skip
    y[0], y[1], y[2], y[3] = a0 + a4, a1 + a5, a2 + a6, a3 + a7
    y[4], y[5], y[6], y[7] = a0 - a4, a1 - a5, a2 - a6, a3 - a7


@inline
def _hadamard(x, y, n, scale):
    """Transform ``n`` elements at address ``x`` into ``y``."""
    out, half = f32_ptr(y), 1
    if n % 8 == 0:
        for i in range(0, n, 8):
            _eight(f32_ptr(x + 4 * i), f32_ptr(y + 4 * i), scale)
        half = 8
    else:
        for i in range(n):
            out[i] = f32_ptr(x)[i] * scale
    while half < n:
        for start in range(0, n, 2 * half):
            for i in range(start, start + half):
                a, b = out[i], out[i + half]
                out[i], out[i + half] = a + b, a - b
        half *= 2


@kernel
def hadamard_f32(node, chunk, n_chunks, scratch):
    """Transform runs of ``n`` elements of rows."""
    p = params_of(node, Hadamard)
    n, scale, rows = p.n, p.scale, nrows(node, DST)
    for row in range(first_row(rows, chunk, n_chunks), first_row(rows, chunk + 1, n_chunks)):
        x, y = row_address(node, SRC0, row), row_address(node, DST, row)
        for start in range(0, ne(node, DST, 0), n):
            _hadamard(x + 4 * start, y + 4 * start, n, scale)


@lowers("HADAMARD", all_f32)
def _lower_hadamard(lowering: CpuLowering, node: Tensor) -> None:
    n = node.op_params["n"]
    lowering.launch(hadamard_f32, node, Hadamard(n, 1 / math.sqrt(n)), lowering.row_chunks(node))
