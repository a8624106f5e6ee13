"""Element-wise arithmetic of two tensors: ADD, SUB, MUL, DIV and ADD1.

    y = add(ctx, x, bias)                          # bias repeats over x

The second source repeats over the first; the result has the first one's type and sizes.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ...context import Context
from ...dtype import GGMLType
from ...errors import ShapeError, TypeMismatch
from ...tensor import Tensor
from ..op import (
    ALL_FLOATS,
    BF16,
    F16,
    F32,
    Array,
    Case,
    Gradient,
    Op,
    OpBuilders,
    Out,
    arg,
    case,
    define_op,
    half_nmse,
    require,
    same,
    source,
)
from .formulas import reference

__all__ = ["add", "add1", "add_cast", "div", "mul", "sub"]


def repeats_over(b: Tensor, a: Tensor) -> bool:
    """Whether each size of ``b`` divides that of ``a``; an empty ``b`` only fits an empty ``a``."""
    if b.nelements == 0:
        return a.nelements == 0
    return all(m % n == 0 for m, n in zip(a.ne, b.ne, strict=True))


def _infer(name: str, a: Tensor, b: Tensor) -> Out:
    if not repeats_over(b, a):
        raise ShapeError(f"{name}: b '{b.name}' {b.ne} does not repeat over a '{a.name}' {a.ne}")
    return same(a)


def _infer_add(a: Tensor, b: Tensor, type: GGMLType | None) -> Out:
    out = _infer("ADD", a, b)
    if type is None:
        return out
    if a.type not in (F16, BF16, type) or type not in ALL_FLOATS:
        raise TypeMismatch(
            f"ADD: a '{a.name}' {a.type.name} cannot be added to as {type.name}; "
            "only F16 and BF16 become another float"
        )
    return same(a, type)


def repeat_over(x: Array, shape: tuple[int, ...]) -> Array:
    """``x`` tiled to ``shape`` (each size a multiple of the old one)."""
    return np.tile(x, [n // max(1, m) for n, m in zip(shape, x.shape, strict=True)])


_SOURCES = {"a": source(*ALL_FLOATS), "b": source(*ALL_FLOATS, gaps=True)}


def _cases(name: str, low: float) -> list[Case]:
    b = partial(arg, low=low, high=low + 2)
    cases = [
        case(arg(1), b(1)),
        case(arg(65, 17, 3, 2), b(65, 17, 3, 2)),
        case(arg(17, 5), b(17)),
        case(arg(17, 5), b(1)),
        case(arg(65, 4, 6, 2), b(65, 2, 3, 1)),
        case(arg(66, 4), b(3, 4)),
        case(arg(17, 3), b(1, 3)),
        case(arg(66, 400), b(3, 4)),  # several chunks
        case(arg(26400), b(33)),  # and of one row
        case(arg(17, 3, 5, permute=(0, 2, 1, 3)), b(17, 5, 3)),
        case(arg(17, 3, 5), b(17, 5, 3, permute=(0, 2, 1, 3))),
        case(arg(65, 5, type=F16), b(65, type=F16)),
        case(arg(65, 5, type=F16), b(65, 5)),
        case(arg(65, 5), b(65, 5, type=F16)),
        case(arg(576, 1), b(576), perf=True),
        case(arg(576, 512), b(576, 512), perf=True),
        case(arg(4096, 7), b(4096), perf=True),
    ]
    if name == "ADD":
        cases += [case(arg(65, 3, type=t), b(65), type=F32) for t in (F16, BF16)]
    return cases


_GRADIENTS: dict[str, tuple[Gradient, Gradient]] = {  # of a, and of b before it is added up
    "ADD": (lambda ops, y, dy: dy, lambda ops, y, dy: dy),
    "SUB": (lambda ops, y, dy: dy, lambda ops, y, dy: ops.unary(dy, kind="neg")),
    "MUL": (
        lambda ops, y, dy: ops.mul(dy, y.src[1]),
        lambda ops, y, dy: ops.mul(dy, y.src[0]),
    ),
    "DIV": (
        lambda ops, y, dy: ops.div(dy, y.src[1]),
        lambda ops, y, dy: ops.unary(ops.mul(dy, ops.div(y, y.src[1])), kind="neg"),
    ),
}


def _gradients(name: str) -> dict[str, Gradient]:
    of_a, of_b = _GRADIENTS[name]

    def added_up(ops: OpBuilders, y: Tensor, dy: Tensor) -> Tensor:
        db, b = of_b(ops, y, dy), y.src[1]
        assert db is not None and b is not None
        return ops.summed_to(db, b)

    return {"a": of_a, "b": added_up}


def _define(name: str, low: float) -> Op:
    return define_op(
        name,
        src=_SOURCES,
        params={"type": None} if name == "ADD" else {},
        infer=_infer_add if name == "ADD" else partial(_infer, name),
        reference=lambda a, b, type=None: reference(name.lower(), a, repeat_over(b, a.shape)),
        cases=partial(_cases, name, low),
        inplace_ok=True,
        max_nmse=half_nmse,
        doc=f"`{name.lower()}` of `a` and `b`, which repeats over `a`.",
        gradients=_gradients(name),
    )


ADD = _define("ADD", -1)
SUB = _define("SUB", -1)
MUL = _define("MUL", -1)
DIV = _define("DIV", 0.5)


def _infer_add1(a: Tensor, b: Tensor) -> Out:
    require(b.nelements == 1, "ADD1", f"b '{b.name}' {b.ne} must be one number")
    return _infer("ADD1", a, b)


ADD1 = define_op(
    "ADD1",
    src=_SOURCES,
    infer=_infer_add1,
    reference=lambda a, b: a + b,
    cases=lambda: [
        case(arg(1), arg(1)),
        case(arg(65, 17, 3, 2), arg(1)),
        case(arg(17, 3, 5, permute=(0, 2, 1, 3)), arg(1)),
        case(arg(17, 0), arg(1)),
        *(case(arg(65, 5, type=t), arg(1, type=t)) for t in (F16, BF16)),
        *(case(arg(65, 5, type=t), arg(1)) for t in (F16, BF16)),
        case(arg(576, 512), arg(1), perf=True),
    ],
    inplace_ok=True,
    max_nmse=half_nmse,
    doc="`a` plus the one number that `b` holds.",
    gradients={
        "a": lambda ops, y, dy: dy,
        "b": lambda ops, y, dy: ops.reshaped(ops.sum(dy), y.src[1]),
    },
)


def add(ctx: Context, a: Tensor, b: Tensor) -> Tensor:
    """``a + b``; ``b`` repeats over ``a``.

    Shape:
        a F32, F16 or BF16 [ne0, ne1, ne2, ne3], each size of b divides a's -> a's
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


def add_cast(ctx: Context, a: Tensor, b: Tensor, type: GGMLType) -> Tensor:
    """``a + b`` of an F16 or BF16 ``a`` as another float type (an ADD with a type).

    Raises:
        ShapeError, TypeMismatch: as ``add``; also for another type of ``a``.
    """
    return ADD.build(ctx, a, b, type=type)


def add1(ctx: Context, a: Tensor, b: Tensor) -> Tensor:
    """``a`` plus the one number in ``b`` [1]; types and errors as ``add``."""
    return ADD1.build(ctx, a, b)
