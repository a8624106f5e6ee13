"""IM2COL, IM2COL_BACK, CONV_2D, CONV_2D_DW, CONV_TRANSPOSE_1D and CONV_TRANSPOSE_2D.

Access: a chunk is a range of result rows. IM2COL writes its rows front to back. A direct
convolution keeps one result row in cache and adds to it, for each element of the kernel, a row of
the image; with stride 1 that is a vectorised loop. Images whose channels lie side by side take a
scalar loop. A transposed convolution adds rows of the image ``stride`` elements apart. Sums have a
fixed order.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from .....compiler.jit import CpuKernel, inline_strict, kernel
from .....dtype import GGMLType
from .....tensor import Tensor
from ...abi import (
    DST,
    SRC0,
    SRC1,
    data,
    f32_ptr,
    first_row,
    load_f32,
    nb,
    ne,
    nrows,
    params_of,
    row_address,
)
from ...compile.lowering import GRAIN, CpuLowering, lowers
from ...simd.element import F32, load_elem, store_elem, zero_run

_ZERO = np.float32(0)


class Conv(NamedTuple):
    """The values of a convolution: steps, padding and distances of kernel elements by axis."""

    s0: int
    s1: int
    p0: int
    p1: int
    d0: int
    d1: int


class Im2Col(NamedTuple):
    """The values of IM2COL: those of ``Conv``, and the sizes of the kernel."""

    s0: int
    s1: int
    p0: int
    p1: int
    d0: int
    d1: int
    kw: int
    kh: int
    channels: int
    is_2d: int


@cache
def im2col_kernel(source: int, kind: int) -> CpuKernel:
    """The kernel of the image's type and the result's."""

    def im2col(node, chunk, n_chunks, scratch):
        p = params_of(node, Im2Col)
        is_2d, kw, kh, channels, w = p.is_2d, p.kw, p.kh, p.channels, ne(node, SRC1, 0)
        h = ne(node, SRC1, 1) if is_2d != 0 else 1
        nb_channel = nb(node, SRC1, 2) if is_2d != 0 else nb(node, SRC1, 1)
        nb_image = nb(node, SRC1, 3) if is_2d != 0 else nb(node, SRC1, 2)
        ow, oh = ne(node, DST, 1), ne(node, DST, 2) if is_2d != 0 else 1
        total = nrows(node, DST)
        for r in range(first_row(total, chunk, n_chunks), first_row(total, chunk + 1, n_chunks)):
            rest = r // ow
            image = rest // oh
            x0 = (r - rest * ow) * p.s0 - p.p0
            y0 = (rest - image * oh) * p.s1 - p.p1
            out, i = row_address(node, DST, r), 0
            for c in range(channels):
                plane = data(node, SRC1) + image * nb_image + c * nb_channel
                for ky in range(kh):
                    y = y0 + ky * p.d1
                    inside = 0 <= y < h
                    row = plane + y * nb(node, SRC1, 1) if is_2d != 0 else plane
                    for kx in range(kw):
                        x = x0 + kx * p.d0
                        if inside and 0 <= x < w:
                            store_elem(kind, out, i, load_elem(source, row, x))
                        else:
                            store_elem(kind, out, i, _ZERO)
                        i += 1

    return kernel(im2col, f"im2col_{GGMLType(source).name.lower()}_{GGMLType(kind).name.lower()}")


def _params(node: Tensor, a: Tensor) -> Im2Col:
    is_2d = bool(node.op_params["is_2d"])
    steps = {name: node.op_params[name] for name in Conv._fields}
    kh, channels = (a.ne[1], a.ne[2]) if is_2d else (1, a.ne[1])
    return Im2Col(**steps, kw=a.ne[0], kh=kh, channels=channels, is_2d=is_2d)


@kernel
def im2col_back_f32(node, chunk, n_chunks, scratch):
    """Rows of images: a pixel is the sum, in one order, of its copies in the patches (SRC0)."""
    p = params_of(node, Im2Col)
    is_2d, kw, kh, channels, w = p.is_2d != 0, p.kw, p.kh, p.channels, ne(node, DST, 0)
    h = ne(node, DST, 1) if is_2d else 1
    ow, oh = ne(node, SRC0, 1), ne(node, SRC0, 2) if is_2d else 1
    nb_image = nb(node, SRC0, 3) if is_2d else nb(node, SRC0, 2)
    d1, s1, p1 = (p.d1, p.s1, p.p1) if is_2d else (1, 1, 0)
    d0, s0, p0 = p.d0, p.s0, p.p0
    total = nrows(node, DST)
    for r in range(first_row(total, chunk, n_chunks), first_row(total, chunk + 1, n_chunks)):
        rest = r // h
        image = rest // channels
        c, y = rest - image * channels, r - rest * h
        out = f32_ptr(row_address(node, DST, r))
        zero_run(row_address(node, DST, r), w)
        for ky in range(kh):
            from_top = y + p1 - ky * d1
            oy = from_top // s1
            if oy < 0 or oy >= oh or oy * s1 != from_top:
                continue
            patches = data(node, SRC0) + image * nb_image + oy * nb(node, SRC0, 2) * is_2d
            for kx in range(kw):
                place = (c * kh + ky) * kw + kx
                for ox in range(ow):
                    x = ox * s0 - p0 + kx * d0
                    if 0 <= x < w:
                        out[x] += load_elem(F32, patches + ox * nb(node, SRC0, 1), place)


@lowers("IM2COL_BACK")
def _lower_im2col_back(lowering: CpuLowering, node: Tensor) -> None:
    dy, a = node.src
    chunks = max(1, min(node.nrows, dy.nelements // GRAIN, 8 * lowering.n_threads))
    lowering.launch(im2col_back_f32, node, _params(node, a), chunks, src=(dy,))


@lowers("IM2COL")
def _lower_im2col(lowering: CpuLowering, node: Tensor) -> None:
    a, b = node.src
    params = _params(node, a)
    kernel = im2col_kernel(int(b.type), int(node.type))
    lowering.launch(kernel, node, params, lowering.row_chunks(node), src=(None, b))


@inline_strict
def add_row(kind, weights, nb_w, x, nb_x, y, n_x, n_y, kw, s, p, d):
    """Add the convolution of an image row ``x`` with a kernel row to ``n_y`` results at ``y``."""
    for kx in range(kw):
        w, shift = load_elem(kind, weights + kx * nb_w, 0), kx * d - p
        first = 0 if shift >= 0 else (s - 1 - shift) // s
        end = min(n_y, (n_x - 1 - shift) // s + 1)
        out = f32_ptr(y)
        if nb_x != 4:
            for i in range(first, end):
                store_elem(F32, y, i, out[i] + w * load_f32(x + (i * s + shift) * nb_x))
        elif s == 1:
            for i in range(first, end):
                store_elem(F32, y, i, out[i] + w * load_elem(F32, x, i + shift))
        else:
            for i in range(first, end):
                store_elem(F32, y, i, out[i] + w * load_elem(F32, x, i * s + shift))


@cache
def conv_2d_kernel(kind: int, depthwise: bool) -> CpuKernel:
    """The kernel of the convolution kernel's type; ``depthwise`` gives each channel its own."""

    def conv_2d(node, chunk, n_chunks, scratch):
        p = params_of(node, Conv)
        kw, kh, w, h = ne(node, SRC0, 0), ne(node, SRC0, 1), ne(node, SRC1, 0), ne(node, SRC1, 1)
        ow, oh, oc, total = ne(node, DST, 0), ne(node, DST, 1), ne(node, DST, 2), nrows(node, DST)
        for r in range(first_row(total, chunk, n_chunks), first_row(total, chunk + 1, n_chunks)):
            rest = r // oh
            n = rest // oc
            c = rest - n * oc
            y0 = (r - rest * oh) * p.s1 - p.p1
            out = row_address(node, DST, r)
            for i in range(ow):
                store_elem(F32, out, i, _ZERO)
            for ic in range(ne(node, SRC0, 2)):
                weights = data(node, SRC0) + ic * nb(node, SRC0, 2) + c * nb(node, SRC0, 3)
                plane = data(node, SRC1) + n * nb(node, SRC1, 3)
                plane += (c if depthwise else ic) * nb(node, SRC1, 2)
                for ky in range(kh):
                    y = y0 + ky * p.d1
                    if 0 <= y < h:
                        add_row(
                            kind, weights + ky * nb(node, SRC0, 1), nb(node, SRC0, 0),
                            plane + y * nb(node, SRC1, 1), nb(node, SRC1, 0), out, w, ow, kw,
                            p.s0, p.p0, p.d0,
                        )  # fmt: skip

    return kernel(conv_2d, f"conv_2d{'_dw' if depthwise else ''}_{GGMLType(kind).name.lower()}")


@lowers("CONV_2D")
@lowers("CONV_2D_DW")
def _lower_conv_2d(lowering: CpuLowering, node: Tensor) -> None:
    a = node.src[0]
    macs = node.nelements * (a.nelements // a.ne[3])
    kernel = conv_2d_kernel(int(a.type), node.op.name == "CONV_2D_DW")
    params = Conv(**{name: node.op_params[name] for name in Conv._fields})
    lowering.launch(kernel, node, params, lowering.mac_chunks(node, macs))


class ConvTranspose(NamedTuple):
    """The values of a transposed convolution."""

    stride: int


@cache
def conv_transpose_kernel(kind: int, axes: int) -> CpuKernel:
    """The kernel of the convolution kernel's type for images of one or two axes."""

    def conv_transpose(node, chunk, n_chunks, scratch):
        s, w, kw = params_of(node, ConvTranspose).stride, ne(node, SRC1, 0), ne(node, SRC0, 0)
        h, kh = (ne(node, SRC1, 1), ne(node, SRC0, 1)) if axes == 2 else (1, 1)
        channels, oc = ne(node, SRC0, axes + 1), ne(node, DST, axes)
        oh, total = ne(node, DST, 1) if axes == 2 else 1, nrows(node, DST)
        for r in range(first_row(total, chunk, n_chunks), first_row(total, chunk + 1, n_chunks)):
            rest = r // oh
            n = rest // oc
            c, oy = rest - n * oc, r - rest * oh
            out = row_address(node, DST, r)
            sums = f32_ptr(out)
            for i in range(ne(node, DST, 0)):
                store_elem(F32, out, i, _ZERO)
            for ic in range(channels):
                weights = data(node, SRC0) + c * nb(node, SRC0, axes)
                weights += ic * nb(node, SRC0, axes + 1)
                plane = data(node, SRC1) + ic * nb(node, SRC1, axes) + n * nb(node, SRC1, 3)
                for ky in range(kh):
                    y = (oy - ky) // s
                    if y < 0 or y >= h or y * s != oy - ky:
                        continue
                    x = plane + y * nb(node, SRC1, 1) if axes == 2 else plane
                    row = weights + ky * nb(node, SRC0, 1) if axes == 2 else weights
                    for kx in range(kw):
                        weight = load_elem(kind, row, kx)
                        for i in range(w):
                            j = i * s + kx
                            store_elem(F32, out, j, sums[j] + weight * load_elem(F32, x, i))

    return kernel(conv_transpose, f"conv_transpose_{axes}d_{GGMLType(kind).name.lower()}")


@lowers("CONV_TRANSPOSE_1D")
@lowers("CONV_TRANSPOSE_2D")
def _lower_conv_transpose(lowering: CpuLowering, node: Tensor) -> None:
    a, b = node.src
    axes = 2 if node.op.name == "CONV_TRANSPOSE_2D" else 1
    chunks = lowering.mac_chunks(node, a.nelements * b.nelements)
    kernel = conv_transpose_kernel(int(a.type), axes)
    lowering.launch(kernel, node, ConvTranspose(node.op_params["s0"]), chunks)
