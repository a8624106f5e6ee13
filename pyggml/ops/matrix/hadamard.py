"""Rotation of vectors by the Walsh-Hadamard matrix: HADAMARD.

    y = hadamard(ctx, x, 64)                       # each 64 elements of a row
    x = hadamard(ctx, y, 64)                       # and back

The matrix is orthonormal and its own inverse. Rotated vectors have the same dot products, and
outliers are spread over all elements, so that quantization in blocks has smaller errors.
Source: llama.cpp, which rotates keys and values of quantized caches by this matrix as a weight.
"""

from __future__ import annotations

import numpy as np

from ...context import Context
from ...tensor import Tensor
from ..op import F32, Array, Out, arg, case, define_op, require, same, source

__all__ = ["hadamard"]


def _infer(x: Tensor, n: int) -> Out:
    require(n > 0 and n & (n - 1) == 0, "HADAMARD", f"n is {n}, want a power of two")
    require(x.ne[0] % n == 0, "HADAMARD", f"rows of x '{x.name}' {x.ne} are no multiple of {n}")
    return same(x)


def _reference(x: Array, n: int) -> Array:
    matrix = np.ones((1, 1))
    while len(matrix) < n:  # Sylvester's construction
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    blocks = x.astype(np.float64).reshape(*x.shape[:-1], -1, n)
    return np.asarray((blocks @ matrix / np.sqrt(n)).reshape(x.shape))


HADAMARD = define_op(
    "HADAMARD",
    src={"x": source(F32)},
    params={"n": 64},
    infer=_infer,
    reference=_reference,
    cases=lambda: [
        case(arg(5, 3), n=1),
        case(arg(6, 3), n=2),
        case(arg(12, 1), n=4),
        case(arg(8, 17), n=8),
        case(arg(64, 9, 5), n=64),
        case(arg(64, 3, 5, 2, permute=(0, 2, 1, 3)), n=64),
        case(arg(192, 7), n=64),
        case(arg(512, 3, low=-1e6, high=1e6), n=256),
        case(arg(64, 9, 512), n=64, perf=True),
    ],
    inplace_ok=True,
    doc="Each `n` elements of a row times the orthonormal Walsh-Hadamard matrix.",
    gradients={"x": lambda ops, y, dy: ops.hadamard(dy, n=y.op_params["n"])},
)


def hadamard(ctx: Context, x: Tensor, n: int) -> Tensor:
    """Each ``n`` elements of a row times the orthonormal Walsh-Hadamard matrix, its own inverse.

    Args:
        n: a power of two that divides the length of rows.

    Shape:
        x F32 [m, ...] -> the same

    Raises:
        ShapeError, TypeMismatch: rows that ``n`` does not divide; another type than F32.
    """
    return HADAMARD.build(ctx, x, n=n)
