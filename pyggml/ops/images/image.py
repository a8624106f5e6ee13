"""Images: UPSCALE, and their windows, WIN_PART and WIN_UNPART.

y = upscale(ctx, image, 2, "bilinear")
windows = win_part(ctx, tokens, 14)            # [c, 14, 14, n_windows], padded with zeros
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from ...context import Context
from ...errors import UnsupportedOp
from ...rounding import ceil_div
from ...tensor import Dims, Tensor
from ..op import F32, Array, Cost, OpBuilders, Out, arg, case, define_op, require, source

__all__ = ["interpolate", "upscale", "win_part", "win_unpart"]

ScaleMode = Literal["nearest", "bilinear", "bicubic", "antialias"]
SCALE_MODES: tuple[ScaleMode, ...] = ("nearest", "bilinear", "bicubic", "antialias")
CUBIC = -0.75  # the slope at distance 1


def scale_factors(x: Dims, ne: Dims, align_corners: bool) -> list[np.float32]:
    """Result size / source size in each dimension; between corner centres if these are aligned."""
    out = [np.float32(n) / np.float32(m) for n, m in zip(ne, x, strict=True)]
    for i in range(2 if align_corners else 0):
        if ne[i] > 1 and x[i] > 1:
            out[i] = np.float32(ne[i] - 1) / np.float32(x[i] - 1)
    return out


def _infer_upscale(x: Tensor, ne: Dims, mode: str, align_corners: bool) -> Out:
    op = "UPSCALE"
    require(mode in SCALE_MODES, op, f"mode '{mode}' must be one of {', '.join(SCALE_MODES)}")
    require(len(ne) == 4 and min(ne) > 0 and min(x.ne) > 0, op, f"cannot scale {x.ne} to ne {ne}")
    require(
        mode != "nearest" or not align_corners,
        op,
        "align_corners needs another mode",
    )
    return Out(F32, ne)


def _nearest(n: int, factor: np.float32, size: int) -> Array:
    at = np.arange(n, dtype=np.float32) / factor
    out: Array = np.minimum(at.astype(np.int64), size - 1)
    return out


def _cubic(d: Array) -> Array:
    d = np.abs(d)
    near = ((CUBIC + 2) * d - (CUBIC + 3)) * d * d + 1
    return np.where(d <= 1, near, ((d - 5) * d + 8) * d * CUBIC - 4 * CUBIC)


def _weights(mode: str, n: int, factor: np.float32, size: int, corners: bool) -> Array:
    """The weight of each of ``size`` elements for each of ``n`` results: [n, size]."""
    offset = np.float32(0 if corners else 0.5)
    out = np.zeros((n, size))
    rows = np.arange(n)
    at = (rows.astype(np.float32) + offset) / factor
    if mode == "antialias":
        support = max(np.float32(1), 1 / factor)
        first = np.maximum((at - support + offset).astype(np.int64), 0)
        end = np.minimum((at + support + offset).astype(np.int64), size)
        x = np.arange(size)
        triangle = np.maximum(0, 1 - np.abs((x - at[:, None] + offset) / support))
        out = np.where((x >= first[:, None]) & (x < end[:, None]), triangle, 0)
        total: Array = out.sum(axis=1, keepdims=True)
        return out / np.where(total > 0, total, 1)
    at = at - offset
    low = np.floor(at).astype(np.int64)
    if mode == "bilinear":
        w = np.clip(at - np.clip(low, 0, size - 1), 0, 1)
        np.add.at(out, (rows, np.clip(low, 0, size - 1)), 1 - w)
        np.add.at(out, (rows, np.clip(low + 1, 0, size - 1)), w)
        return out
    for k in range(-1, 3):
        np.add.at(out, (rows, np.clip(low + k, 0, size - 1)), _cubic(at - low - k))
    return out


def _upscale(x: Array, ne: Dims, mode: str, align_corners: bool) -> Array:
    size = x.shape[::-1]
    f = scale_factors((size[0], size[1], size[2], size[3]), ne, align_corners)
    smooth = 0 if mode == "nearest" else 2  # axes that are interpolated
    for i in range(smooth, 4):
        x = x.take(_nearest(ne[i], f[i], size[i]), axis=3 - i)
    if smooth:
        w0, w1 = (_weights(mode, ne[i], f[i], size[i], align_corners) for i in range(2))
        x = w1 @ x @ w0.T
    return x


def _upscale_gradient(ops: OpBuilders, y: Tensor, dy: Tensor) -> Tensor:
    """Sums of the results that took an element: of whole blocks of them."""
    x, p = y.src[0], y.op_params
    assert x is not None
    (w, h, *rest), (ow, oh, *more) = x.ne, y.ne
    if p["mode"] != "nearest" or ow % w or oh % h or rest != more:
        raise UnsupportedOp(
            f"UPSCALE: {p['mode']} from {x.ne} to {y.ne} has no gradient; nearest has one where "
            "width and height are multiples and the rest stays"
        )
    k0, k1 = ow // w, oh // h
    means = ops.pool_2d(dy, pool="avg", k0=k0, k1=k1, s0=k0, s1=k1)
    out: Tensor = ops.scale(means, s=float(k0 * k1))
    return out


_UP = (
    (arg(1, 1), (3, 2, 1, 1)),
    (arg(5, 7, 3, 2), (10, 14, 3, 2)),
    (arg(5, 7, 2), (17, 8, 4, 3)),
    (arg(17, 9, 3, 2), (5, 4, 3, 1)),
    (arg(4, 1, 3), (1, 1, 3, 1)),
)

UPSCALE = define_op(
    "UPSCALE",
    src={"x": source(F32, gaps=True)},
    params={"ne": (1, 1, 1, 1), "mode": "nearest", "align_corners": False},
    infer=_infer_upscale,
    reference=_upscale,
    cases=lambda: [
        *(case(x, ne=ne, mode=mode) for mode in SCALE_MODES for x, ne in _UP),
        *(
            case(x, ne=ne, mode=mode, align_corners=True)
            for mode in SCALE_MODES[1:]
            for x, ne in _UP
        ),
        case(arg(9, 3, 5, permute=(0, 2, 1, 3)), ne=(5, 10, 3, 1)),
        case(arg(9, 3, 5, permute=(2, 0, 1, 3)), ne=(5, 18, 5, 1), mode="bilinear"),
        case(arg(512, 512, 3), ne=(1024, 1024, 3, 1), perf=True),
        case(arg(512, 512, 3), ne=(1024, 1024, 3, 1), mode="bilinear", perf=True),
    ],
    max_nmse=lambda node: 0.0 if node.op_params["mode"] == "nearest" else 1e-7,
    doc="Other sizes: the nearest element, or a mean of the nearest ones of each image.",
    gradients={"x": _upscale_gradient},
)


def interpolate(
    ctx: Context, x: Tensor, ne: Dims, mode: ScaleMode = "nearest", align_corners: bool = False
) -> Tensor:
    """``x`` scaled to the sizes ``ne``, up or down.

    Args:
        mode: "bilinear" and "bicubic" interpolate along ``ne[0]`` and ``ne[1]``, "antialias" is
            bilinear and smooths what it shrinks; along the rest, all take the nearest element.
        align_corners: the centres of the corner elements stay where they are, not the edges.

    Raises:
        ShapeError, TypeMismatch: no such mode, an empty tensor, or not F32.
    """
    return UPSCALE.build(ctx, x, ne=tuple(ne), mode=mode, align_corners=align_corners)


def upscale(ctx: Context, x: Tensor, factor: int, mode: ScaleMode = "nearest") -> Tensor:
    """``x`` with ``factor`` times the width and height.

    Shape:
        x F32 [w, h, ...] -> F32 [w * factor, h * factor, ...]

    Raises:
        ShapeError, TypeMismatch: no such mode, an empty tensor, or not F32.
    """
    return interpolate(ctx, x, (x.ne[0] * factor, x.ne[1] * factor, *x.ne[2:]), mode)


def _infer_win_part(x: Tensor, w: int) -> Out:
    op = "WIN_PART"
    require(x.ne[3] == 1 and w > 0, op, f"x {x.ne} must be [c, width, height], w {w} positive")
    return Out(F32, (x.ne[0], w, w, ceil_div(x.ne[1], w) * ceil_div(x.ne[2], w)))


def _win_part(x: Array, w: int) -> Array:
    _, height, width, c = x.shape
    ny, nx = ceil_div(height, w), ceil_div(width, w)
    x = np.pad(x[0], ((0, ny * w - height), (0, nx * w - width), (0, 0)))
    return x.reshape(ny, w, nx, w, c).swapaxes(1, 2).reshape(ny * nx, w, w, c)


WIN_PART = define_op(
    "WIN_PART",
    src={"x": source(F32)},
    params={"w": 1},
    infer=_infer_win_part,
    reference=_win_part,
    cases=lambda: [
        case(arg(1, 1, 1), w=1),
        case(arg(17, 9, 5), w=4),
        case(arg(5, 6, 9, permute=(0, 2, 1, 3)), w=3),
        case(arg(768, 64, 64), w=14, perf=True),
    ],
    exact=True,
    cost=lambda node: Cost(2 * node.nbytes),
    doc="Cuts images into windows of `w` by `w` elements, padded with zeros.",
    gradients={
        "x": lambda ops, y, dy: ops.win_unpart(dy, w0=y.src[0].ne[1], h0=y.src[0].ne[2]),
    },
)


def win_part(ctx: Context, x: Tensor, w: int) -> Tensor:
    """Windows of ``w`` by ``w`` places of an image whose channels are rows.

    Shape:
        x F32 [c, width, height] -> F32 [c, w, w, ceil(width / w) * ceil(height / w)]
    """
    return WIN_PART.build(ctx, x, w=w)


def _infer_win_unpart(x: Tensor, w0: int, h0: int) -> Out:
    op = "WIN_UNPART"
    w = x.ne[1]
    require(
        w > 0
        and x.ne[2] == w
        and w0 > 0
        and h0 > 0
        and x.ne[3] == ceil_div(w0, w) * ceil_div(h0, w),
        op,
        f"x {x.ne} must be the windows of an image of {w0} by {h0}",
    )
    return Out(F32, (x.ne[0], w0, h0, 1))


def _win_unpart(x: Array, w0: int, h0: int) -> Array:
    w, c = x.shape[1], x.shape[3]
    ny, nx = ceil_div(h0, w), ceil_div(w0, w)
    whole = x.reshape(ny, nx, w, w, c).swapaxes(1, 2).reshape(1, ny * w, nx * w, c)
    return whole[:, :h0, :w0]


WIN_UNPART = define_op(
    "WIN_UNPART",
    src={"x": source(F32)},
    params={"w0": 1, "h0": 1},
    infer=_infer_win_unpart,
    reference=_win_unpart,
    cases=lambda: [
        case(arg(1, 1, 1), w0=1, h0=1),
        case(arg(17, 4, 4, 6), w0=9, h0=5),
        case(arg(768, 14, 14, 25), w0=64, h0=64, perf=True),
    ],
    exact=True,
    cost=lambda node: Cost(2 * node.nbytes),
    doc="Puts windows together to an image again: the inverse of WIN_PART.",
    gradients={"x": lambda ops, y, dy: ops.win_part(dy, w=y.src[0].ne[1])},
)


def win_unpart(ctx: Context, x: Tensor, w0: int, h0: int) -> Tensor:
    """The image of ``w0`` by ``h0`` places whose windows are ``x``.

    Shape:
        x F32 [c, w, w, ceil(w0 / w) * ceil(h0 / w)] -> F32 [c, w0, h0]
    """
    return WIN_UNPART.build(ctx, x, w0=w0, h0=h0)
