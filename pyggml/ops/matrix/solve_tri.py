"""SOLVE_TRI: a system of equations with a triangular matrix.

    x = solve_tri(ctx, a, b)                       # A X = B, A lower triangular

Source: ggml, ``ggml_compute_forward_solve_tri_f32``.
"""

from __future__ import annotations

import numpy as np

from ...context import Context
from ...errors import UnsupportedOp
from ...tensor import Tensor
from ..op import F32, Array, Case, Cost, Out, arg, case, define_op, require, source

__all__ = ["solve_tri"]


def _infer(a: Tensor, b: Tensor) -> Out:
    op, n = "SOLVE_TRI", a.ne[0]
    require(a.ne[1] == n, op, f"a {a.ne} is not square")
    require(b.ne[1:] == (n, *a.ne[2:]), op, f"b {b.ne}, want [k, {n}, {a.ne[2]}, {a.ne[3]}]")
    for name, x in (("a", a), ("b", b)):
        require(x.is_contiguous(), op, f"{name} {x.ne} has gaps (strides {x.nb})")
    return Out(F32, b.ne)


def _solve(a: Array, b: Array) -> Array:
    a, b = a.astype(np.float64), b.astype(np.float64)
    x = np.zeros(b.shape)
    for i in range(a.shape[-1]):
        known = np.einsum("...t,...tk->...k", a[..., i, :i], x[..., :i, :])
        x[..., i, :] = (b[..., i, :] - known) / a[..., i, i, None]
    return x


def _cost(node: Tensor) -> Cost:
    a = node.src[0]
    assert a is not None
    n = a.ne[0]
    return Cost(2 * node.nbytes + a.nbytes, n * (n + 1) // 2 * node.nelements // n)


def _case(n: int, k: int, *more: int, perf: bool = False) -> Case:
    def lower(rng: np.random.Generator) -> Array:  # ggml's range; junk above the diagonal
        x = rng.uniform(0.1, 1, (*more[::-1], n, n)).astype(np.float32)
        return np.where(np.tri(n, dtype=bool), x, np.float32(np.nan))

    return case(arg(n, n, *more, values=lower), arg(k, n, *more), perf=perf)


SOLVE_TRI = define_op(
    "SOLVE_TRI",
    src={"a": source(F32), "b": source(F32)},
    infer=_infer,
    reference=_solve,
    cases=lambda: [
        _case(10, 3, 4, 3),
        _case(11, 5),
        _case(17, 9, 2, 4),
        _case(30, 8, 7),
        _case(64, 64, 2),
        _case(20, 81, 2),
        _case(64, 64, 8, 32, perf=True),
        _case(128, 32, 4, 2, perf=True),
    ],
    cost=_cost,
    doc="X of `A X = B`, where A is lower triangular; what is above its diagonal is not read.",
)


def solve_tri(
    ctx: Context, a: Tensor, b: Tensor, left: bool = True, lower: bool = True, uni: bool = False
) -> Tensor:
    """X of ``A X = B`` for a lower triangular A.

    Args:
        left, lower, uni: A is on the left, lower triangular, and its diagonal is read: what ggml
            has too.

    Shape:
        a F32 [n, n, ...], b F32 [k, n, ...] -> F32 [k, n, ...]

    Raises:
        ShapeError, TypeMismatch: sizes or types do not fit.
        UnsupportedOp: another variant.
    """
    if not (left and lower) or uni:
        raise UnsupportedOp(
            f"SOLVE_TRI: left={left}, lower={lower}, uni={uni}: only left and lower with the "
            "diagonal of a (uni=False), as in ggml; transpose a and b for the others"
        )
    return SOLVE_TRI.build(ctx, a, b)
