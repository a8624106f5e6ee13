"""Pooling: POOL_1D and POOL_2D, the maximum or the mean of each window, and POOL_2D_BACK.

    y = pool_2d(ctx, image, "max", 2, 2)                  # half the width and height
    y = pool_1d(ctx, x, "avg", 3, s0=1, p0=1)

As in ggml, a mean at the border differs: POOL_2D divides by the window's size, POOL_1D by the
elements that are inside. The maximum ignores NaN, and is at least -3.4e38.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from ...context import Context
from ...errors import UnsupportedOp
from ...tensor import Tensor
from ..op import F16, F32, FLOATS, Array, OpBuilders, Out, arg, case, define_op, require, source
from .conv import conv_size, patches

__all__ = ["pool_1d", "pool_2d", "pool_2d_back"]

Pool = Literal["max", "avg"]
POOLS: tuple[Pool, ...] = ("max", "avg")
LOWEST = float(np.finfo(np.float32).min)


def _check(op: str, x: Tensor, pool: str) -> None:
    require(pool in POOLS, op, f"pool '{pool}' must be one of {', '.join(POOLS)}")


def _infer_1d(x: Tensor, pool: str, k0: int, s0: int, p0: int) -> Out:
    _check("POOL_1D", x, pool)
    return Out(F32, (conv_size("POOL_1D", x.ne[0], k0, s0, p0, 1), *x.ne[1:]))


def _infer_2d(x: Tensor, pool: str, k0: int, k1: int, s0: int, s1: int, p0: int, p1: int) -> Out:
    _check("POOL_2D", x, pool)
    ow = conv_size("POOL_2D", x.ne[0], k0, s0, p0, 1)
    return Out(F32, (ow, conv_size("POOL_2D", x.ne[1], k1, s1, p1, 1), *x.ne[2:]))


def _pool_2d(x: Array, pool: str, k0: int, k1: int, **v: int) -> Array:
    steps = {**v, "d0": 1, "d1": 1}
    if pool == "max":
        seen = patches(x, k1, k0, steps, LOWEST)
        out: Array = np.fmax.reduce(seen, axis=(2, 3), initial=np.float32(LOWEST))
        return out
    out = patches(x.astype(np.float64), k1, k0, steps).sum(axis=(2, 3)) / (k0 * k1)
    return out


def _pool_1d(x: Array, pool: str, k0: int, s0: int, p0: int) -> Array:
    steps = {"s0": s0, "s1": 1, "p0": p0, "p1": 0}
    out = _pool_2d(x, pool, k0, 1, **steps)
    if pool == "max":
        return out
    inside = _pool_2d(np.ones_like(x), "avg", k0, 1, **steps)
    return np.divide(out, inside, out=np.zeros_like(out), where=inside > 0)


def _gradient_1d(ops: OpBuilders, y: Tensor, dy: Tensor) -> Tensor:
    """That of POOL_2D with windows of height 1, where a mean at the border is the same."""
    p = y.op_params
    if p["pool"] == "avg" and p["p0"]:
        raise UnsupportedOp("POOL_1D: a mean with padding has no gradient")
    out: Tensor = ops.pool_2d_back(dy, y.src[0], **p, k1=1, s1=1, p1=0)
    return out


_DEFAULTS = {"k0": 2, "s0": 2, "p0": 0}

POOL_1D = define_op(
    "POOL_1D",
    src={"x": source(*FLOATS)},
    params={"pool": "max", **_DEFAULTS},
    infer=_infer_1d,
    reference=_pool_1d,
    cases=lambda: [
        case(c, pool=pool, k0=k0, s0=s0, p0=p0)
        for pool in POOLS
        for c, k0, s0, p0 in (
            (arg(1), 1, 1, 0), (arg(10, 3, 2), 1, 3, 0), (arg(65, 17), 3, 2, 1),
            (arg(9, 5, 3, permute=(0, 2, 1, 3)), 3, 1, 2), (arg(17, 5, type=F16), 2, 2, 0),
            (arg(5, 2), 2, 1, 3),
        )
    ],
    doc="The largest element or the mean of the elements in windows along each row.",
    gradients={"x": _gradient_1d},
)  # fmt: skip


def pool_1d(
    ctx: Context, x: Tensor, pool: Pool, k0: int, s0: int | None = None, p0: int = 0
) -> Tensor:
    """Windows of ``k0`` elements of each row, ``s0`` (``k0`` if None) apart.

    Shape:
        x F32 or F16 [n, ...] -> F32 [(n + 2 p0 - k0) // s0 + 1, ...]
    """
    return POOL_1D.build(ctx, x, pool=pool, k0=k0, s0=k0 if s0 is None else s0, p0=p0)


POOL_2D = define_op(
    "POOL_2D",
    src={"x": source(*FLOATS)},
    params={"pool": "max", "k0": 2, "k1": 2, "s0": 2, "s1": 2, "p0": 0, "p1": 0},
    infer=_infer_2d,
    reference=_pool_2d,
    cases=lambda: [
        *(
            case(c, pool=pool, k0=k0, k1=k1, s0=s0, s1=s1, p0=p0, p1=p1)
            for pool in POOLS
            for c, k0, k1, s0, s1, p0, p1 in (
                (arg(1, 1), 1, 1, 1, 1, 0, 0), (arg(10, 9, 3, 2), 1, 3, 2, 1, 0, 1),
                (arg(33, 17, 5), 3, 2, 2, 2, 1, 0), (arg(33, 17, 5, type=F16), 2, 2, 2, 2, 0, 0),
                (arg(9, 3, 5, permute=(0, 2, 1, 3)), 3, 3, 1, 1, 2, 1),
                (arg(4, 4, 2), 2, 2, 1, 2, 3, 3),
            )
        ),
        case(arg(224, 224, 16), perf=True),
    ],
    doc="The largest element or the mean of the elements in windows of each image.",
    gradients={"x": lambda ops, y, dy: ops.pool_2d_back(dy, y.src[0], **y.op_params)},
)  # fmt: skip


def _infer_2d_back(dy: Tensor, x: Tensor, **v: Any) -> Out:
    want = _infer_2d(x, **v)
    require(dy.ne == want.ne, "POOL_2D_BACK", f"dy {dy.ne} must be {want.ne} for x {x.ne}")
    return Out(F32, x.ne)


def _pool_2d_back(dy: Array, x: Array, pool: str, k0: int, k1: int, **v: int) -> Array:
    steps = {**v, "d0": 1, "d1": 1}
    n, c, h, w = x.shape
    places = np.arange(n * c * h * w, dtype=np.float64).reshape(x.shape)
    where = patches(places, k1, k0, steps, -1).astype(np.int64)  # [n, c, k1, k0, oh, ow]
    where = where.reshape(n, c, k1 * k0, *where.shape[4:])
    out = np.zeros(x.size)
    if pool == "max":
        seen = patches(x, k1, k0, steps, -np.inf).reshape(where.shape)
        seen = np.where(np.isnan(seen), -np.inf, seen)
        best = np.where(where >= 0, seen, -np.inf).argmax(axis=2)[:, :, None]
        chosen = np.take_along_axis(where, best, axis=2)
        has_one = np.take_along_axis(seen, best, axis=2) > LOWEST
        chosen, dy = np.where(has_one, chosen, -1), dy[:, :, None]
    else:
        chosen = where
        dy = np.broadcast_to(dy[:, :, None] / (k0 * k1), where.shape)
    np.add.at(out, chosen[chosen >= 0], dy[chosen >= 0])
    return out.reshape(x.shape)


POOL_2D_BACK = define_op(
    "POOL_2D_BACK",
    src={"dy": source(F32), "x": source(F32)},
    params={"pool": "max", "k0": 2, "k1": 2, "s0": 2, "s1": 2, "p0": 0, "p1": 0},
    infer=_infer_2d_back,
    reference=_pool_2d_back,
    cases=lambda: [
        *(
            case(dy, c, pool=pool, k0=k0, k1=k1, s0=s0, s1=s1, p0=p0, p1=p1)
            for pool in POOLS
            for dy, c, k0, k1, s0, s1, p0, p1 in (
                (arg(1, 1), arg(1, 1), 1, 1, 1, 1, 0, 0),
                (arg(5, 9, 3, 2), arg(10, 9, 3, 2), 1, 3, 2, 1, 0, 1),
                (arg(17, 8, 5), arg(33, 17, 5), 3, 2, 2, 2, 1, 0),
                (arg(11, 5, 3), arg(9, 3, 5, permute=(0, 2, 1, 3)), 3, 3, 1, 1, 2, 1),
                (arg(11, 3, 5, permute=(0, 2, 1, 3)), arg(9, 3, 3), 3, 3, 1, 1, 2, 2),
                (arg(9, 5, 2), arg(4, 4, 2), 2, 2, 1, 2, 3, 3),
            )
        ),
        case(arg(112, 112, 16), arg(224, 224, 16), perf=True),
    ],
    doc="The gradient of `x`, where `dy` is that of `pool_2d` of `x`.",
)  # fmt: skip


def pool_2d_back(
    ctx: Context, dy: Tensor, x: Tensor, pool: Pool, k0: int, k1: int, s0: int | None = None,
    s1: int | None = None, p0: int = 0, p1: int = 0,
) -> Tensor:  # fmt: skip
    """The gradient of ``x``, where ``dy`` is that of ``pool_2d`` with the same arguments.

    Of equal largest elements, the first one of a window gets its gradient.

    Shape:
        dy F32 of the result's sizes, x F32 [w, h, ...] -> F32 of x's sizes

    Raises:
        ShapeError, TypeMismatch: sizes or types do not fit.
    """
    steps = {"s0": k0 if s0 is None else s0, "s1": k1 if s1 is None else s1}
    return POOL_2D_BACK.build(ctx, dy, x, pool=pool, k0=k0, k1=k1, p0=p0, p1=p1, **steps)


def pool_2d(
    ctx: Context, x: Tensor, pool: Pool, k0: int, k1: int, s0: int | None = None,
    s1: int | None = None, p0: int = 0, p1: int = 0,
) -> Tensor:  # fmt: skip
    """Windows of ``k0`` by ``k1`` elements of each image, ``s0``, ``s1`` (their size) apart.

    Shape:
        x F32 or F16 [w, h, ...] -> F32 [(w + 2 p0 - k0) // s0 + 1, (h + 2 p1 - k1) // s1 + 1, ...]
    """
    steps = {"s0": k0 if s0 is None else s0, "s1": k1 if s1 is None else s1}
    return POOL_2D.build(ctx, x, pool=pool, k0=k0, k1=k1, p0=p0, p1=p1, **steps)
