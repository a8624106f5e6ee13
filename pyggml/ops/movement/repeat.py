"""Larger tensors from copies of smaller ones: REPEAT and CONCAT; REPEAT_BACK adds copies up.

y = concat(ctx, cached, new, dim=1)            # rows of new after those of cached
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ...context import Context
from ...dtype import GGMLType
from ...errors import TypeMismatch
from ...tensor import Dims, Tensor
from ..op import (
    BF16,
    F16,
    F32,
    I32,
    Array,
    OpBuilders,
    Out,
    arg,
    case,
    define_op,
    require,
    require_rows,
    source,
)

__all__ = ["concat", "repeat", "repeat_4d", "repeat_back"]

NONE: Dims = (0, 0, 0, 0)


def _infer_repeat(a: Tensor, ne: Dims) -> Out:
    if a.type.is_quantized:
        raise TypeMismatch(f"REPEAT: '{a.name}' is {a.type.name}; dequantize it first")
    require_rows("REPEAT", "a", a)
    empty = a.nelements == 0
    require(
        0 in ne if empty else all(n % m == 0 for n, m in zip(ne, a.ne, strict=True)),
        "REPEAT",
        f"'{a.name}' {a.ne} does not repeat over {ne}",
    )
    return Out(a.type, ne)


def _repeat(a: Array, ne: Dims) -> Array:
    return np.tile(a, [n // max(1, m) for n, m in zip(ne[::-1], a.shape, strict=True)])


REPEAT = define_op(
    "REPEAT",
    src=("a",),
    params={"ne": NONE},
    infer=_infer_repeat,
    reference=_repeat,
    cases=lambda: [
        case(arg(1), ne=(1, 1, 1, 1)),
        case(arg(1), ne=(65, 3, 2, 1)),
        case(arg(17, 3), ne=(17, 6, 5, 1)),
        case(arg(3, 5, 2, 2), ne=(51, 5, 4, 6)),
        case(arg(1, 17), ne=(65, 17, 1, 1)),
        case(arg(16, 3, 5, permute=(0, 2, 1, 3)), ne=(32, 5, 3, 2)),
        case(arg(33), ne=(9900, 1, 1, 1)),  # a row in several parts
        case(arg(17, 0), ne=(17, 0, 2, 1)),
        *(case(arg(17, 3, type=t), ne=(34, 3, 2, 1)) for t in (F16, BF16)),
        *(
            case(arg(17, 3, type=t, low=-9, high=9), ne=(17, 6, 1, 1))
            for t in (I32, GGMLType.I16, GGMLType.I8, GGMLType.I64)
        ),
        case(arg(576, 1), ne=(576, 512, 1, 1), perf=True),
    ],
    exact=True,
    doc="`a` side by side until it has the sizes `ne`.",
    gradients={"a": lambda ops, y, dy: ops.summed_to(dy, y.src[0])},
)


def _infer_repeat_back(a: Tensor, ne: Dims) -> Out:
    require(
        min(ne) > 0 and all(m % n == 0 for n, m in zip(ne, a.ne, strict=True)),
        "REPEAT_BACK",
        f"{ne} does not repeat over '{a.name}' {a.ne}",
    )
    return Out(F32, ne)


def _repeat_back(a: Array, ne: Dims) -> Array:
    pairs = [n for m, n in zip(a.shape, ne[::-1], strict=True) for n in (m // n, n)]
    return np.asarray(a.reshape(pairs).sum(axis=(0, 2, 4, 6), dtype=np.float64))


REPEAT_BACK = define_op(
    "REPEAT_BACK",
    src={"a": source(F32)},
    params={"ne": NONE},
    infer=_infer_repeat_back,
    reference=_repeat_back,
    cases=lambda: [
        case(arg(1), ne=(1, 1, 1, 1)),
        case(arg(65, 17, 3, 2), ne=(65, 1, 1, 1)),
        case(arg(65, 18, 4, 6), ne=(65, 9, 2, 3)),
        case(arg(66, 17, 3, 2), ne=(33, 17, 3, 1)),
        case(arg(65, 17, 3, 2), ne=(1, 1, 3, 1)),  # as a bias of channels
        case(arg(65, 17), ne=(1, 1, 1, 1)),
        case(arg(64, 3, 5, permute=(0, 2, 1, 3)), ne=(64, 1, 3, 1)),
        case(arg(26400, 2), ne=(26400, 1, 1, 1)),
        case(arg(2, 4000), ne=(2, 1, 1, 1)),
        case(arg(576, 512), ne=(576, 1, 1, 1), perf=True),
    ],
    doc="The sum of the parts of `a` that have the sizes `ne`: the gradient of a repeated tensor.",
    gradients={"a": lambda ops, y, dy: ops.repeat(dy, ne=y.src[0].ne)},
)


def repeat_back(ctx: Context, a: Tensor, b: Tensor) -> Tensor:
    """The sum of the parts of ``a`` (F32) that have the sizes of ``b``.

    Shape:
        each size of b divides that of a -> b's

    Raises:
        ShapeError, TypeMismatch: sizes do not fit, or not F32.
    """
    return REPEAT_BACK.build(ctx, a, ne=b.ne)


def repeat(ctx: Context, a: Tensor, b: Tensor) -> Tensor:
    """``a`` repeated until it has the sizes of ``b``; any type but quantized ones.

    Shape:
        each size of a divides that of b -> b's

    Raises:
        ShapeError, TypeMismatch: sizes do not fit, or a is quantized.
    """
    return REPEAT.build(ctx, a, ne=b.ne)


def repeat_4d(ctx: Context, a: Tensor, ne0: int, ne1: int, ne2: int, ne3: int) -> Tensor:
    """``a`` repeated until it has these sizes. Raises: as ``repeat``."""
    return REPEAT.build(ctx, a, ne=(ne0, ne1, ne2, ne3))


def _infer_concat(a: Tensor, b: Tensor, dim: int) -> Out:
    require(0 <= dim <= 3, "CONCAT", f"dim is {dim}, want 0 to 3")
    if a.type != b.type:
        raise TypeMismatch(f"CONCAT: a is {a.type.name} and b is {b.type.name}, want one type")
    for name, x in (("a", a), ("b", b)):
        if x.type.is_quantized:
            require_rows("CONCAT", name, x)
    require(
        all(a.ne[i] == b.ne[i] for i in range(4) if i != dim),
        "CONCAT",
        f"a {a.ne} and b {b.ne} may differ in ne[{dim}] only",
    )
    ne0, ne1, ne2, ne3 = (n + b.ne[i] * (i == dim) for i, n in enumerate(a.ne))
    return Out(a.type, (ne0, ne1, ne2, ne3))


def _concat_gradient(which: int, ops: OpBuilders, y: Tensor, dy: Tensor) -> Tensor:
    """The source's part of ``dy``, as a view."""
    a, x, dim = y.src[0], y.src[which], y.op_params["dim"]
    assert a is not None and x is not None
    return ops.view(dy, ne=x.ne, nb=dy.nb, offset=which * a.ne[dim] * dy.nb[dim])


CONCAT = define_op(
    "CONCAT",
    src=("a", "b"),
    params={"dim": 0},
    infer=_infer_concat,
    reference=lambda a, b, dim: np.concatenate([a, b], axis=3 - dim),
    cases=lambda: [
        case(arg(1), arg(1), dim=0),
        case(arg(17, 5, 3, 2), arg(65, 5, 3, 2), dim=0),
        case(arg(17, 5, 3, 2), arg(17, 1, 3, 2), dim=1),
        case(arg(17, 5, 3, 2), arg(17, 5, 4, 2), dim=2),
        case(arg(17, 5, 3, 2), arg(17, 5, 3, 1), dim=3),
        case(arg(17, 3, 5, permute=(0, 2, 1, 3)), arg(17, 2, 3), dim=1),
        case(arg(17, 5, permute=(1, 0, 2, 3)), arg(3, 17, permute=(0, 1, 2, 3)), dim=0),
        case(arg(17, 0), arg(17, 3), dim=1),
        *(case(arg(17, 3, type=t), arg(5, 3, type=t), dim=0) for t in (F16, BF16)),
        *(
            case(arg(17, 3, type=t, low=-9, high=9), arg(17, 2, type=t, low=-9, high=9), dim=1)
            for t in (I32, GGMLType.I16, GGMLType.I8, GGMLType.I64)
        ),
        *(
            case(arg(64, 3, type=GGMLType.Q4_0), arg(*ne, type=GGMLType.Q4_0), dim=dim)
            for dim, ne in ((0, (32, 3)), (1, (64, 5)))
        ),
        case(arg(64, 512, 3), arg(64, 1, 3), dim=1, perf=True),
    ],
    exact=True,
    doc="`b` after `a` along dimension `dim`.",
    gradients={"a": partial(_concat_gradient, 0), "b": partial(_concat_gradient, 1)},
)


def concat(ctx: Context, a: Tensor, b: Tensor, dim: int) -> Tensor:
    """``b`` after ``a`` along ``dim``; both of one type (quantized: blocks are copied).

    Shape:
        a and b, equal but for ne[dim] -> ne[dim] is the sum
    """
    return CONCAT.build(ctx, a, b, dim=int(dim))
