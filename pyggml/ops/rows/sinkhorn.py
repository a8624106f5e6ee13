"""SINKHORN: matrices whose rows and columns sum to 1, by normalising both in turns.

    y = sinkhorn(ctx, x, iterations=20, eps=1e-6)

Source: Sinkhorn and Knopp 1967, "Concerning Nonnegative Matrices and Doubly Stochastic Matrices";
Xie et al. 2026, "mHC: Manifold-Constrained Hyper-Connections"; ggml, ``ggml_dsv4_hc_comb``.
"""

from __future__ import annotations

import numpy as np

from ...context import Context
from ...tensor import Tensor
from ..op import F32, Array, Out, arg, case, define_op, require, same, source

__all__ = ["sinkhorn"]


def _infer(x: Tensor, iterations: int, eps: float) -> Out:
    require(
        iterations >= 1 and eps >= 0,
        "SINKHORN",
        f"{iterations} iterations and eps {eps}, want 1 or more iterations and eps 0 or more",
    )
    return same(x)


def _sinkhorn(x: Array, iterations: int, eps: float) -> Array:
    x = x.astype(np.float64)
    y = np.exp(x - x.max(axis=-1, keepdims=True))
    y = y / y.sum(axis=-1, keepdims=True) + eps
    for axis in (-2, *(-1, -2) * (iterations - 1)):
        y = y / (y.sum(axis=axis, keepdims=True) + eps)
    out: Array = y
    return out


SINKHORN = define_op(
    "SINKHORN",
    src={"x": source(F32)},
    params={"iterations": 1, "eps": 0.0},
    infer=_infer,
    reference=_sinkhorn,
    cases=lambda: [
        case(arg(1, 1), iterations=1, eps=0.1),
        case(arg(4, 4, 7, low=-5, high=5), iterations=20, eps=1e-6),
        case(arg(4, 5, 4, permute=(0, 2, 1, 3)), iterations=2, eps=1e-3),
        case(arg(3, 5, 2, 2), iterations=3, eps=1e-6),
        case(arg(4, 4, 512, low=-5, high=5), iterations=20, eps=1e-6, perf=True),
    ],
    doc="Softmax of rows plus `eps`, then columns and rows divided by their sums in turns.",
)


def sinkhorn(ctx: Context, x: Tensor, iterations: int, eps: float) -> Tensor:
    """Matrices whose columns sum to 1 and whose rows nearly do, the more ``iterations`` the nearer.

    The softmax of each row plus ``eps``, then columns divided by their sum plus ``eps``; then
    ``iterations - 1`` times rows and columns.

    Shape:
        x F32 [n, m, ne2, ne3] -> the same

    Raises:
        ShapeError, TypeMismatch: rows have gaps, another type, or a parameter is too small.
    """
    return SINKHORN.build(ctx, x, iterations=int(iterations), eps=float(eps))
