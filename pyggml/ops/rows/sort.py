"""The order of elements: ARGSORT and TOP_K.

    experts = argsort_top_k(ctx, probs, 2)         # I32 [2, n_tokens], best first

Both are stable: of equal elements the one with the lower index comes first. TOP_K is in descending
order. In ggml both are unspecified. NaN counts as larger than inf (of negative sign: smaller than
-inf).
"""

from __future__ import annotations

import numpy as np

from ...context import Context
from ...tensor import Tensor
from ..movement.view import view_4d
from ..op import F32, I32, Array, Out, arg, case, define_op, require, source

__all__ = ["argsort", "argsort_top_k", "top_k"]


def _check(name: str, x: Tensor) -> None:
    require(x.ne[0] < 2**31, name, f"x '{x.name}' {x.ne} has more columns than I32 counts")


def _infer_argsort(x: Tensor, order: str) -> Out:
    _check("ARGSORT", x)
    require(order in ("asc", "desc"), "ARGSORT", f"order is {order!r}, want 'asc' or 'desc'")
    return Out(I32, x.ne)


def stable_order(x: Array, order: str) -> Array:
    """Indices I32 of the sorted last axis of ``x`` (see the module); ``order``: asc or desc."""
    bits = (x.astype(np.float32) + np.float32(0)).view(np.int32)  # -0 becomes 0
    keys = np.where(bits < 0, bits ^ 0x7FFFFFFF, bits)  # ordered as the floats are
    keys = np.where(np.isnan(x), np.int32(0x7FFFFFFF), keys)
    keys = keys if order == "asc" else ~keys
    return np.argsort(keys, axis=-1, kind="stable").astype(np.int32)


def _ties(rng: np.random.Generator) -> Array:
    return rng.integers(-2, 3, (17, 65)).astype(np.float32) * np.float32(0.5)


def _extreme(rng: np.random.Generator) -> Array:
    extremes = np.array([np.inf, -np.inf, np.nan, -np.nan, 0.0, -0.0, 1e-45, 3e38], np.float32)
    return rng.choice(extremes, (3, 33))


ARGSORT = define_op(
    "ARGSORT",
    src={"x": source(F32)},
    params={"order": "asc"},
    infer=_infer_argsort,
    reference=stable_order,
    cases=lambda: [
        *(
            case(a, order=order)
            for order in ("asc", "desc")
            for a in (
                arg(1),
                arg(2, 3),
                arg(8, 17),
                arg(65, 5, 3, 2),
                arg(64, 3, 5, permute=(0, 2, 1, 3)),
                arg(65, 17, values=_ties),
                arg(33, 3, values=_extreme),
                arg(1024, 2),
                arg(0, 3),
            )
        ),
        case(arg(60, 512), order="desc", perf=True),
        case(arg(49152, 1), order="desc", perf=True),
    ],
    exact=True,
    doc="The places of each row's elements in rising (`asc`) or falling (`desc`) order.",
)


def argsort(ctx: Context, x: Tensor, order: str = "asc") -> Tensor:
    """The indices of each row's elements in sorted order (stable).

    NaN counts as larger than infinity, negative NaN as smaller than -infinity.

    Args:
        order: ``asc`` or ``desc``.

    Shape:
        x F32 [n, ne1, ne2, ne3] -> I32 of the same sizes

    Raises:
        ShapeError, TypeMismatch: an unknown order, or not F32.
    """
    return ARGSORT.build(ctx, x, order=order)


def argsort_top_k(ctx: Context, x: Tensor, k: int) -> Tensor:
    """The indices of each row's ``k`` largest elements, largest first: a view of an ARGSORT.

    Shape:
        x F32 [n, ne1, ne2, ne3] -> I32 [k, ne1, ne2, ne3], rows with gaps between them

    Raises:
        ShapeError, TypeMismatch: fewer than k columns, or not F32.
    """
    _check_k("ARGSORT", x, k)
    order = argsort(ctx, x, "desc")
    return view_4d(ctx, order, (k, *x.ne[1:]), order.nb[1:])


def _check_k(name: str, x: Tensor, k: int) -> None:
    require(0 < k <= x.ne[0], name, f"k is {k}, want 1 to the {x.ne[0]} columns of '{x.name}'")


def _infer_top_k(x: Tensor, k: int) -> Out:
    _check("TOP_K", x)
    _check_k("TOP_K", x, k)
    return Out(I32, (k, *x.ne[1:]))


TOP_K = define_op(
    "TOP_K",
    src={"x": source(F32)},
    params={"k": 1},
    infer=_infer_top_k,
    reference=lambda x, k: stable_order(x, "desc")[..., :k],
    cases=lambda: [
        case(arg(1), k=1),
        case(arg(8, 17), k=2),
        case(arg(65, 5, 3, 2), k=7),
        case(arg(65, 3), k=65),
        case(arg(64, 3, 5, permute=(0, 2, 1, 3)), k=1),
        case(arg(65, 17, values=_ties), k=20),
        case(arg(33, 3, values=_extreme), k=33),
        case(arg(9001, 2), k=40),
        case(arg(60, 512), k=4, perf=True),
        case(arg(49152, 1), k=40, perf=True),
    ],
    exact=True,
    doc="The places of the `k` largest elements of each row, best first.",
)


def top_k(ctx: Context, x: Tensor, k: int) -> Tensor:
    """The indices of each row's ``k`` largest elements, largest first (unspecified in ggml).

    Shape:
        x F32 [n, ne1, ne2, ne3] -> I32 [k, ne1, ne2, ne3]

    Raises:
        ShapeError, TypeMismatch: fewer than k columns, or not F32.
    """
    return TOP_K.build(ctx, x, k=k)
