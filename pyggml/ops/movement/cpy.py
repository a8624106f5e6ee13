"""Copies that convert type and layout: CPY, CONT and DUP.

    cpy(ctx, k, cache_view)                        # into memory that exists; a view of it
    cast(ctx, x, GGMLType.F16)                     # into new memory
    cont(ctx, transpose(ctx, x))                   # without gaps, in order

Elements keep their order (``ne[0]`` fastest); shapes may differ where the number of elements does
not. Any strides are read and written.
"""

from __future__ import annotations

from math import prod

import numpy as np

from ...context import Context
from ...dtype import GGMLType
from ...errors import TypeMismatch
from ...tensor import Dims, Tensor
from ..op import (
    ALL_FLOATS,
    F16,
    F32,
    I32,
    OTHER_QUANTS,
    QUANTS,
    WRITTEN_QUANTS,
    Cost,
    Out,
    View,
    arg,
    case,
    define_op,
    derive_name,
    require,
    require_rows,
    same,
)

__all__ = ["cast", "cont", "cont_2d", "cont_3d", "cpy", "dup"]

BF16 = GGMLType.BF16
_cost = lambda node: Cost(node.nbytes + node.src[0].nbytes)  # noqa: E731


def _check(op: str, a: Tensor, type: GGMLType) -> None:
    ok = (
        (a.type == type and not type.is_quantized)
        or (a.type in ALL_FLOATS and (type in ALL_FLOATS or type.is_quantized))
        or (a.type.is_quantized and type in ALL_FLOATS)
        or {a.type, type} == {F32, I32}
    )
    if not ok:
        raise TypeMismatch(
            f"{op}: '{a.name}' {a.type.name} cannot become {type.name}; go through F32"
        )
    if a.type.is_quantized:
        require_rows(op, "a", a)


def _infer_cpy(a: Tensor, b: Tensor | None, type: GGMLType | None) -> Out | View:
    if b is None:
        out = same(a, type)
        _check("CPY", a, out.type)
        require(
            a.ne[0] % out.type.block_size == 0,
            "CPY",
            f"rows of {a.ne[0]} elements do not fill {out.type.name} blocks of "
            f"{out.type.block_size}",
        )
        return out
    _check("CPY", a, b.type)
    require(
        a.nelements == b.nelements,
        "CPY",
        f"source {a.ne} has {a.nelements} elements, target {b.ne} has {b.nelements}",
    )
    if b.type.is_quantized:
        require_rows("CPY", "b", b)
    return View(b, b.ne, b.nb)


CPY = define_op(
    "CPY",
    src=("a", "b?"),
    params={"type": None},
    infer=_infer_cpy,
    reference=lambda a, b, type: a if b is None else a.reshape(b.shape),
    cases=lambda: [
        case(arg(1), arg(1)),
        case(arg(65, 17, 3, 2), arg(65, 17, 3, 2)),
        case(arg(12, 5), arg(3, 4, 5)),
        case(arg(17, 3, 5, permute=(2, 0, 1, 3)), arg(3, 5, 17)),
        case(arg(17, 3, 5, permute=(1, 0, 2, 3)), arg(3, 17, 5, type=F16)),
        case(arg(17, 65), arg(65, 17, permute=(1, 0, 2, 3))),
        *(case(arg(65, 3, type=s), arg(65, 3, type=d)) for s in ALL_FLOATS for d in ALL_FLOATS),
        case(arg(65, 3), type=F16),
        case(arg(65, 3, low=-100, high=100), arg(65, 3, type=I32, low=0, high=9)),
        case(arg(65, 3, type=I32, low=-100, high=100), arg(65, 3)),
        *(case(arg(96, 17), arg(96, 17, type=t)) for t in QUANTS),
        *(case(arg(96, 17, type=t), arg(96, 17)) for t in QUANTS),
        *(case(arg(96, 3, type=h), arg(96, 3, type=t)) for h in (F16, BF16) for t in QUANTS),
        *(case(arg(96, 3, type=t), arg(96, 3, type=h)) for h in (F16, BF16) for t in QUANTS),
        case(arg(64, 3, 5, permute=(0, 2, 1, 3)), arg(64, 5, 3, type=GGMLType.Q8_0)),
        *(case(arg(512, 3), arg(512, 3, type=t)) for t in WRITTEN_QUANTS),
        *(case(arg(512, 3, type=t), arg(512, 3)) for t in OTHER_QUANTS),
        case(arg(3, 256, 2, permute=(1, 0, 2, 3)), arg(512, 3, type=GGMLType.IQ4_XS)),
        case(arg(512, 3, type=GGMLType.IQ4_XS), arg(64, 24, type=F16)),
        case(arg(576, 512), arg(576, 512, type=F16), perf=True),
        case(arg(4096, 65, permute=(1, 0, 2, 3)), arg(65, 4096), perf=True),
    ],
    exact=True,
    cost=_cost,
    doc="Copies `a` into `b` (a view of it) or into new memory of `type`, converting.",
    gradients={
        "a": lambda ops, y, dy: ops.reshaped(dy, y.src[0]),
        "b": lambda ops, y, dy: None,  # all of it is overwritten
    },
)


def cpy(ctx: Context, a: Tensor, b: Tensor) -> Tensor:
    """Copy ``a`` into ``b``, converting the type; the result is a view of ``b``.

    Shape:
        a and b have the same number of elements -> b's

    Raises:
        ShapeError: another number of elements.
        TypeMismatch: a pair of types that has no conversion.
    """
    node = CPY.build(ctx, a, b)
    if b.name:
        return node.set_name(f"{b.name} (copy of {a.name})")
    return derive_name(node, a, "copy")


def cast(ctx: Context, a: Tensor, type: GGMLType) -> Tensor:
    """A copy of ``a`` in another type (a CPY without a target). Raises: as ``cpy``."""
    return derive_name(CPY.build(ctx, a, type=type), a, "copy")


def _infer_cont(a: Tensor, ne: Dims | None) -> Out:
    _check("CONT", a, a.type)
    if ne is None:
        return same(a)
    require(
        prod(ne) == a.nelements,
        "CONT",
        f"'{a.name}' {a.ne} has {a.nelements} elements, {ne} has {prod(ne)}",
    )
    return Out(a.type, ne)


CONT = define_op(
    "CONT",
    src=("a",),
    params={"ne": None},
    infer=_infer_cont,
    reference=lambda a, ne: np.ascontiguousarray(a if ne is None else a.reshape(ne[::-1])),
    cases=lambda: [
        case(arg(1)),
        case(arg(65, 17, 3, 2)),
        case(arg(65, 17, permute=(1, 0, 2, 3))),
        case(arg(3, 17, 5, 2, permute=(0, 2, 1, 3))),
        case(arg(3, 17, 5, 2, permute=(3, 1, 0, 2))),
        case(arg(65, 17, 3, type=F16, permute=(1, 2, 0, 3))),
        case(arg(65, 17, type=I32, low=-9, high=9, permute=(1, 0, 2, 3))),
        case(arg(64, 9, 5, permute=(0, 2, 1, 3)), ne=(320, 9, 1, 1)),
        case(arg(64, 512, 9, permute=(0, 2, 1, 3)), ne=(576, 512, 1, 1), perf=True),
        case(arg(576, 512, permute=(1, 0, 2, 3)), perf=True),
    ],
    exact=True,
    cost=_cost,
    doc="A copy of `a` without gaps, in order; `ne` reshapes it on the way.",
    gradients={"a": lambda ops, y, dy: ops.reshaped(dy, y.src[0])},
)


def cont(ctx: Context, a: Tensor) -> Tensor:
    """A contiguous copy of ``a``."""
    return derive_name(CONT.build(ctx, a), a, "cont")


def cont_2d(ctx: Context, a: Tensor, ne0: int, ne1: int) -> Tensor:
    """A contiguous copy of ``a`` with the sizes [ne0, ne1]. Raises: ShapeError."""
    return derive_name(CONT.build(ctx, a, ne=(ne0, ne1, 1, 1)), a, "cont")


def cont_3d(ctx: Context, a: Tensor, ne0: int, ne1: int, ne2: int) -> Tensor:
    """A contiguous copy of ``a`` with the sizes [ne0, ne1, ne2]. Raises: ShapeError."""
    return derive_name(CONT.build(ctx, a, ne=(ne0, ne1, ne2, 1)), a, "cont")


def _infer_dup(a: Tensor) -> Out:
    _check("DUP", a, a.type)
    return same(a)


DUP = define_op(
    "DUP",
    src=("a",),
    infer=_infer_dup,
    reference=lambda a: a.copy(),
    cases=lambda: [
        case(arg(65, 17, 3)),
        case(arg(3, 17, 5, type=F16, permute=(2, 0, 1, 3))),
        case(arg(576, 65), perf=True),
    ],
    exact=True,
    cost=_cost,
    doc="A copy of `a`.",
    gradients={"a": lambda ops, y, dy: dy},
)


def dup(ctx: Context, a: Tensor) -> Tensor:
    """A contiguous copy of ``a`` (ggml keeps it apart from ``cont``)."""
    return DUP.build(ctx, a)
