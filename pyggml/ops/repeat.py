"""Copies that make tensors larger or turn them around: REPEAT, CONCAT, PAD, PAD_REFLECT_1D, ROLL.

y = concat(ctx, cached, new, dim=1)            # rows of new behind those of cached
"""

from __future__ import annotations

import numpy as np

from ..context import Context
from ..dtype import GGMLType
from ..errors import TypeMismatch
from ..tensor import Dims, Tensor
from .op import (
    BF16,
    F16,
    F32,
    I32,
    Array,
    Out,
    arg,
    case,
    define_op,
    require,
    require_rows,
    require_type,
    same,
)

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
    cases=[
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
)


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
    for source, x in (("a", a), ("b", b)):
        if x.type.is_quantized:
            require_rows("CONCAT", source, x)
    require(
        all(a.ne[i] == b.ne[i] for i in range(4) if i != dim),
        "CONCAT",
        f"a {a.ne} and b {b.ne} may differ in ne[{dim}] only",
    )
    ne0, ne1, ne2, ne3 = (n + b.ne[i] * (i == dim) for i, n in enumerate(a.ne))
    return Out(a.type, (ne0, ne1, ne2, ne3))


CONCAT = define_op(
    "CONCAT",
    src=("a", "b"),
    params={"dim": 0},
    infer=_infer_concat,
    reference=lambda a, b, dim: np.concatenate([a, b], axis=3 - dim),
    cases=[
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
    doc="`b` behind `a` along dimension `dim`.",
)


def concat(ctx: Context, a: Tensor, b: Tensor, dim: int) -> Tensor:
    """``b`` behind ``a`` along ``dim``; both of one type (quantized: blocks are copied).

    Shape:
        a and b, equal but for ne[dim] -> ne[dim] is the sum

    Raises:
        ShapeError, TypeMismatch: sizes or types do not fit.
    """
    return CONCAT.build(ctx, a, b, dim=int(dim))


def _check(name: str, a: Tensor) -> None:
    require_type(name, "a", a, (F32,))
    require_rows(name, "a", a)


def _infer_pad(a: Tensor, left: Dims, right: Dims, circular: bool) -> Out:
    _check("PAD", a)
    require(min(*left, *right) >= 0, "PAD", f"sizes cannot be negative: {left}, {right}")
    require(
        not circular or a.nelements > 0,
        "PAD",
        f"there is nothing in '{a.name}' {a.ne} that could go around",
    )
    ne0, ne1, ne2, ne3 = (p + n + q for p, n, q in zip(left, a.ne, right, strict=True))
    return Out(F32, (ne0, ne1, ne2, ne3))


def _pad(a: Array, left: Dims, right: Dims, circular: bool) -> Array:
    width = list(zip(left, right, strict=True))[::-1]
    return np.pad(a, width, mode="wrap") if circular else np.pad(a, width)


PAD = define_op(
    "PAD",
    src=("a",),
    params={"left": NONE, "right": NONE, "circular": False},
    infer=_infer_pad,
    reference=_pad,
    cases=[
        case(arg(1), right=(1, 0, 0, 0)),
        case(arg(17, 5, 3, 2), right=(3, 1, 0, 2)),
        case(arg(17, 5, 3, 2), left=(1, 2, 3, 1), right=(48, 0, 1, 0)),
        case(arg(17, 3, 5, permute=(0, 2, 1, 3)), left=(2, 0, 1, 0)),
        case(arg(17, 0), right=(0, 3, 0, 0)),
        case(arg(17, 5, 3, 2), left=(1, 2, 3, 1), right=(4, 0, 1, 2), circular=True),
        case(arg(3, 2), left=(7, 5, 0, 0), right=(8, 1, 0, 0), circular=True),
        case(arg(64, 64, 3), right=(8, 8, 0, 0), perf=True),
    ],
    exact=True,
    doc="Zeros (`circular`: the other end) before and behind `a` in each dimension.",
)


def pad(ctx: Context, a: Tensor, p0: int, p1: int, p2: int, p3: int) -> Tensor:
    """``p0`` .. ``p3`` zeros behind each dimension of ``a`` (F32). Raises: as ``pad_ext``."""
    return PAD.build(ctx, a, right=(p0, p1, p2, p3))


def pad_circular(ctx: Context, a: Tensor, p0: int, p1: int, p2: int, p3: int) -> Tensor:
    """As ``pad``, but what follows is the beginning again. Raises: as ``pad_ext``."""
    return PAD.build(ctx, a, right=(p0, p1, p2, p3), circular=True)


def pad_ext(ctx: Context, a: Tensor, left: Dims, right: Dims, *, circular: bool = False) -> Tensor:
    """``left`` zeros before and ``right`` zeros behind each dimension.

    Args:
        circular: what lies around is ``a`` again (in all dimensions).

    Shape:
        a F32 [ne0, ...] -> [left[0] + ne0 + right[0], ...]

    Raises:
        ShapeError, TypeMismatch: negative sizes, or not F32.
    """
    return PAD.build(ctx, a, left=tuple(left), right=tuple(right), circular=circular)


def _infer_reflect(a: Tensor, p0: int, p1: int) -> Out:
    _check("PAD_REFLECT_1D", a)
    require(
        0 <= p0 < a.ne[0] and 0 <= p1 < a.ne[0],
        "PAD_REFLECT_1D",
        f"p0 = {p0} and p1 = {p1} must be 0 to {a.ne[0] - 1}, less than a row of '{a.name}'",
    )
    return Out(F32, (a.ne[0] + p0 + p1, *a.ne[1:]))


PAD_REFLECT_1D = define_op(
    "PAD_REFLECT_1D",
    src=("a",),
    params={"p0": 0, "p1": 0},
    infer=_infer_reflect,
    reference=lambda a, p0, p1: np.pad(a, [(0, 0)] * 3 + [(p0, p1)], mode="reflect"),
    cases=[
        case(arg(1), p0=0, p1=0),
        case(arg(17, 5, 3, 2), p0=3, p1=16),
        case(arg(17, 3, 5, permute=(0, 2, 1, 3)), p0=16, p1=0),
        case(arg(512, 80), p0=10, p1=9, perf=True),
    ],
    exact=True,
    doc="Rows mirrored at both ends: `p0` elements before, `p1` behind.",
)


def pad_reflect_1d(ctx: Context, a: Tensor, p0: int, p1: int) -> Tensor:
    """Rows of ``a`` (F32) mirrored at their ends, the end itself once. Raises: ShapeError."""
    return PAD_REFLECT_1D.build(ctx, a, p0=p0, p1=p1)


def _infer_roll(a: Tensor, shift: Dims) -> Out:
    _check("ROLL", a)
    require(
        all(-n < s < n or s == 0 for s, n in zip(shift, a.ne, strict=True)),
        "ROLL",
        f"shifts {shift} must be less than the sizes of '{a.name}' {a.ne}",
    )
    return same(a)


ROLL = define_op(
    "ROLL",
    src=("a",),
    params={"shift": NONE},
    infer=_infer_roll,
    reference=lambda a, shift: np.roll(a, shift[::-1], axis=(0, 1, 2, 3)),
    cases=[
        case(arg(1), shift=NONE),
        case(arg(17, 5, 3, 2), shift=(3, 0, 0, 0)),
        case(arg(17, 5, 3, 2), shift=(-16, 4, -1, 1)),
        case(arg(17, 3, 5, permute=(0, 2, 1, 3)), shift=(1, -2, 0, 0)),
        case(arg(64, 64, 3), shift=(3, 3, 0, 0), perf=True),
    ],
    exact=True,
    doc="Each dimension moved on by `shift`; what leaves at one end comes in at the other.",
)


def roll(ctx: Context, a: Tensor, shift0: int, shift1: int, shift2: int, shift3: int) -> Tensor:
    """Element i of the result is element i - shift of ``a`` (F32), around the ends.

    Raises:
        ShapeError, TypeMismatch: a shift that is not less than the size, or not F32.
    """
    return ROLL.build(ctx, a, shift=(shift0, shift1, shift2, shift3))
