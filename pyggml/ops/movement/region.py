"""Writing into a region of a tensor: SET replaces it, ACC adds to it.

    y = acc(ctx, a, b, a.nb[1:], offset)           # a with b added from byte ``offset`` on

The region has the sizes of ``b``, strides of its own and an offset in bytes. The plain forms give
a copy of ``a``; ``_inplace`` writes into its memory and gives a view.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ...context import Context
from ...tensor import Tensor
from ..op import (
    F32,
    I32,
    Array,
    Case,
    Cost,
    OpBuilders,
    Out,
    View,
    arg,
    case,
    define_op,
    derive_name,
    require,
    require_rows,
    require_type,
    same,
)

__all__ = [
    "acc", "acc_inplace", "set", "set_1d", "set_1d_inplace", "set_2d", "set_2d_inplace",
    "set_inplace",
]  # fmt: skip

Strides = tuple[int, int, int]  # nb[1], nb[2], nb[3]
_ELEMENT = 4  # bytes, of F32 and I32


def _infer(name: str, a: Tensor, b: Tensor, nb: Strides, offset: int, inplace: bool) -> Out | View:
    require_type(name, "a", a, (F32,) if name == "ACC" else (F32, I32))
    require_type(name, "b", b, (a.type,))
    require_rows(name, "b", b)
    require(a.is_contiguous(), name, f"a '{a.name}' {a.ne} has gaps; use cont() first")
    size = a.type.type_size
    require(
        min(*nb, offset) >= 0 and all(n % size == 0 for n in (*nb, offset)),
        name,
        f"strides {nb} and offset {offset} must be multiples of {size} bytes, and not negative",
    )
    end = size * b.ne[0]
    for n, stride in sorted(zip(b.ne[1:], nb, strict=True), key=lambda d: d[1]):
        require(
            n <= 1 or stride >= end,
            name,
            f"strides {nb} put parts of b '{b.name}' {b.ne} over each other",
        )
        end += max(0, n - 1) * stride
    require(
        b.nelements == 0 or offset + end <= a.nbytes,
        name,
        f"b '{b.name}' {b.ne} with strides {nb} from byte {offset} on ends at {offset + end}, "
        f"past the {a.nbytes} bytes of a '{a.name}'",
    )
    return View(a, a.ne, a.nb) if inplace else same(a)


def _region(out: Array, b: Array, nb: Strides, offset: int) -> Array:
    """The part of a contiguous array that ``b`` goes to."""
    flat = out.reshape(-1)[offset // _ELEMENT :]
    strides = (n // _ELEMENT * out.itemsize for n in (*nb[::-1], _ELEMENT))
    return np.lib.stride_tricks.as_strided(flat, b.shape, tuple(strides))


def _write(
    a: Array, b: Array, nb: Strides, offset: int, inplace: bool, *, add: bool = False
) -> Array:
    out = np.array(a, order="C")
    if b.size:
        region = _region(out, b, nb, offset)
        region[...] = region + b if add else b
    return out


def _cases() -> list[Case]:
    rows = (68, 340, 1020)  # of a [17, 5, 3, 2]
    return [
        case(arg(1), arg(1), nb=(4, 4, 4)),
        case(arg(17, 5, 3, 2), arg(17, 5, 3, 2), nb=rows),
        case(arg(17, 5, 3, 2), arg(5, 2, 2, 2), nb=rows, offset=68 + 8),
        case(arg(17, 5, 3, 2), arg(5, 2, 2, 2), nb=rows, offset=68 + 8, inplace=True),
        case(arg(17, 5, 3), arg(17, 3), nb=(340, 4, 4), offset=68),  # row 1 of each matrix
        case(arg(65, 3), arg(17), nb=(0, 0, 0), offset=4 * 65),
        case(arg(17, 5), arg(5, 2, 3, permute=(0, 2, 1, 3)), nb=(20, 68, 68), offset=0),
        case(arg(17, 3), arg(17, 0), nb=(68, 68, 68), inplace=True),
        case(arg(576, 512), arg(64, 512), nb=(2304, 2304, 2304), offset=256, perf=True),
    ]


_PARAMS = {"nb": (0, 0, 0), "offset": 0, "inplace": False}


def _region_gradient(ops: OpBuilders, y: Tensor, dy: Tensor) -> Tensor:
    b, p = y.src[1], y.op_params
    assert b is not None
    nb = (y.nb[0], *p["nb"])
    return ops.view(ops.contiguous(dy), ne=b.ne, nb=nb, offset=p["offset"])


def _outside_gradient(ops: OpBuilders, y: Tensor, dy: Tensor) -> Tensor:
    b = y.src[1]
    assert b is not None
    zeros = ops.fill(ops.contiguous(b), c=0.0)
    return ops.set(ops.contiguous(dy), zeros, nb=y.op_params["nb"], offset=y.op_params["offset"])


SET = define_op(
    "SET",
    src=("a", "b"),
    params=_PARAMS,
    infer=partial(_infer, "SET"),
    reference=_write,
    cases=lambda: [
        *_cases(),
        *(
            case(
                arg(17, 5, type=I32, low=-9, high=9),
                arg(5, 2, type=I32, low=-9, high=9),
                nb=(68, 68, 68),
                offset=8,
                inplace=inplace,
            )
            for inplace in (False, True)
        ),
    ],
    exact=True,
    cost=lambda node: Cost(2 * (node.src[1] if node.op_params["inplace"] else node).nbytes),
    doc="`a` with a region replaced by `b`.",
    gradients={"a": _outside_gradient, "b": _region_gradient},
)

ACC = define_op(
    "ACC",
    src=("a", "b"),
    params=_PARAMS,
    infer=partial(_infer, "ACC"),
    reference=partial(_write, add=True),
    cases=_cases,
    exact=True,
    cost=lambda node: Cost(3 * (node.src[1] if node.op_params["inplace"] else node).nbytes),
    doc="`a` with `b` added to a region.",
    gradients={"a": lambda ops, y, dy: dy, "b": _region_gradient},
)


def set(ctx: Context, a: Tensor, b: Tensor, nb: Strides, offset: int) -> Tensor:
    """A copy of ``a`` in which a region is ``b``.

    Args:
        nb: strides of the region in bytes, dimensions 1 to 3.
        offset: bytes from the first element of ``a`` to the region's.

    Shape:
        a F32 or I32, contiguous; b of the same type -> a's

    Raises:
        ShapeError, TypeMismatch: the region leaves ``a`` or overlaps itself, or types differ.
    """
    return SET.build(ctx, a, b, nb=tuple(nb), offset=offset)


def set_inplace(ctx: Context, a: Tensor, b: Tensor, nb: Strides, offset: int) -> Tensor:
    """As ``set``, but into the memory of ``a``; a view of it."""
    return derive_name(SET.build(ctx, a, b, nb=tuple(nb), offset=offset, inplace=True), a, "view")


def set_1d(ctx: Context, a: Tensor, b: Tensor, offset: int) -> Tensor:
    """``set`` of a region that is laid out like ``a`` itself."""
    return set(ctx, a, b, a.nb[1:], offset)


def set_1d_inplace(ctx: Context, a: Tensor, b: Tensor, offset: int) -> Tensor:
    """``set_inplace`` of a region that is laid out like ``a`` itself."""
    return set_inplace(ctx, a, b, a.nb[1:], offset)


def set_2d(ctx: Context, a: Tensor, b: Tensor, nb1: int, offset: int) -> Tensor:
    """``set`` of a matrix whose rows are ``nb1`` bytes apart."""
    return set(ctx, a, b, (nb1, *a.nb[2:]), offset)


def set_2d_inplace(ctx: Context, a: Tensor, b: Tensor, nb1: int, offset: int) -> Tensor:
    """``set_inplace`` of a matrix whose rows are ``nb1`` bytes apart."""
    return set_inplace(ctx, a, b, (nb1, *a.nb[2:]), offset)


def acc(ctx: Context, a: Tensor, b: Tensor, nb: Strides, offset: int) -> Tensor:
    """A copy of ``a`` with ``b`` added to a region; both F32. Arguments, errors: as ``set``."""
    return ACC.build(ctx, a, b, nb=tuple(nb), offset=offset)


def acc_inplace(ctx: Context, a: Tensor, b: Tensor, nb: Strides, offset: int) -> Tensor:
    """As ``acc``, but into the memory of ``a``; a view of it."""
    return derive_name(ACC.build(ctx, a, b, nb=tuple(nb), offset=offset, inplace=True), a, "view")
