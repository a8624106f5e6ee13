"""Normalisation of rows (RMS_NORM, NORM, L2_NORM) and of groups of channels (GROUP_NORM).

RMS_NORM_BACK and NORM_BACK are gradients of the first two.

y = mul(ctx, rms_norm(ctx, x, 1e-5), weight)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from ...context import Context
from ...errors import UnsupportedOp
from ...rounding import ceil_div
from ...tensor import Tensor
from ..op import F32, Array, Case, Op, OpBuilders, Out, arg, case, define_op, require, same, source

__all__ = ["group_norm", "l2_norm", "norm", "norm_back", "rms_norm", "rms_norm_back"]


def _infer(name: str, x: Tensor, eps: float) -> Out:
    require(eps >= 0, name, f"eps is {eps}, want 0 or more")
    return same(x)


def _rms_norm(x: Array, eps: float) -> Array:
    mean = np.mean(x * x, axis=-1, keepdims=True, dtype=np.float64)
    return x / np.sqrt(mean + eps)


def _cases() -> list[Case]:
    return [
        case(arg(1), eps=1e-6),
        case(arg(3, 5), eps=1e-6),
        case(arg(17, 3), eps=0.1),
        case(arg(65, 5, 4, 3), eps=1e-6),
        case(arg(64, 3, 5, permute=(0, 2, 1, 3)), eps=1e-5),
        case(arg(65, 2, low=-1e-4, high=1e-4), eps=1e-5),
        case(arg(576, 1), eps=1e-5, perf=True),
        case(arg(576, 512), eps=1e-5, perf=True),
    ]


RMS_NORM = define_op(
    "RMS_NORM",
    src={"x": source(F32)},
    params={"eps": 1e-5},
    infer=partial(_infer, "RMS_NORM"),
    reference=_rms_norm,
    cases=lambda: [*_cases(), case(arg(4096, 7), eps=1e-5, perf=True)],
    inplace_ok=True,
    doc="Rows divided by the root of their mean square.",
    gradients={"x": lambda ops, y, dy: ops.rms_norm_back(dy, y.src[0], eps=y.op_params["eps"])},
)


def _infer_back(name: str, dy: Tensor, x: Tensor, eps: float) -> Out:
    require(dy.ne == x.ne, name, f"dy '{dy.name}' {dy.ne} must have the sizes of x {x.ne}")
    return _infer(name, dy, eps)


def _rms_norm_back(dy: Array, x: Array, eps: float) -> Array:
    dy, x = dy.astype(np.float64), x.astype(np.float64)
    s = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)
    out: Array = s * (dy - x * s * np.mean(dy * x * s, axis=-1, keepdims=True))
    return out


def _norm_back(dy: Array, x: Array, eps: float) -> Array:
    x = x.astype(np.float64)
    return _rms_norm_back(
        dy - dy.mean(axis=-1, keepdims=True), x - x.mean(axis=-1, keepdims=True), eps
    )


def _define_back(name: str, reference: Callable[..., Array]) -> Op:
    return define_op(
        f"{name}_BACK",
        src={"dy": source(F32), "x": source(F32)},
        params={"eps": 1e-5},
        infer=partial(_infer_back, f"{name}_BACK"),
        reference=reference,
        cases=lambda: [
            case(arg(1), arg(1), eps=0.1),  # with less, almost all of it cancels
            case(arg(3, 5), arg(3, 5), eps=0.1),
            case(arg(65, 5, 4, 3), arg(65, 5, 4, 3), eps=1e-6),
            case(arg(64, 3, 5, permute=(0, 2, 1, 3)), arg(64, 5, 3), eps=1e-5),
            case(arg(64, 5, 3), arg(64, 3, 5, permute=(0, 2, 1, 3)), eps=1e-5),
            case(arg(65, 2, low=1000, high=1001), arg(65, 2, low=9, high=11), eps=1e-5),
            case(arg(576, 512), arg(576, 512), eps=1e-5, perf=True),
        ],
        inplace_ok=True,
        doc=f"The gradient of `x`, where `dy` is that of `{name.lower()}` of `x`.",
    )


RMS_NORM_BACK = _define_back("RMS_NORM", _rms_norm_back)
NORM_BACK = _define_back("NORM", _norm_back)


def rms_norm_back(ctx: Context, dy: Tensor, x: Tensor, eps: float = 1e-5) -> Tensor:
    """The gradient of ``x``, where ``dy`` is that of ``rms_norm(x, eps)``; F32 of one size."""
    return RMS_NORM_BACK.build(ctx, dy, x, eps=float(eps))


def norm_back(ctx: Context, dy: Tensor, x: Tensor, eps: float = 1e-5) -> Tensor:
    """The gradient of ``x``, where ``dy`` is that of ``norm(x, eps)``; F32 of one size."""
    return NORM_BACK.build(ctx, dy, x, eps=float(eps))


def rms_norm(ctx: Context, x: Tensor, eps: float = 1e-5) -> Tensor:
    """``x / sqrt(mean(x * x) + eps)`` for each row.

    Shape:
        x F32 [n, ne1, ne2, ne3] -> the same

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", equation 4.
    """
    return RMS_NORM.build(ctx, x, eps=float(eps))


def _norm(x: Array, eps: float) -> Array:
    x = x.astype(np.float64)
    centred = x - x.mean(axis=-1, keepdims=True)
    out: Array = centred / np.sqrt(np.mean(centred**2, axis=-1, keepdims=True) + eps)
    return out


NORM = define_op(
    "NORM",
    src={"x": source(F32)},
    params={"eps": 1e-5},
    infer=partial(_infer, "NORM"),
    reference=_norm,
    cases=lambda: [*_cases(), case(arg(65, 2, low=1000, high=1001), eps=1e-5)],
    doc="Rows without their mean, divided by the root of their variance.",
    gradients={"x": lambda ops, y, dy: ops.norm_back(dy, y.src[0], eps=y.op_params["eps"])},
)


def norm(ctx: Context, x: Tensor, eps: float = 1e-5) -> Tensor:
    """``(x - mean) / sqrt(variance + eps)`` for each row.

    Shape:
        x F32 [n, ne1, ne2, ne3] -> the same

    Source: Ba et al., "Layer Normalization", equation 4, without gain and bias.
    """
    return NORM.build(ctx, x, eps=float(eps))


def _l2_norm(x: Array, eps: float) -> Array:
    length = np.sqrt(np.sum(x * x, axis=-1, keepdims=True, dtype=np.float64))
    return x / np.maximum(length, eps)


def _l2_norm_gradient(ops: OpBuilders, y: Tensor, dy: Tensor) -> Tensor:
    """``(dy - y (y dy)) / length``, but ``dy / eps`` of a row that is not longer than eps."""
    eps = y.op_params["eps"]
    length = ops.sqrt(ops.sum_rows(ops.sqr(y.src[0])))
    is_longer = ops.unary(ops.scale(length, b=-eps), kind="step")
    along = ops.mul(ops.sum_rows(ops.mul(dy, y)), is_longer)
    out: Tensor = ops.div(ops.sub(dy, ops.mul(y, along)), ops.clamp(length, min=eps, max=math.inf))
    return out


L2_NORM = define_op(
    "L2_NORM",
    src={"x": source(F32)},
    params={"eps": 1e-5},
    infer=partial(_infer, "L2_NORM"),
    reference=_l2_norm,
    cases=lambda: [
        case(arg(1), eps=1e-6),
        case(arg(65, 5, 4, 3), eps=1e-6),
        case(arg(17, 3), eps=10.0),  # shorter rows than eps
        case(arg(64, 3, 5, permute=(0, 2, 1, 3)), eps=1e-5),
        case(arg(576, 512), eps=1e-5, perf=True),
    ],
    doc="Rows divided by their length, but by `eps` at least.",
    gradients={"x": _l2_norm_gradient},
)


def l2_norm(ctx: Context, x: Tensor, eps: float = 1e-5) -> Tensor:
    """``x / max(sqrt(sum(x * x)), eps)`` for each row; F32 of any shape."""
    return L2_NORM.build(ctx, x, eps=float(eps))


def _infer_group_norm(x: Tensor, n_groups: int, eps: float) -> Out:
    require(n_groups > 0, "GROUP_NORM", f"n_groups is {n_groups}, want 1 or more")
    return _infer("GROUP_NORM", x, eps)


def _group_norm(x: Array, n_groups: int, eps: float) -> Array:
    out = np.empty(x.shape)
    n = ceil_div(x.shape[1], n_groups)  # channels of a group; the last ones may have fewer
    for first in range(0, x.shape[1], n):
        group = x[:, first : first + n]
        flat = group.reshape(len(x), -1)
        out[:, first : first + n] = _norm(flat, eps).reshape(group.shape)
    return out


def _group_norm_gradient(ops: OpBuilders, y: Tensor, dy: Tensor) -> Tensor:
    x, n_groups = y.src[0], y.op_params["n_groups"]
    assert x is not None
    w, h, channels, n = x.ne
    if channels % n_groups:
        raise UnsupportedOp(f"GROUP_NORM: {n_groups} groups of {channels} channels differ in size")
    rows = (w * h * channels // n_groups, n_groups, n, 1)
    dy, x = (ops.reshape(ops.contiguous(t), ne=rows) for t in (dy, x))
    return ops.reshaped(ops.norm_back(dy, x, eps=y.op_params["eps"]), y)


GROUP_NORM = define_op(
    "GROUP_NORM",
    src={"x": source(F32)},
    params={"n_groups": 1, "eps": 1e-6},
    infer=_infer_group_norm,
    reference=_group_norm,
    cases=lambda: [
        case(arg(1), n_groups=1),
        case(arg(17, 3, 8, 2), n_groups=4),
        case(arg(5, 3, 7), n_groups=3),  # 3, 3 and 1 channels
        case(arg(5, 3, 4), n_groups=3),  # 2, 2 and none
        case(arg(5, 4, 6, permute=(0, 2, 1, 3)), n_groups=2, eps=0.1),
        case(arg(17, 3, 4, low=1000, high=1001), n_groups=2, eps=1e-5),
        case(arg(64, 64, 32), n_groups=32, perf=True),
    ],
    doc="Groups of channels (`ne[2]`) without their mean, divided by the root of their variance.",
    gradients={"x": _group_norm_gradient},
)


def group_norm(ctx: Context, x: Tensor, n_groups: int, eps: float = 1e-6) -> Tensor:
    """``(x - mean) / sqrt(variance + eps)`` over each of ``n_groups`` groups of channels.

    Where ``n_groups`` does not divide the channels, the last groups are smaller.

    Shape:
        x F32 [width, height, channels, batch] -> the same

    Source: Wu and He, "Group Normalization", without gain and bias.
    """
    return GROUP_NORM.build(ctx, x, n_groups=int(n_groups), eps=float(eps))
