"""Convolutions: IM2COL (and IM2COL_BACK), CONV_2D and CONV_2D_DW; builders that use a matmul.

    y = conv_2d(ctx, kernel, image, p0=1, p1=1)            # IM2COL, MUL_MAT and reshapes
    y = conv_2d_direct(ctx, kernel, image, p0=1, p1=1)     # one CONV_2D

Images are [width, height, channels, n], kernels [width, height, in, out]. In every builder ``s``
are strides, ``p`` is zero padding on both sides, ``d`` dilations; ``0`` is along the width.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...context import Context
from ...dtype import GGMLType
from ...tensor import Dims, Tensor
from ..matrix.matmul import mul_mat
from ..movement.cpy import cont
from ..movement.view import permute, reshape_2d, reshape_3d, reshape_4d
from ..op import (
    F16,
    F32,
    FLOATS,
    Array,
    Cost,
    OpBuilders,
    Out,
    arg,
    case,
    define_op,
    require,
    source,
)

__all__ = [
    "conv_1d", "conv_2d", "conv_2d_direct", "conv_2d_dw_direct", "conv_2d_s1_ph",
    "conv_2d_sk_p0", "im2col", "im2col_back",
]  # fmt: skip

STEPS = {"s0": 1, "s1": 1, "p0": 0, "p1": 0, "d0": 1, "d1": 1}


def conv_size(op: str, n: int, k: int, s: int, p: int, d: int) -> int:
    """The size of a result along ``n`` for a kernel of ``k`` elements. Raises: ShapeError."""
    require(
        s > 0 and d > 0 and p >= 0 and k > 0 and n + 2 * p >= d * (k - 1) + 1,
        op,
        f"a kernel of {k} with dilation {d}, stride {s} and padding {p} has no place in {n}",
    )
    return (n + 2 * p - d * (k - 1) - 1) // s + 1


def sizes_2d(op: str, a: Tensor, b: Tensor, v: dict[str, int]) -> tuple[int, int]:
    """Width and height of the result of kernel ``a`` on image ``b``."""
    ow = conv_size(op, b.ne[0], a.ne[0], v["s0"], v["p0"], v["d0"])
    return ow, conv_size(op, b.ne[1], a.ne[1], v["s1"], v["p1"], v["d1"])


def patches(x: Array, kh: int, kw: int, v: dict[str, int], fill: float = 0.0) -> Array:
    """The patches of images [n, c, h, w] under a kernel: [n, c, kh, kw, oh, ow]."""
    pad = ((0, 0), (0, 0), (v["p1"], v["p1"]), (v["p0"], v["p0"]))
    x = np.pad(x, pad, constant_values=fill)
    oh = (x.shape[2] - v["d1"] * (kh - 1) - 1) // v["s1"] + 1
    ow = (x.shape[3] - v["d0"] * (kw - 1) - 1) // v["s0"] + 1
    out = np.empty((*x.shape[:2], kh, kw, oh, ow), x.dtype)
    for ky in range(kh):
        for kx in range(kw):
            rows = slice(ky * v["d1"], ky * v["d1"] + (oh - 1) * v["s1"] + 1, v["s1"])
            columns = slice(kx * v["d0"], kx * v["d0"] + (ow - 1) * v["s0"] + 1, v["s0"])
            out[:, :, ky, kx] = x[:, :, rows, columns]
    return out


def _infer_im2col(a: Tensor, b: Tensor, is_2d: bool, type: GGMLType, **v: int) -> Out:
    op = "IM2COL"
    require(type in FLOATS, op, f"the result cannot be {type.name}")
    channels, axis = a.ne[1 + is_2d], 1 + is_2d
    require(
        b.ne[axis] == channels, op, f"kernel {a.ne} has {channels} channels, image {b.ne} another"
    )
    if is_2d:
        ow, oh = sizes_2d(op, a, b, v)
        return Out(type, (a.ne[0] * a.ne[1] * channels, ow, oh, b.ne[3]))
    require(b.ne[3] == 1, op, f"b {b.ne} must be [length, channels, n]")
    ow = conv_size(op, b.ne[0], a.ne[0], v["s0"], v["p0"], v["d0"])
    return Out(type, (a.ne[0] * channels, ow, b.ne[2], 1))


def _im2col(a: Array, b: Array, is_2d: bool, type: GGMLType, **v: int) -> Array:
    if not is_2d:
        flat = {**v, "s1": 1, "p1": 0, "d1": 1}
        seen = patches(b[0][:, :, None], 1, a.shape[3], flat)  # [n, c, 1, k, 1, ow]
        out: Array = seen.transpose(0, 2, 5, 1, 3, 4).reshape(1, b.shape[1], seen.shape[5], -1)
        return out
    seen = patches(b, a.shape[2], a.shape[3], v)
    out = seen.transpose(0, 4, 5, 1, 2, 3)  # [n, oh, ow, c, kh, kw]
    return out.reshape(*out.shape[:3], -1)


IM2COL = define_op(
    "IM2COL",
    src={"a": None, "b": source(*FLOATS)},
    params={**STEPS, "is_2d": True, "type": F32},
    infer=_infer_im2col,
    reference=_im2col,
    cases=lambda: [
        case(arg(1, 1, 1, 1), arg(1, 1, 1)),
        case(arg(3, 3, 3, 3), arg(10, 10, 3), p0=1, p1=1),
        case(arg(3, 3, 3, 3), arg(20, 17, 3, 2), s0=2, p1=1, d0=2, type=F16),
        case(arg(4, 2, 3, 5), arg(9, 7, 3, 2, type=F16), s1=3, p0=3, d1=3, type=F16),
        case(arg(2, 3, 4, 5), arg(9, 4, 7, permute=(0, 2, 1, 3)), p0=1),
        case(arg(3, 2, 3), arg(20, 2, 2), is_2d=False, p0=1),
        case(arg(3, 5, 3), arg(17, 5), is_2d=False, s0=3, p0=3, d0=3, type=F16),
        case(arg(3, 3, 32, 64), arg(58, 58, 32), p0=1, p1=1, type=F16, perf=True),
    ],
    exact=True,
    doc="What the kernel `a` sees at each place of the images `b`, as rows for a matmul.",
    gradients={
        "a": lambda ops, y, dy: None,  # only its sizes are used
        "b": lambda ops, y, dy: ops.im2col_back(dy, y.src[0], **_back_params(y)),
    },
)


def _back_params(y: Tensor) -> dict[str, Any]:
    """The parameters of IM2COL_BACK for a node of IM2COL, CONV_2D or CONV_2D_DW."""
    assert y.src[1] is not None
    steps = {name: y.op_params[name] for name in STEPS}
    return {**steps, "is_2d": y.op_params.get("is_2d", True), "ne": y.src[1].ne}


def _infer_im2col_back(dy: Tensor, a: Tensor, is_2d: bool, ne: Dims, **v: int) -> Out:
    image = Tensor(F32, ne)
    want = _infer_im2col(a, image, is_2d, F32, **v)
    require(
        dy.ne == want.ne, "IM2COL_BACK", f"dy {dy.ne} must be {want.ne} for {a.ne} on an image {ne}"
    )
    return Out(F32, ne)


def _im2col_back(dy: Array, a: Array, is_2d: bool, ne: Dims, **v: int) -> Array:
    if not is_2d:  # an image of one row: [n, 1, ow, c * k]
        dy, a = dy.reshape(dy.shape[1], 1, dy.shape[2], dy.shape[3]), a.swapaxes(0, 1)
        ne, v = (ne[0], 1, ne[1], ne[2]), {**v, "s1": 1, "p1": 0, "d1": 1}
        return _im2col_back(dy, a.swapaxes(1, 2), True, ne, **v).reshape(1, ne[3], ne[2], ne[0])
    w, h, c, n = ne
    kh, kw = a.shape[2:]
    oh, ow = dy.shape[1:3]
    seen = dy.reshape(n, oh, ow, c, kh, kw)
    out = np.zeros((n, c, h + 2 * v["p1"], w + 2 * v["p0"]))
    for ky, kx in np.ndindex(kh, kw):
        y, x = ky * v["d1"], kx * v["d0"]
        rows = slice(y, y + (oh - 1) * v["s1"] + 1, v["s1"])
        columns = slice(x, x + (ow - 1) * v["s0"] + 1, v["s0"])
        out[:, :, rows, columns] += seen[..., ky, kx].transpose(0, 3, 1, 2)
    return out[:, :, v["p1"] : v["p1"] + h, v["p0"] : v["p0"] + w]


IM2COL_BACK = define_op(
    "IM2COL_BACK",
    src={"dy": source(F32), "a": None},
    params={**STEPS, "is_2d": True, "ne": (1, 1, 1, 1)},
    infer=_infer_im2col_back,
    reference=_im2col_back,
    cases=lambda: [
        case(arg(1, 1, 1, 1), arg(1, 1, 1, 1), ne=(1, 1, 1, 1)),
        case(arg(27, 10, 10), arg(3, 3, 3, 3), ne=(10, 10, 3, 1), p0=1, p1=1),
        case(arg(27, 7, 12, 2), arg(3, 3, 3), ne=(17, 12, 3, 2), s0=2, p1=1, d0=2),
        case(arg(24, 12, 2, 2), arg(4, 2, 3), ne=(9, 7, 3, 2), s1=3, p0=3, d1=3),
        case(arg(27, 10, 9, permute=(0, 2, 1, 3)), arg(3, 3, 3), ne=(9, 10, 3, 1), p0=1, p1=1),
        case(arg(6, 20, 2), arg(3, 2, 3), ne=(20, 2, 2, 1), is_2d=False, p0=1),
        case(arg(15, 6), arg(3, 5, 3), ne=(17, 5, 1, 1), is_2d=False, s0=3, p0=3, d0=3),
        case(arg(288, 58, 58), arg(3, 3, 32), ne=(58, 58, 32, 1), p0=1, p1=1, perf=True),
    ],
    doc="Images of the sizes `ne`: the gradient of `b`, where `dy` is that of `im2col`.",
)


def im2col_back(
    ctx: Context, dy: Tensor, a: Tensor, ne: Dims, is_2d: bool = True, **steps: int
) -> Tensor:
    """The gradient of images ``b``, where ``dy`` is that of ``im2col(a, b, is_2d, **steps)``.

    Args:
        ne: sizes of the images.

    Shape:
        dy F32 [c * kh * kw, ow, oh, n] (or [c * k, ow, n]), a [kw, kh, c, _] -> F32 ``ne``

    Raises:
        ShapeError, TypeMismatch: sizes or types do not fit.
    """
    return IM2COL_BACK.build(ctx, dy, a, ne=ne, is_2d=is_2d, **steps)


def im2col(
    ctx: Context, a: Tensor, b: Tensor, is_2d: bool = True, type: GGMLType = F32, **steps: int
) -> Tensor:
    """The patches of an image under a kernel, as rows; only the sizes of ``a`` are used.

    Args:
        steps: ``s0 s1 p0 p1 d0 d1``.

    Shape:
        a [kw, kh, c, _], b [w, h, c, n] -> [c * kh * kw, ow, oh, n]; or with ``is_2d=False``
        a [k, c, _], b [length, c, n] -> [c * k, ow, n]; ow = (w + 2p - d(kw - 1) - 1) // s + 1
    """
    return IM2COL.build(ctx, a, b, is_2d=is_2d, type=type, **steps)


def _infer_conv_2d(a: Tensor, b: Tensor, **v: int) -> Out:
    op = "CONV_2D"
    require(a.ne[2] == b.ne[2], op, f"kernel {a.ne} has {a.ne[2]} channels, image {b.ne} another")
    return Out(F32, (*sizes_2d(op, a, b, v), a.ne[3], b.ne[3]))


def _conv_2d(a: Array, b: Array, **v: int) -> Array:
    seen = patches(b, a.shape[2], a.shape[3], v).astype(np.float64)
    out: Array = np.einsum("ochw,nchwyx->noyx", a, seen, optimize=True)
    return out


def conv_nmse(node: Tensor) -> float:
    """The tolerance: larger if a source has half floats."""
    return 5e-4 if any(s is not None and s.type == F16 for s in node.src) else 1e-7


def conv_cost(node: Tensor) -> Cost:
    """Bytes and multiply-adds of a convolution."""
    a, b, *_ = node.src
    assert a is not None and b is not None
    per_element = a.nelements // max(1, a.ne[3])
    return Cost(node.nbytes + a.nbytes + b.nbytes, node.nelements * per_element)


def channel_rows(ops: OpBuilders, dy: Tensor) -> Tensor:
    """A gradient [ow, oh, oc, n] with the channels of a place side by side: [oc, ow * oh * n]."""
    ow, oh, oc, n = dy.ne
    rows = ops.cont(ops.permute(dy, axes=(1, 2, 0, 3)))  # [oc, ow, oh, n]
    out: Tensor = ops.reshape(rows, ne=(oc, ow * oh * n, 1, 1))
    return out


def _gradient_of_kernel(ops: OpBuilders, y: Tensor, dy: Tensor) -> Tensor:
    a, b = y.src
    assert a is not None and b is not None
    seen = ops.im2col(a, ops.contiguous(b), **y.op_params)
    k, places = seen.ne[0], seen.nrows
    seen = ops.reshape(seen, ne=(k, places, 1, 1))
    return ops.reshaped(ops.out_prod(seen, ops.once(channel_rows, dy)), a)


def _gradient_of_images(ops: OpBuilders, y: Tensor, dy: Tensor) -> Tensor:
    a, (ow, oh, oc, n) = y.src[0], y.ne
    assert a is not None
    k = a.nelements // oc
    kernel = ops.reshape(ops.contiguous(a), ne=(k, oc, 1, 1))
    seen = ops.out_prod(kernel, ops.transpose(ops.once(channel_rows, dy)))  # [k, ow * oh * n]
    seen = ops.reshape(seen, ne=(k, ow, oh, n))
    return ops.im2col_back(seen, a, **_back_params(y))


CONV_2D = define_op(
    "CONV_2D",
    src={"a": source(*FLOATS, gaps=True), "b": source(F32, gaps=True)},
    params=STEPS,
    infer=_infer_conv_2d,
    reference=_conv_2d,
    cases=lambda: [
        case(arg(1, 1, 1, 1), arg(1, 1, 1)),
        case(arg(3, 3, 5, 7), arg(17, 9, 5, 2), p0=1, p1=1),
        case(arg(3, 2, 5, 7, type=F16), arg(17, 9, 5, 2), p0=1),
        case(arg(2, 3, 3, 4), arg(33, 10, 3), s0=2, s1=3, p0=5, p1=2, d0=3, d1=2),
        case(arg(5, 1, 3, 4), arg(3, 1, 3), p0=4),
        case(arg(3, 3, 4, 2), arg(9, 4, 8, permute=(0, 2, 1, 3)), s0=3),
        case(arg(4, 3, 2, permute=(2, 0, 1, 3)), arg(4, 9, 7, 2, permute=(2, 0, 1, 3)), s0=2),
        case(arg(3, 3, 32, 64, type=F16), arg(58, 58, 32), perf=True),
        case(arg(3, 3, 3, 8), arg(224, 224, 3), perf=True),
    ],
    max_nmse=conv_nmse,
    cost=conv_cost,
    doc="Convolution of the images `b` with the kernels `a`.",
    gradients={"a": _gradient_of_kernel, "b": _gradient_of_images},
)


def conv_2d_direct(ctx: Context, a: Tensor, b: Tensor, **steps: int) -> Tensor:
    """Convolution in one node, which needs no memory for patches.

    Args:
        steps: ``s0 s1 p0 p1 d0 d1``.

    Shape:
        a F32 or F16 [kw, kh, c, oc], b F32 [w, h, c, n] -> F32 [ow, oh, oc, n]
    """
    return CONV_2D.build(ctx, a, b, **steps)


def _infer_conv_2d_dw(a: Tensor, b: Tensor, **v: int) -> Out:
    op = "CONV_2D_DW"
    require(
        a.ne[2] == 1 and a.ne[3] == b.ne[2], op, f"kernel {a.ne} must be [kw, kh, 1, {b.ne[2]}]"
    )
    return Out(F32, (*sizes_2d(op, a, b, v), b.ne[2], b.ne[3]))


def _conv_2d_dw(a: Array, b: Array, **v: int) -> Array:
    seen = patches(b, a.shape[2], a.shape[3], v).astype(np.float64)
    out: Array = np.einsum("chw,nchwyx->ncyx", a[:, 0], seen, optimize=True)
    return out


def _of_channels(ops: OpBuilders, dy: Tensor) -> Tensor:
    """A gradient [ow, oh, c, n] with the places of a channel as a row: [ow * oh, 1, c, n]."""
    ow, oh, c, n = dy.ne
    out: Tensor = ops.reshape(ops.contiguous(dy), ne=(ow * oh, 1, c, n))
    return out


def _dw_gradient_of_kernel(ops: OpBuilders, y: Tensor, dy: Tensor) -> Tensor:
    (a, b), (ow, oh, c, n) = y.src, y.ne
    assert a is not None and b is not None
    channels = ops.reshape(ops.contiguous(b), ne=(*b.ne[:2], 1, c * n))
    seen = ops.im2col(a, channels, **y.op_params)  # [kw * kh, ow, oh, c * n]
    seen = ops.reshape(seen, ne=(seen.ne[0], ow * oh, c, n))
    sums = ops.mul_mat(ops.cont(ops.transpose(seen)), ops.once(_of_channels, dy))  # [k, 1, c, n]
    return ops.reshaped(ops.repeat_back(sums, ne=(*sums.ne[:3], 1)), a)


def _dw_gradient_of_images(ops: OpBuilders, y: Tensor, dy: Tensor) -> Tensor:
    (a, b), (ow, oh, c, n) = y.src, y.ne
    assert a is not None and b is not None
    kernel = ops.reshape(ops.contiguous(a), ne=(1, a.nelements // c, c, 1))
    places = ops.reshape(ops.once(_of_channels, dy), ne=(1, ow * oh, c, n))
    seen = ops.reshape(ops.mul_mat(kernel, places), ne=(kernel.ne[1], ow, oh, c * n))
    ne = (*b.ne[:2], 1, c * n)
    return ops.reshape(ops.im2col_back(seen, a, **{**_back_params(y), "ne": ne}), ne=b.ne)


CONV_2D_DW = define_op(
    "CONV_2D_DW",
    src={"a": source(*FLOATS, gaps=True), "b": source(F32, gaps=True)},
    params=STEPS,
    infer=_infer_conv_2d_dw,
    reference=_conv_2d_dw,
    cases=lambda: [
        case(arg(3, 3, 1, 9), arg(17, 34, 9), p0=1, p1=1),
        case(arg(3, 3, 1, 4, type=F16), arg(17, 11, 4, 3), s0=2, s1=2, d0=2),
        case(arg(32, 3, 3, 1, permute=(3, 0, 1, 2)), arg(32, 17, 9, permute=(2, 0, 1, 3)), p0=1),
        case(arg(3, 3, 1, 192), arg(64, 64, 192), p0=1, p1=1, perf=True),
    ],
    max_nmse=conv_nmse,
    cost=conv_cost,
    doc="Convolution of each channel of the images `b` with a kernel of its own.",
    gradients={"a": _dw_gradient_of_kernel, "b": _dw_gradient_of_images},
)


def conv_2d_dw_direct(ctx: Context, a: Tensor, b: Tensor, **steps: int) -> Tensor:
    """Convolution of each channel with its own kernel, in one node.

    Shape:
        a F32 or F16 [kw, kh, 1, c], b F32 [w, h, c, n] -> F32 [ow, oh, c, n]
    """
    return CONV_2D_DW.build(ctx, a, b, **steps)


def conv_2d(ctx: Context, a: Tensor, b: Tensor, **steps: int) -> Tensor:
    """Convolution as IM2COL (of the kernel's type), MUL_MAT and reshapes.

    Shape:
        a F32 or F16 [kw, kh, c, oc], b F32 [w, h, c, n] -> F32 [ow, oh, oc, n]
    """
    seen = im2col(ctx, a, b, True, a.type, **steps)  # [c * kh * kw, ow, oh, n]
    k, ow, oh, n = seen.ne
    rows = reshape_2d(ctx, seen, k, ow * oh * n)
    out = mul_mat(ctx, rows, reshape_2d(ctx, a, k, a.ne[3]))  # [ow * oh * n, oc]
    out = reshape_4d(ctx, out, ow, oh, n, a.ne[3])
    return cont(ctx, permute(ctx, out, 0, 1, 3, 2))  # [ow, oh, oc, n]


def conv_2d_sk_p0(ctx: Context, a: Tensor, b: Tensor) -> Tensor:
    """``conv_2d`` with the kernel's sizes as strides: patches side by side."""
    return conv_2d(ctx, a, b, s0=a.ne[0], s1=a.ne[1])


def conv_2d_s1_ph(ctx: Context, a: Tensor, b: Tensor) -> Tensor:
    """``conv_2d`` padded by half the kernel: for odd kernels the result has the image's size."""
    return conv_2d(ctx, a, b, p0=a.ne[0] // 2, p1=a.ne[1] // 2)


def conv_1d(ctx: Context, a: Tensor, b: Tensor, s0: int = 1, p0: int = 0, d0: int = 1) -> Tensor:
    """Convolution along ``ne[0]``, as IM2COL, MUL_MAT and reshapes.

    Shape:
        a F32 or F16 [k, c, oc], b F32 [length, c, n] -> F32 [ow, oc, n]
    """
    steps: dict[str, Any] = {"s0": s0, "p0": p0, "d0": d0}
    seen = im2col(ctx, a, b, is_2d=False, type=a.type, **steps)  # [c * k, ow, n]
    k, ow, n, _ = seen.ne
    out = mul_mat(ctx, reshape_2d(ctx, seen, k, ow * n), reshape_2d(ctx, a, k, a.ne[2]))
    out = reshape_3d(ctx, out, ow, n, a.ne[2])
    return cont(ctx, permute(ctx, out, 0, 2, 1, 3))  # [ow, oc, n]
