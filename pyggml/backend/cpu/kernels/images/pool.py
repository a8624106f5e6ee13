"""POOL_1D and POOL_2D: the largest element or the mean of a window; POOL_2D_BACK.

Access: result rows front to back; each window is read row by row.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from .....compiler.jit import CpuKernel, kernel
from .....dtype import GGMLType
from .....ops.images.pool import LOWEST
from .....tensor import Tensor
from ....common.lowering import all_f32
from ...abi import (
    DST,
    SRC0,
    SRC1,
    data,
    f32_ptr,
    first_row,
    nb,
    ne,
    nrows,
    params_of,
    row_address,
)
from ...compile.lowering import GRAIN, CpuLowering, lowers
from ...simd.element import F32, load_elem, store_elem, zero_run

_LOWEST = np.float32(LOWEST)
_ZERO = np.float32(0)


class PoolArgs(NamedTuple):
    """The values of a pooling op by axis: sizes of the window, steps, padding."""

    k0: int
    k1: int
    s0: int
    s1: int
    p0: int
    p1: int
    size: int  # divisor of a mean; 0: the number of elements inside


@cache
def pool_kernel(kind: int, largest: bool) -> CpuKernel:
    """The kernel of a source type, for the largest element or the mean."""

    def pool(node, chunk, n_chunks, scratch):
        p, w, h = params_of(node, PoolArgs), ne(node, SRC0, 0), ne(node, SRC0, 1)
        oh, n2, total = ne(node, DST, 1), ne(node, DST, 2), nrows(node, DST)
        for r in range(first_row(total, chunk, n_chunks), first_row(total, chunk + 1, n_chunks)):
            rest = r // oh
            i3 = rest // n2
            plane = data(node, SRC0) + (rest - i3 * n2) * nb(node, SRC0, 2)
            plane += i3 * nb(node, SRC0, 3)
            y0 = (r - rest * oh) * p.s1 - p.p1
            out = row_address(node, DST, r)
            for ox in range(ne(node, DST, 0)):
                x0 = ox * p.s0 - p.p0
                x_first, x_end = max(x0, 0), min(x0 + p.k0, w)
                v, count = _LOWEST if largest else _ZERO, 0
                for y in range(max(y0, 0), min(y0 + p.k1, h)):
                    row = plane + y * nb(node, SRC0, 1)
                    for x in range(x_first, x_end):
                        e = load_elem(kind, row, x)
                        if largest:
                            v = e if e > v else v
                        else:
                            v += e
                        count += 1
                if not largest:
                    size = p.size if p.size != 0 else count
                    v = v / np.float32(size) if size > 0 else _ZERO
                store_elem(F32, out, ox, v)

    return kernel(pool, f"pool_{'max' if largest else 'avg'}_{GGMLType(kind).name.lower()}")


@lowers("POOL_1D")
@lowers("POOL_2D")
def _lower_pool(lowering: CpuLowering, node: Tensor) -> None:
    x, v = node.src[0], node.op_params
    one = {"k1": 1, "s1": 1, "p1": 0, "size": 0}
    two = {"size": v["k0"] * v["k1"]} if "k1" in v else {}
    params = PoolArgs(**{k: x for k, x in (one | v | two).items() if k in PoolArgs._fields})
    kernel = pool_kernel(int(x.type), v["pool"] == "max")
    lowering.launch(kernel, node, params, lowering.row_chunks(node))


@cache
def pool_back_kernel(largest: bool) -> CpuKernel:
    """The kernel of the gradient; a chunk is a range of images of one channel."""

    def pool_back(node, chunk, n_chunks, scratch):
        p, w, h = params_of(node, PoolArgs), ne(node, DST, 0), ne(node, DST, 1)
        ow, oh, n2 = ne(node, SRC0, 0), ne(node, SRC0, 1), ne(node, DST, 2)
        nb_x, nb_out = nb(node, SRC1, 1), nb(node, DST, 1)
        total = n2 * ne(node, DST, 3)
        for k in range(first_row(total, chunk, n_chunks), first_row(total, chunk + 1, n_chunks)):
            i2, i3 = k % n2, k // n2
            plane = data(node, SRC1) + i2 * nb(node, SRC1, 2) + i3 * nb(node, SRC1, 3)
            out = data(node, DST) + i2 * nb(node, DST, 2) + i3 * nb(node, DST, 3)
            for y in range(h):
                zero_run(out + y * nb_out, w)
            for oy in range(oh):
                dy = row_address(node, SRC0, k * oh + oy)
                y0 = oy * p.s1 - p.p1
                y_first, y_end = max(y0, 0), min(y0 + p.k1, h)
                for ox in range(ow):
                    x0, d = ox * p.s0 - p.p0, load_elem(F32, dy, ox)
                    x_first, x_end = max(x0, 0), min(x0 + p.k0, w)
                    if largest:
                        v, at_y, at_x = _LOWEST, -1, 0
                        for y in range(y_first, y_end):
                            for x in range(x_first, x_end):
                                e = load_elem(F32, plane + y * nb_x, x)
                                if e > v:
                                    v, at_y, at_x = e, y, x
                        if at_y >= 0:
                            f32_ptr(out + at_y * nb_out)[at_x] += d
                    else:
                        for y in range(y_first, y_end):
                            row = f32_ptr(out + y * nb_out)
                            for x in range(x_first, x_end):
                                row[x] += d / np.float32(p.size)

    return kernel(pool_back, f"pool_2d_back_{'max' if largest else 'avg'}")


@lowers("POOL_2D_BACK", all_f32)
def _lower_pool_back(lowering: CpuLowering, node: Tensor) -> None:
    v = node.op_params
    sizes = {k: x for k, x in v.items() if k in PoolArgs._fields}
    planes = node.ne[2] * node.ne[3]
    chunks = max(1, min(planes, node.nelements // GRAIN, 8 * lowering.n_threads))
    params = PoolArgs(**sizes, size=v["k0"] * v["k1"])
    lowering.launch(pool_back_kernel(v["pool"] == "max"), node, params, chunks)
