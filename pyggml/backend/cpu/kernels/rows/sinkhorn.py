"""SINKHORN: a matrix is normalised where its result will be, by one thread.

Sums are in the order of the elements, so that a matrix has the same bits among any others.
Access: a matrix stays in L1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .....compiler.jit import inline_strict, kernel
from .....tensor import Tensor
from ....common.lowering import all_f32
from ...abi import DST, SRC0, data, f32_ptr, first_row, ne, params_of, row_address
from ...compile.lowering import CpuLowering, lowers
from ...simd.math import exp_f32

_GRAIN = 512  # elements of a chunk times iterations, at least


class Sinkhorn(NamedTuple):
    """The values of SINKHORN."""

    iterations: int
    eps: float


@inline_strict
def _softmax(x, y, n, eps):
    """``softmax(x) + eps`` of a row."""
    a, b = f32_ptr(x), f32_ptr(y)
    highest, total = a[0] + np.float32(0), np.float32(0)
    for i in range(1, n):
        highest = max(highest, a[i])
    for i in range(n):
        b[i] = exp_f32(a[i] - highest)
        total += b[i]
    for i in range(n):
        b[i] = b[i] / total + eps


@inline_strict
def _divide(y, n, step, eps):
    """Divide ``n`` elements, ``step`` apart, by their sum plus ``eps``."""
    b, total = f32_ptr(y), np.float32(0)
    for i in range(n):
        total += b[i * step]
    total += eps
    for i in range(n):
        b[i * step] /= total


@kernel
def sinkhorn_f32(node, chunk, n_chunks, scratch):
    """A range of matrices."""
    p = params_of(node, Sinkhorn)
    iterations, eps = p.iterations, p.eps
    n, m, units = ne(node, DST, 0), ne(node, DST, 1), ne(node, DST, 2) * ne(node, DST, 3)
    for u in range(first_row(units, chunk, n_chunks), first_row(units, chunk + 1, n_chunks)):
        y = data(node, DST) + 4 * n * m * u
        for j in range(m):
            _softmax(row_address(node, SRC0, u * m + j), y + 4 * n * j, n, eps)
        for k in range(iterations):
            if k > 0:
                for j in range(m):
                    _divide(y + 4 * n * j, n, 1, eps)
            for i in range(n):
                _divide(y + 4 * i, m, n, eps)


@lowers("SINKHORN", all_f32)
def _lower_sinkhorn(lowering: CpuLowering, node: Tensor) -> None:
    params = Sinkhorn(node.op_params["iterations"], node.op_params["eps"])
    units = node.ne[2] * node.ne[3]
    work = node.nelements * params.iterations // _GRAIN
    lowering.launch(sinkhorn_f32, node, params, max(1, min(units, work, 8 * lowering.n_threads)))
