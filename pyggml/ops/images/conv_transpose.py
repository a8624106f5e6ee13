"""Transposed convolutions: CONV_TRANSPOSE_1D and CONV_TRANSPOSE_2D, without padding.

y = conv_transpose_2d_p0(ctx, kernel, image, 2)     # about twice the image's width and height

Each element of the image adds a copy of the kernel to the result, ``s0`` elements apart. Note the
kernel's order of channels: out before in, the other way round than in a convolution.
"""

from __future__ import annotations

import numpy as np

from ...context import Context
from ...tensor import Tensor
from ..op import F16, F32, FLOATS, Array, OpBuilders, Out, arg, case, define_op, require, source
from .conv import channel_rows, conv_cost, conv_nmse

__all__ = ["conv_transpose_1d", "conv_transpose_2d_p0"]


def _check(op: str, a: Tensor, b: Tensor, s0: int) -> None:
    require(s0 > 0, op, f"stride {s0} must be positive")
    require(min(*a.ne, *b.ne) > 0, op, f"kernel {a.ne} or image {b.ne} is empty")


def _infer_1d(a: Tensor, b: Tensor, s0: int) -> Out:
    op = "CONV_TRANSPOSE_1D"
    _check(op, a, b, s0)
    require(
        a.ne[2] == b.ne[1] and a.ne[3] == b.ne[2] == b.ne[3] == 1,
        op,
        f"kernel {a.ne} must be [k, oc, c] and image {b.ne} [length, c]",
    )
    return Out(F32, ((b.ne[0] - 1) * s0 + a.ne[0], a.ne[1], 1, 1))


def _spread(a: Array, b: Array, s1: int, s0: int) -> Array:
    """Kernels [c, oc, kh, kw] and images [n, c, h, w]: [n, oc, oh, ow]."""
    kh, kw = a.shape[2:]
    h, w = b.shape[2:]
    out = np.zeros((b.shape[0], a.shape[1], (h - 1) * s1 + kh, (w - 1) * s0 + kw))
    for ky in range(kh):
        for kx in range(kw):
            part = np.einsum("co,ncyx->noyx", a[:, :, ky, kx], b, dtype=np.float64)
            out[:, :, ky : ky + (h - 1) * s1 + 1 : s1, kx : kx + (w - 1) * s0 + 1 : s0] += part
    return out


def _conv_transpose_1d(a: Array, b: Array, s0: int) -> Array:
    out = _spread(a[0][:, :, None], b[0][:, :, None], 1, s0)  # [1, oc, 1, ow]
    return out.swapaxes(1, 2)


def _seen_1d(ops: OpBuilders, y: Tensor, dy: Tensor) -> Tensor:
    """What the kernel sees of a gradient [ow, oc] at each place: [k * oc, length]."""
    out: Tensor = ops.im2col(y.src[0], ops.contiguous(dy), is_2d=False, s0=y.op_params["s0"])
    return out


def _kernel_gradient_1d(ops: OpBuilders, y: Tensor, dy: Tensor) -> Tensor:
    a, b = y.src
    assert a is not None and b is not None
    return ops.reshaped(ops.out_prod(ops.once(_seen_1d, y, dy), ops.transpose(b)), a)


def _image_gradient_1d(ops: OpBuilders, y: Tensor, dy: Tensor) -> Tensor:
    """The convolution of ``dy`` with the kernels, as a matmul."""
    a = y.src[0]
    assert a is not None
    kernel = ops.reshape(ops.contiguous(a), ne=(a.ne[0] * a.ne[1], a.ne[2], 1, 1))
    out: Tensor = ops.mul_mat(ops.once(_seen_1d, y, dy), kernel)  # [length, c]
    return out


CONV_TRANSPOSE_1D = define_op(
    "CONV_TRANSPOSE_1D",
    src={"a": source(*FLOATS), "b": source(F32)},
    params={"s0": 1},
    infer=_infer_1d,
    reference=_conv_transpose_1d,
    cases=lambda: [
        case(arg(1, 1, 1), arg(1, 1)),
        case(arg(2, 3, 2), arg(3, 2), s0=3),
        case(arg(3, 17, 5), arg(65, 5), s0=2),
        case(arg(16, 9, 4, type=F16), arg(33, 4), s0=5),
        case(arg(16, 32, 32), arg(197, 32), perf=True),
    ],
    max_nmse=conv_nmse,
    cost=conv_cost,
    doc="Adds the kernels `a`, weighted by the elements of `b`, at steps of `s0`, along one axis.",
    gradients={"a": _kernel_gradient_1d, "b": _image_gradient_1d},
)


def conv_transpose_1d(ctx: Context, a: Tensor, b: Tensor, s0: int) -> Tensor:
    """Transposed convolution along ``ne[0]``.

    Shape:
        a F32 or F16 [k, oc, c], b F32 [length, c] -> F32 [(length - 1) * s0 + k, oc]
    """
    return CONV_TRANSPOSE_1D.build(ctx, a, b, s0=s0)


def _infer_2d(a: Tensor, b: Tensor, s0: int) -> Out:
    op = "CONV_TRANSPOSE_2D"
    _check(op, a, b, s0)
    require(a.ne[3] == b.ne[2], op, f"kernel {a.ne} has {a.ne[3]} channels, image {b.ne} another")
    ow, oh = ((b.ne[i] - 1) * s0 + a.ne[i] for i in range(2))
    return Out(F32, (ow, oh, a.ne[2], b.ne[3]))


def _kernel_gradient_2d(ops: OpBuilders, y: Tensor, dy: Tensor) -> Tensor:
    """That of the convolution of ``dy``, where the images are the result's gradient."""
    (a, b), s0 = y.src, y.op_params["s0"]
    assert a is not None and b is not None
    seen = ops.im2col(a, ops.contiguous(dy), s0=s0, s1=s0)  # [kw * kh * oc, w, h, n]
    seen = ops.reshape(seen, ne=(seen.ne[0], seen.nrows, 1, 1))
    return ops.reshaped(ops.out_prod(seen, channel_rows(ops, b)), a)


def _images_gradient_2d(ops: OpBuilders, y: Tensor, dy: Tensor) -> Tensor:
    s0 = y.op_params["s0"]
    out: Tensor = ops.conv_2d(y.src[0], dy, s0=s0, s1=s0)
    return out


CONV_TRANSPOSE_2D = define_op(
    "CONV_TRANSPOSE_2D",
    src={"a": source(*FLOATS), "b": source(F32)},
    params={"s0": 1},
    infer=_infer_2d,
    reference=lambda a, b, s0: _spread(a, b, s0, s0),
    cases=lambda: [
        case(arg(1, 1, 1, 1), arg(1, 1, 1)),
        case(arg(2, 2, 1, 2), arg(3, 2, 2), s0=1),
        case(arg(3, 2, 5, 4), arg(17, 9, 4, 2), s0=2),
        case(arg(2, 5, 3, 4, type=F16), arg(9, 3, 4), s0=3),
        case(arg(3, 3, 16, 16), arg(64, 64, 16), s0=2, perf=True),
    ],
    max_nmse=conv_nmse,
    cost=conv_cost,
    doc="Adds the kernels `a`, weighted by the elements of the images `b`, at steps of `s0`.",
    gradients={"a": _kernel_gradient_2d, "b": _images_gradient_2d},
)


def conv_transpose_2d_p0(ctx: Context, a: Tensor, b: Tensor, stride: int) -> Tensor:
    """Transposed convolution without padding.

    Shape:
        a F32 or F16 [kw, kh, oc, c], b F32 [w, h, c, n]
        -> F32 [(w - 1) * stride + kw, (h - 1) * stride + kh, oc, n]
    """
    return CONV_TRANSPOSE_2D.build(ctx, a, b, s0=stride)
