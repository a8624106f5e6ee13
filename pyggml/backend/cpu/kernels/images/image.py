"""UPSCALE, WIN_PART and WIN_UNPART: images resized, and cut into windows.

Access: result rows front to back. UPSCALE reads one or two rows of the source with any strides;
the windows are copies of whole rows.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from .....compiler.jit import CpuKernel, inline_strict, kernel
from .....ops.images.image import CUBIC, scale_factors
from .....tensor import Tensor
from ...abi import DST, SRC0, data, first_row, load_f32, nb, ne, nrows, params_of, row_address
from ...compile.lowering import CpuLowering, by_rows, lowers
from ...simd.element import F32, copy_run, store_elem, zero_run
from ...simd.math import abs_f32

_ZERO, _ONE, _CUBIC = np.float32(0), np.float32(1), np.float32(CUBIC)


class Upscale(NamedTuple):
    """The values of UPSCALE: a factor by dimension, and the offset of an element's centre."""

    f0: float
    f1: float
    f2: float
    f3: float
    offset: float


@inline_strict
def nearest(i, factor, size):
    """The source index of index ``i`` of the result."""
    return min(np.int64(np.float32(i) / factor), size - 1)


@inline_strict
def between(i, factor, size, offset):
    """The two source neighbours of index ``i`` of the result, and the weight of the second."""
    at = (np.float32(i) + offset) / factor - offset
    first = np.int64(np.floor(at))
    low, high = min(max(first, 0), size - 1), min(max(first + 1, 0), size - 1)
    return low, high, min(max(at - np.float32(low), _ZERO), _ONE)


@kernel
def upscale_nearest(node, chunk, n_chunks, scratch):
    """A range of result rows; copies single elements."""
    p = params_of(node, Upscale)
    n1, n2, total = ne(node, DST, 1), ne(node, DST, 2), nrows(node, DST)
    for r in range(first_row(total, chunk, n_chunks), first_row(total, chunk + 1, n_chunks)):
        rest = r // n1
        i3 = rest // n2
        x = data(node, SRC0)
        x += nearest(r - rest * n1, p.f1, ne(node, SRC0, 1)) * nb(node, SRC0, 1)
        x += nearest(rest - i3 * n2, p.f2, ne(node, SRC0, 2)) * nb(node, SRC0, 2)
        x += nearest(i3, p.f3, ne(node, SRC0, 3)) * nb(node, SRC0, 3)
        y = row_address(node, DST, r)
        for i in range(ne(node, DST, 0)):
            at = nearest(i, p.f0, ne(node, SRC0, 0))
            store_elem(F32, y, i, load_f32(x + at * nb(node, SRC0, 0)))


@kernel
def upscale_bilinear(node, chunk, n_chunks, scratch):
    """A range of result rows, each from two rows of the source."""
    p = params_of(node, Upscale)
    n1, n2, total = ne(node, DST, 1), ne(node, DST, 2), nrows(node, DST)
    nb0, offset = nb(node, SRC0, 0), p.offset
    for r in range(first_row(total, chunk, n_chunks), first_row(total, chunk + 1, n_chunks)):
        rest = r // n1
        i3 = rest // n2
        x = data(node, SRC0)
        x += nearest(rest - i3 * n2, p.f2, ne(node, SRC0, 2)) * nb(node, SRC0, 2)
        x += nearest(i3, p.f3, ne(node, SRC0, 3)) * nb(node, SRC0, 3)
        y0, y1, dy = between(r - rest * n1, p.f1, ne(node, SRC0, 1), offset)
        upper, lower = x + y0 * nb(node, SRC0, 1), x + y1 * nb(node, SRC0, 1)
        y = row_address(node, DST, r)
        for i in range(ne(node, DST, 0)):
            x0, x1, dx = between(i, p.f0, ne(node, SRC0, 0), offset)
            a, b = load_f32(upper + x0 * nb0), load_f32(upper + x1 * nb0)
            c, d = load_f32(lower + x0 * nb0), load_f32(lower + x1 * nb0)
            v = a * (_ONE - dx) * (_ONE - dy) + b * dx * (_ONE - dy)
            store_elem(F32, y, i, v + c * (_ONE - dx) * dy + d * dx * dy)


@inline_strict
def cubic(d):
    """The weight of an element at a distance from 0 to 2."""
    if d <= _ONE:
        return ((_CUBIC + np.float32(2)) * d - (_CUBIC + np.float32(3))) * d * d + _ONE
    return ((d - np.float32(5)) * d + np.float32(8)) * d * _CUBIC - np.float32(4) * _CUBIC


@inline_strict
def window(antialias, i, factor, size, offset):
    """(first, end, centre, reach) of the source elements of which index ``i`` is a mean.

    The bicubic window may exceed the source, whose border elements are repeated.
    """
    at = (np.float32(i) + offset) / factor
    if antialias:
        reach = max(_ONE, _ONE / factor)
        first = max(np.int64(at - reach + offset), 0)
        return first, min(np.int64(at + reach + offset), size), at - offset, reach
    at -= offset
    low = np.int64(np.floor(at))
    return low - 1, low + 3, at, _ONE


@inline_strict
def weight(antialias, i, centre, reach):
    """The weight of element ``i`` in a window."""
    d = abs_f32(np.float32(i) - centre)
    return max(_ONE - d / reach, _ZERO) if antialias else cubic(d)


@cache
def upscale_window_kernel(antialias: bool) -> CpuKernel:
    """Means over windows: bilinear with antialiasing, or bicubic."""

    def upscale(node, chunk, n_chunks, scratch):
        p = params_of(node, Upscale)
        n1, n2, total = ne(node, DST, 1), ne(node, DST, 2), nrows(node, DST)
        w, h, offset = ne(node, SRC0, 0), ne(node, SRC0, 1), p.offset
        for r in range(first_row(total, chunk, n_chunks), first_row(total, chunk + 1, n_chunks)):
            rest = r // n1
            image = rest // n2
            i3 = nearest(image, p.f3, ne(node, SRC0, 3))
            i2 = nearest(rest - image * n2, p.f2, ne(node, SRC0, 2))
            x = data(node, SRC0) + i2 * nb(node, SRC0, 2) + i3 * nb(node, SRC0, 3)
            y0, y1, cy, ry = window(antialias, r - rest * n1, p.f1, h, offset)
            y = row_address(node, DST, r)
            for i in range(ne(node, DST, 0)):
                x0, x1, cx, rx = window(antialias, i, p.f0, w, offset)
                v, weights = _ZERO, _ZERO
                for sy in range(y0, y1):
                    row = x + min(max(sy, 0), h - 1) * nb(node, SRC0, 1)
                    wy, part, across = weight(antialias, sy, cy, ry), _ZERO, _ZERO
                    for sx in range(x0, x1):
                        wx = weight(antialias, sx, cx, rx)
                        part += wx * load_f32(row + min(max(sx, 0), w - 1) * nb(node, SRC0, 0))
                        across += wx
                    v += wy * part
                    weights += wy * across
                store_elem(F32, y, i, v / weights if antialias and weights > _ZERO else v)

    return kernel(upscale, f"upscale_{'antialias' if antialias else 'bicubic'}")


@lowers("UPSCALE")
def _lower_upscale(lowering: CpuLowering, node: Tensor) -> None:
    x, v = node.src[0], node.op_params
    factors = scale_factors(x.ne, node.ne, v["align_corners"])
    params = Upscale(*map(float, factors), offset=0.0 if v["align_corners"] else 0.5)
    kernel = _KERNELS.get(v["mode"]) or upscale_window_kernel(v["mode"] == "antialias")
    lowering.launch(kernel, node, params, lowering.row_chunks(node))


_KERNELS = {"nearest": upscale_nearest, "bilinear": upscale_bilinear}


@kernel
def win_part_f32(node, chunk, n_chunks, scratch):
    """A range of rows of the windows."""
    c, w, total = ne(node, DST, 0), ne(node, DST, 1), nrows(node, DST)
    width, height = ne(node, SRC0, 1), ne(node, SRC0, 2)
    nx = (width + w - 1) // w
    for r in range(first_row(total, chunk, n_chunks), first_row(total, chunk + 1, n_chunks)):
        rest = r // w
        window = rest // w
        i1 = window % nx * w + r - rest * w
        i2 = window // nx * w + rest - window * w
        x = data(node, SRC0) + i1 * nb(node, SRC0, 1) + i2 * nb(node, SRC0, 2)
        if i1 < width and i2 < height:
            copy_run(x, row_address(node, DST, r), c)
        else:
            zero_run(row_address(node, DST, r), c)


@kernel
def win_unpart_f32(node, chunk, n_chunks, scratch):
    """A range of rows of the image."""
    c, w, width, total = ne(node, DST, 0), ne(node, SRC0, 1), ne(node, DST, 1), nrows(node, DST)
    nx = (width + w - 1) // w
    for r in range(first_row(total, chunk, n_chunks), first_row(total, chunk + 1, n_chunks)):
        i2 = r // width
        i1 = r - i2 * width
        x = data(node, SRC0) + i1 % w * nb(node, SRC0, 1) + i2 % w * nb(node, SRC0, 2)
        x += (i2 // w * nx + i1 // w) * nb(node, SRC0, 3)
        copy_run(x, row_address(node, DST, r), c)


lowers("WIN_PART")(by_rows(win_part_f32))
lowers("WIN_UNPART")(by_rows(win_unpart_f32))
