"""IM2COL, CONV_2D and CONV_2D_DW: convolutions as copies for a matmul, and directly.

Access: a chunk is a range of result rows. IM2COL writes its rows front to back. A direct
convolution keeps one result row in cache and adds to it, for each element of the kernel, a row of
the image; with stride 1 that is a vectorised loop over neighbours. Images with channels side by
side take a scalar loop.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from ....dtype import GGMLType
from ....jit import Kernel, inline_strict, kernel
from ....tensor import Tensor
from ..abi import (
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
from ..lowering import Lowering, lowers
from ..simd.element import F32, put, take

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
def im2col_kernel(source: int, kind: int) -> Kernel:
    """The kernel of the image's type and the result's."""

    def im2col(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
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
                            put(kind, out, i, take(source, row, x))
                        else:
                            put(kind, out, i, _ZERO)
                        i += 1

    made = kernel(im2col)
    made.name = f"im2col_{GGMLType(source).name.lower()}_{GGMLType(kind).name.lower()}"
    return made


@lowers("IM2COL")
def _lower_im2col(low: Lowering, node: Tensor) -> None:
    a, b = node.src
    assert a is not None and b is not None
    is_2d = bool(node.op_params["is_2d"])
    steps = {name: node.op_params[name] for name in Conv._fields}
    kh, channels = (a.ne[1], a.ne[2]) if is_2d else (1, a.ne[1])
    params = Im2Col(**steps, kw=a.ne[0], kh=kh, channels=channels, is_2d=is_2d)
    made = im2col_kernel(int(b.type), int(node.type))
    low.launch(made, node, params, low.row_chunks(node), src=(None, b))


@inline_strict
def add_row(kind, weights, nb_w, x, nb_x, y, n_x, n_y, kw, s, p, d):  # type: ignore[no-untyped-def]
    """Add to ``n_y`` results at ``y`` the row ``x`` seen by one row of a kernel."""
    for kx in range(kw):
        w, shift = take(kind, weights + kx * nb_w, 0), kx * d - p
        first = 0 if shift >= 0 else (s - 1 - shift) // s
        end = min(n_y, (n_x - 1 - shift) // s + 1)
        out = f32_ptr(y)
        if nb_x != 4:
            for i in range(first, end):
                put(F32, y, i, out[i] + w * load_f32(x + (i * s + shift) * nb_x))
        elif s == 1:
            for i in range(first, end):
                put(F32, y, i, out[i] + w * take(F32, x, i + shift))
        else:
            for i in range(first, end):
                put(F32, y, i, out[i] + w * take(F32, x, i * s + shift))


@cache
def conv_2d_kernel(kind: int, depthwise: bool) -> Kernel:
    """The kernel of the convolution kernel's type; ``depthwise`` gives each channel its own."""

    def conv_2d(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
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
                put(F32, out, i, _ZERO)
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

    made = kernel(conv_2d)
    made.name = f"conv_2d{'_dw' if depthwise else ''}_{GGMLType(kind).name.lower()}"
    return made


@lowers("CONV_2D")
@lowers("CONV_2D_DW")
def _lower_conv_2d(low: Lowering, node: Tensor) -> None:
    a = node.src[0]
    assert a is not None and node.op is not None
    macs = node.nelements * (a.nelements // a.ne[3])
    made = conv_2d_kernel(int(a.type), node.op.name == "CONV_2D_DW")
    params = Conv(**{name: node.op_params[name] for name in Conv._fields})
    low.launch(made, node, params, low.mac_chunks(node, macs))
