"""Element-wise arithmetic of two tensors: ADD, SUB, MUL and DIV.

    y = add(ctx, x, bias)                          # bias repeats over x

The second source repeats over the first; the result has the first one's type and sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from ..context import Context
from ..tensor import Tensor
from .op import (
    F16,
    FLOATS,
    Array,
    Case,
    Op,
    Out,
    arg,
    case,
    define_op,
    half_nmse,
    require,
    require_rows,
    require_type,
    same,
)


def _infer(name: str, a: Tensor, b: Tensor) -> Out:
    for source, x in (("a", a), ("b", b)):
        require_type(name, source, x, FLOATS)
        require_rows(name, source, x)
    require(
        all(n > 0 and m % n == 0 for m, n in zip(a.ne, b.ne, strict=True)),
        name,
        f"b '{b.name}' {b.ne} does not repeat over a '{a.name}' {a.ne}",
    )
    return same(a)


def repeat_over(x: Array, shape: tuple[int, ...]) -> Array:
    """``x`` tiled to ``shape`` (each size a multiple of the old one)."""
    return np.tile(x, [n // m for n, m in zip(shape, x.shape, strict=True)])


def _define(name: str, function: Callable[[Array, Array], Array], low: float) -> Op:
    b = partial(arg, low=low, high=low + 2)
    cases: list[Case] = [
        case(arg(1), b(1)),
        case(arg(65, 17, 3, 2), b(65, 17, 3, 2)),
        case(arg(17, 5), b(17)),
        case(arg(17, 5), b(1)),
        case(arg(65, 4, 6, 2), b(65, 2, 3, 1)),
        case(arg(66, 4), b(3, 4)),
        case(arg(17, 3), b(1, 3)),
        case(arg(17, 3, 5, permute=(0, 2, 1, 3)), b(17, 5, 3)),
        case(arg(17, 3, 5), b(17, 5, 3, permute=(0, 2, 1, 3))),
        case(arg(65, 5, type=F16), b(65, type=F16)),
        case(arg(65, 5, type=F16), b(65, 5)),
        case(arg(65, 5), b(65, 5, type=F16)),
        case(arg(576, 1), b(576), perf=True),
        case(arg(576, 512), b(576, 512), perf=True),
        case(arg(4096, 7), b(4096), perf=True),
    ]
    return define_op(
        name,
        src=("a", "b"),
        infer=partial(_infer, name),
        reference=lambda a, b: function(a, repeat_over(b, a.shape)),
        cases=cases,
        inplace_ok=True,
        max_nmse=half_nmse,
        doc=f"`{function.__name__}` of `a` and `b`, which repeats over `a`.",
    )


ADD = _define("ADD", np.add, -1)
SUB = _define("SUB", np.subtract, -1)
MUL = _define("MUL", np.multiply, -1)
DIV = _define("DIV", np.divide, 0.5)


def add(ctx: Context, a: Tensor, b: Tensor) -> Tensor:
    """``a + b``; ``b`` repeats over ``a``.

    Shape:
        a F32 or F16 [ne0, ne1, ne2, ne3], each size of b divides a's -> a's

    Raises:
        ShapeError, TypeMismatch: sizes or types do not fit.
    """
    return ADD.build(ctx, a, b)


def sub(ctx: Context, a: Tensor, b: Tensor) -> Tensor:
    """``a - b``; shapes and errors as ``add``."""
    return SUB.build(ctx, a, b)


def mul(ctx: Context, a: Tensor, b: Tensor) -> Tensor:
    """``a * b``; shapes and errors as ``add``."""
    return MUL.build(ctx, a, b)


def div(ctx: Context, a: Tensor, b: Tensor) -> Tensor:
    """``a / b``; shapes and errors as ``add``."""
    return DIV.build(ctx, a, b)
