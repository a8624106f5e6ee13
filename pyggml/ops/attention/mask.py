"""Diagonals and triangles of matrices: DIAG, DIAG_MASK_INF, DIAG_MASK_ZERO and TRI.

kq = diag_mask_inf(ctx, kq, n_past)            # row j sees columns 0 .. n_past + j
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from ...context import Context
from ...tensor import Tensor
from ..op import (
    F32,
    Array,
    Op,
    OpBuilders,
    Out,
    arg,
    case,
    define_op,
    require,
    require_rows,
    require_type,
    same,
)

__all__ = ["diag", "diag_mask_inf", "diag_mask_zero", "tri"]


def _check(name: str, x: Tensor) -> None:
    require_type(name, "x", x, (F32,))
    require_rows(name, "x", x)


def _infer_diag(x: Tensor) -> Out:
    _check("DIAG", x)
    require(x.ne[1] == 1, "DIAG", f"x '{x.name}' {x.ne} must be one row a matrix, ne[1] = 1")
    return Out(F32, (x.ne[0], x.ne[0], x.ne[2], x.ne[3]))


def _diag_gradient(ops: OpBuilders, y: Tensor, dy: Tensor) -> Tensor:
    x, dy = y.src[0], ops.contiguous(dy)
    assert x is not None
    nb0, nb1, nb2, nb3 = dy.nb
    out: Tensor = ops.view(dy, ne=x.ne, nb=(nb0 + nb1, nb2, nb2, nb3))
    return out


DIAG = define_op(
    "DIAG",
    src=("x",),
    infer=_infer_diag,
    reference=lambda x: np.where(np.eye(x.shape[-1], dtype=bool), x, np.zeros((), x.dtype)),
    cases=lambda: [
        case(arg(1)),
        case(arg(65)),
        case(arg(17, 1, 3, 2)),
        case(arg(17, 3, permute=(0, 2, 1, 3))),
        case(arg(0)),
        case(arg(512), perf=True),
    ],
    exact=True,
    doc="Matrices with `x` on their diagonals and zeros elsewhere.",
    gradients={"x": _diag_gradient},
)


def diag(ctx: Context, x: Tensor) -> Tensor:
    """Matrices with the rows of ``x`` on their diagonals.

    Shape:
        x F32 [n, 1, ne2, ne3] -> [n, n, ne2, ne3]

    Raises:
        ShapeError, TypeMismatch: more than one row a matrix, or not F32.
    """
    return DIAG.build(ctx, x)


def _infer_diag_mask(name: str, x: Tensor, n_past: int) -> Out:
    _check(name, x)
    require(n_past >= 0, name, f"n_past is {n_past}, want 0 or more")
    return same(x)


def _diag_mask(value: float, x: Array, n_past: int) -> Array:
    seen = np.tri(x.shape[2], x.shape[3], n_past, dtype=bool)
    return np.where(seen, x, np.float32(value))


def _define_diag_mask(name: str, value: float) -> Op:
    return define_op(
        name,
        src=("x",),
        params={"n_past": 0},
        infer=partial(_infer_diag_mask, name),
        reference=partial(_diag_mask, value),
        cases=lambda: [
            case(arg(1), n_past=0),
            case(arg(65, 17, 3, 2), n_past=0),
            case(arg(65, 17, 3, 2), n_past=48),
            case(arg(17, 65), n_past=5),  # rows that see everything
            case(arg(17, 3), n_past=100),
            case(arg(17, 3, 5, permute=(0, 2, 1, 3)), n_past=2),
            case(arg(512, 512, 9), n_past=0, perf=True),
        ],
        exact=True,
        inplace_ok=True,
        doc=f"Row j of each matrix of `x`, with {value} after column `n_past + j`.",
        gradients={"x": lambda ops, y, dy: ops.diag_mask_zero(dy, n_past=y.op_params["n_past"])},
    )


DIAG_MASK_INF = _define_diag_mask("DIAG_MASK_INF", -np.inf)
DIAG_MASK_ZERO = _define_diag_mask("DIAG_MASK_ZERO", 0.0)


def diag_mask_inf(ctx: Context, x: Tensor, n_past: int) -> Tensor:
    """``x`` (F32) with -inf where a column is after ``n_past`` + its row.

    Raises:
        ShapeError, TypeMismatch: a negative ``n_past``, or not F32.
    """
    return DIAG_MASK_INF.build(ctx, x, n_past=n_past)


def diag_mask_zero(ctx: Context, x: Tensor, n_past: int) -> Tensor:
    """As ``diag_mask_inf``, with zeros."""
    return DIAG_MASK_ZERO.build(ctx, x, n_past=n_past)


# kind -> what remains, of column and row
TRIANGLES: dict[str, Callable[[Array, Array], Array]] = {
    "lower": np.less,
    "lower_diag": np.less_equal,
    "upper": np.greater,
    "upper_diag": np.greater_equal,
}


def _infer_tri(x: Tensor, kind: str) -> Out:
    _check("TRI", x)
    require(kind in TRIANGLES, "TRI", f"no kind {kind!r}; there are {[*TRIANGLES]}")
    require(x.ne[0] == x.ne[1], "TRI", f"x '{x.name}' {x.ne} must hold square matrices")
    return same(x)


def _tri(x: Array, kind: str) -> Array:
    i = np.arange(x.shape[-1])
    return np.where(TRIANGLES[kind](i, i[:, None]), x, np.float32(0))


TRI = define_op(
    "TRI",
    src=("x",),
    params={"kind": ""},
    infer=_infer_tri,
    reference=_tri,
    cases=lambda: [
        *(case(arg(17, 17, 3, 2), kind=kind) for kind in TRIANGLES),
        *(case(arg(1), kind=kind) for kind in TRIANGLES),
        case(arg(17, 3, 17, permute=(0, 2, 1, 3)), kind="lower"),
        case(arg(512, 512), kind="lower_diag", perf=True),
    ],
    exact=True,
    doc="One triangle of each matrix, with (`_diag`) or without the diagonal; zeros elsewhere.",
    gradients={"x": lambda ops, y, dy: ops.tri(dy, kind=y.op_params["kind"])},
)


def tri(ctx: Context, x: Tensor, kind: str) -> Tensor:
    """One triangle of square matrices (F32), zeros elsewhere.

    Args:
        kind: ``lower``, ``lower_diag`` (with the diagonal), ``upper`` or ``upper_diag``.

    Raises:
        ShapeError, TypeMismatch: an unknown kind, not square, or not F32.
    """
    return TRI.build(ctx, x, kind=kind)
