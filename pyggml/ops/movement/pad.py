"""Elements around a tensor's ends: PAD, PAD_REFLECT_1D and ROLL.

y = pad(ctx, image, 1, 1, 0, 0)                # a column and a row of zeros after each image
"""

from __future__ import annotations

import numpy as np

from ...context import Context
from ...tensor import Dims, Tensor
from ..op import F32, Array, OpBuilders, Out, arg, case, define_op, require, same, source

__all__ = ["pad", "pad_circular", "pad_ext", "pad_reflect_1d", "roll"]

NONE: Dims = (0, 0, 0, 0)


def _infer_pad(a: Tensor, left: Dims, right: Dims, circular: bool) -> Out:
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


def _pad_gradient(ops: OpBuilders, y: Tensor, dy: Tensor) -> Tensor:
    a = y.src[0]
    assert a is not None
    if y.op_params["circular"]:  # with zeros to whole copies of a, which are summed
        left = tuple(-p % n for p, n in zip(y.op_params["left"], a.ne, strict=True))
        right = tuple(-(p + m) % n for p, m, n in zip(left, y.ne, a.ne, strict=True))
        return ops.summed_to(ops.pad(dy, left=left, right=right), a)
    dy = ops.contiguous(dy)
    offset = sum(n * nb for n, nb in zip(y.op_params["left"], dy.nb, strict=True))
    out: Tensor = ops.view(dy, ne=a.ne, nb=dy.nb, offset=offset)
    return out


PAD = define_op(
    "PAD",
    src={"a": source(F32)},
    params={"left": NONE, "right": NONE, "circular": False},
    infer=_infer_pad,
    reference=_pad,
    cases=lambda: [
        case(arg(1), right=(1, 0, 0, 0)),
        case(arg(17, 5, 3, 2), right=(3, 1, 0, 2)),
        case(arg(17, 5, 3, 2), left=(1, 2, 3, 1), right=(48, 0, 1, 0)),
        case(arg(17, 3, 5, permute=(0, 2, 1, 3)), left=(2, 0, 1, 0)),
        case(arg(17, 0), right=(0, 3, 0, 0)),
        case(arg(17, 5, 3, 2), left=(1, 2, 3, 1), right=(4, 0, 1, 2), circular=True),
        case(arg(3, 2), left=(7, 5, 0, 0), right=(8, 1, 0, 0), circular=True),
        case(arg(65, 65, 5, 3), left=(1, 2, 0, 1), right=(5, 0, 2, 0)),  # several chunks
        case(arg(64, 64, 3), right=(8, 8, 0, 0), perf=True),
    ],
    exact=True,
    doc="Zeros (`circular`: the other end) before and after `a` in each dimension.",
    gradients={"a": _pad_gradient},
)


def pad(ctx: Context, a: Tensor, p0: int, p1: int, p2: int, p3: int) -> Tensor:
    """``p0`` .. ``p3`` zeros after each dimension of ``a`` (F32). Raises: as ``pad_ext``."""
    return PAD.build(ctx, a, right=(p0, p1, p2, p3))


def pad_circular(ctx: Context, a: Tensor, p0: int, p1: int, p2: int, p3: int) -> Tensor:
    """As ``pad``, but repeats ``a`` in place of zeros. Raises: as ``pad_ext``."""
    return PAD.build(ctx, a, right=(p0, p1, p2, p3), circular=True)


def pad_ext(ctx: Context, a: Tensor, left: Dims, right: Dims, *, circular: bool = False) -> Tensor:
    """``left`` zeros before and ``right`` zeros after each dimension.

    Args:
        circular: ``a`` is repeated (in all dimensions) in place of zeros.

    Shape:
        a F32 [ne0, ...] -> [left[0] + ne0 + right[0], ...]

    Raises:
        ShapeError, TypeMismatch: negative sizes, or not F32.
    """
    return PAD.build(ctx, a, left=tuple(left), right=tuple(right), circular=circular)


def _infer_reflect(a: Tensor, p0: int, p1: int) -> Out:
    require(
        0 <= p0 < a.ne[0] and 0 <= p1 < a.ne[0],
        "PAD_REFLECT_1D",
        f"p0 = {p0} and p1 = {p1} must be 0 to {a.ne[0] - 1}, less than a row of '{a.name}'",
    )
    return Out(F32, (a.ne[0] + p0 + p1, *a.ne[1:]))


PAD_REFLECT_1D = define_op(
    "PAD_REFLECT_1D",
    src={"a": source(F32)},
    params={"p0": 0, "p1": 0},
    infer=_infer_reflect,
    reference=lambda a, p0, p1: np.pad(a, [(0, 0)] * 3 + [(p0, p1)], mode="reflect"),
    cases=lambda: [
        case(arg(1), p0=0, p1=0),
        case(arg(17, 5, 3, 2), p0=3, p1=16),
        case(arg(17, 3, 5, permute=(0, 2, 1, 3)), p0=16, p1=0),
        case(arg(512, 80), p0=10, p1=9, perf=True),
    ],
    exact=True,
    doc="Rows mirrored at both ends: `p0` elements before, `p1` after.",
)


def pad_reflect_1d(ctx: Context, a: Tensor, p0: int, p1: int) -> Tensor:
    """Rows of ``a`` (F32) mirrored at their ends, the end itself once. Raises: ShapeError."""
    return PAD_REFLECT_1D.build(ctx, a, p0=p0, p1=p1)


def _infer_roll(a: Tensor, shift: Dims) -> Out:
    require(
        all(-n < s < n or s == 0 for s, n in zip(shift, a.ne, strict=True)),
        "ROLL",
        f"shifts {shift} must be less than the sizes of '{a.name}' {a.ne}",
    )
    return same(a)


ROLL = define_op(
    "ROLL",
    src={"a": source(F32)},
    params={"shift": NONE},
    infer=_infer_roll,
    reference=lambda a, shift: np.roll(a, shift[::-1], axis=(0, 1, 2, 3)),
    cases=lambda: [
        case(arg(1), shift=NONE),
        case(arg(17, 5, 3, 2), shift=(3, 0, 0, 0)),
        case(arg(17, 5, 3, 2), shift=(-16, 4, -1, 1)),
        case(arg(17, 3, 5, permute=(0, 2, 1, 3)), shift=(1, -2, 0, 0)),
        case(arg(65, 65, 5, 3), shift=(64, -7, 2, -1)),  # several chunks
        case(arg(64, 64, 3), shift=(3, 3, 0, 0), perf=True),
    ],
    exact=True,
    doc="Each dimension moved on by `shift`; what leaves at one end comes in at the other.",
    gradients={
        "a": lambda ops, y, dy: ops.roll(dy, shift=tuple(-n for n in y.op_params["shift"])),
    },
)


def roll(ctx: Context, a: Tensor, shift0: int, shift1: int, shift2: int, shift3: int) -> Tensor:
    """Element i of the result is element i - shift of ``a`` (F32), around the ends.

    Raises:
        ShapeError, TypeMismatch: a shift that is not less than the size, or not F32.
    """
    return ROLL.build(ctx, a, shift=(shift0, shift1, shift2, shift3))
