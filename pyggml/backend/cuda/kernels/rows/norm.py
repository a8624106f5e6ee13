"""RMS_NORM and NORM, with an ADD before them and a weight (and a bias) after them; L2_NORM and
GROUP_NORM.

A row of up to ``WARP_ROW`` elements is computed by a warp, a longer one by a block, whose size
depends on the row's length alone; so do the orders of sums. Means are taken of differences from the
row's first element, which are exact where a row is far from zero. Access: a row is read two or
three times, after the first time from L1, four elements a thread; it is written once.
"""

import math
from functools import cache

import numpy as np
from numba import cuda, float32, int32, int64

from .....rounding import ceil_div, round_up
from .....tensor import Tensor
from ....common.lowering import all_f32
from ....common.memory import may_write_over, overlap
from ....common.norm import norm_rows
from ...driver import Grid
from ...intrin import device, divide, load_f32, load_f32x4, store_f32, store_f32x4
from ...kernel import U8, GpuKernel, f32, i32, i64, kernel
from ...lowering import GpuLowering, blocks, fuses, lowers
from ..span import indices_of, is_quads, repeated_at, row_at
from ..warp import block_sum, warp_sum

WARP_ROW = 1024  # elements
PER_THREAD = 8  # elements of a longer row, at least
MAX_THREADS = 512  # of a block; more would have too few registers

ZERO, ONE = np.float32(0), np.float32(1)


def row_launch(x: Tensor) -> tuple[bool, Grid, int]:
    """(whether a warp computes a row and not a block, the grid, threads of a block)."""
    if x.ne[0] <= WARP_ROW:
        return True, blocks(x.nrows, 8), 256
    threads = min(MAX_THREADS, round_up(ceil_div(x.ne[0], PER_THREAD), 32))
    return False, Grid(x.nrows), threads


@cache
def norm_kernel(
    op: str, warp: bool, quads: bool, added: bool, weighted: bool, biased: bool
) -> GpuKernel:
    """The kernel of RMS_NORM, NORM or L2_NORM, for rows of a warp or of a block.

    Args:
        added: it is the norm of ``x + r``, which is also stored, in ``z``.
    """
    total = warp_sum if warp else block_sum
    centred, by_length = op == "NORM", op == "L2_NORM"
    name = (
        "add_" * added
        + op.lower()
        + "_mul" * weighted
        + "_add" * biased
        + "_warp" * warp
        + "_x4" * quads
    )

    width = 4 if quads else 1

    @device
    def load(x, at, v):
        if quads:
            v[0], v[1], v[2], v[3] = load_f32x4(x, at)
        else:
            v[0] = load_f32(x, at)

    @device
    def store(y, at, v):
        if quads:
            store_f32x4(y, at, v[0], v[1], v[2], v[3])
        else:
            store_f32(y, at, v[0])

    @device
    def load_sum(x, x_at, r, r_at, v, u):
        load(x, x_at, v)
        if added:
            load(r, r_at, u)
            for i in range(width):
                v[i] += u[i]

    @device
    def sum_of(v):
        return (v[0] + v[1]) + (v[2] + v[3]) if quads else v[0]

    @kernel(name, threads=256 if warp else MAX_THREADS)
    def norm(
        x: U8, y: U8, r: U8, z: U8, w: U8, b: U8, n: i32, rows: i32, ne1: i32, ne2: i32,
        x1: i64, x2: i64, x3: i64, y1: i64, y2: i64, y3: i64,
        w_ne1: i32, w_ne2: i32, w_ne3: i32, w1: i64, w2: i64, w3: i64,
        b_ne1: i32, b_ne2: i32, b_ne3: i32, b1: i64, b2: i64, b3: i64,
        r1: i64, r2: i64, r3: i64, z1: i64, z2: i64, z3: i64, eps: f32,
    ):  # fmt: skip
        t, step, row = int32(cuda.threadIdx.x), int32(cuda.blockDim.x), int32(cuda.blockIdx.x)
        if warp:
            row = int32(row * (step >> 5) + (t >> 5))
            t, step = int32(t & 31), int32(32)
            if row >= rows:
                return
        i1, i2, i3 = indices_of(row, ne1, ne2)
        x_row = i1 * x1 + i2 * x2 + i3 * x3
        y_row = i1 * y1 + i2 * y2 + i3 * y3
        r_row = i1 * r1 + i2 * r2 + i3 * r3
        z_row = i1 * z1 + i2 * z2 + i3 * z3
        w_row, b_row = int64(0), int64(0)
        if weighted:
            w_row = repeated_at(i1, i2, i3, w_ne1, w_ne2, w_ne3, w1, w2, w3)
        if biased:
            b_row = repeated_at(i1, i2, i3, b_ne1, b_ne2, b_ne3, b1, b2, b3)
        v, u = cuda.local.array(width, float32), cuda.local.array(width, float32)
        base, mean, s = ZERO, ZERO, ZERO
        if centred:
            base = load_f32(x, x_row)
            if added:
                base += load_f32(r, r_row)
            j = int32(t)
            while j * width < n:
                at = int64(j) * (4 * width)
                load_sum(x, x_row + at, r, r_row + at, v, u)
                for i in range(width):
                    v[i] -= base
                s += sum_of(v)
                j += step
            mean = total(s) / float32(n)
            s = ZERO
        j = int32(t)
        while j * width < n:
            at = int64(j) * (4 * width)
            load_sum(x, x_row + at, r, r_row + at, v, u)
            for i in range(width):
                if centred:
                    v[i] = (v[i] - base) - mean
                v[i] *= v[i]
            s += sum_of(v)
            j += step
        s = total(s)
        if by_length:
            s = math.sqrt(s)
            s = ONE / (eps if s < eps else s)
        else:
            s = ONE / math.sqrt(s / float32(n) + eps)
        j = int32(t)
        while j * width < n:
            at = int64(j) * (4 * width)
            load_sum(x, x_row + at, r, r_row + at, v, u)
            if added:
                store(z, z_row + at, v)
            for i in range(width):
                if centred:
                    v[i] = (v[i] - base) - mean
                v[i] *= s
            if weighted:
                load(w, w_row + at, u)
                for i in range(width):
                    v[i] *= u[i]
            if biased:
                load(b, b_row + at, u)
                for i in range(width):
                    v[i] += u[i]
            store(y, y_row + at, v)
            j += step

    return norm


@kernel(threads=1024, max_registers=64)
def group_norm(
    x: U8, y: U8, n: i32, height: i32, channels: i32, of_group: i32, groups: i32, x1: i64, x2: i64,
    x3: i64, y1: i64, y2: i64, y3: i64, eps: f32,
):  # fmt: skip
    """A block for each group; elements are counted along rows, rows along channels."""
    i3 = divide(cuda.blockIdx.x, groups)
    first = int32((int32(cuda.blockIdx.x) - i3 * groups) * of_group)
    count = int32(of_group if first + of_group <= channels else channels - first)
    if count <= 0:
        return
    size = int32(count * height * n)
    x_at, y_at = i3 * x3 + first * x2, i3 * y3 + first * y2
    base = load_f32(x, x_at)
    mean, s = ZERO, ZERO
    for k in range(2):
        s = ZERO
        e = int32(cuda.threadIdx.x)
        while e < size:
            r = divide(e, n)
            v = load_f32(x, x_at + row_at(r, height, count, x1, x2, x3) + int32(e - r * n) * 4)
            v = (v - base) - mean
            s += v * v if k == 1 else v
            e += int32(cuda.blockDim.x)
        s = block_sum(s) / float32(size)
        if k == 0:
            mean = s
    s = ONE / math.sqrt(s + eps)
    e = int32(cuda.threadIdx.x)
    while e < size:
        r = divide(e, n)
        j = int64(int32(e - r * n)) * 4
        v = load_f32(x, x_at + row_at(r, height, count, x1, x2, x3) + j)
        v = ((v - base) - mean) * s
        store_f32(y, y_at + row_at(r, height, count, y1, y2, y3) + j, v)
        e += int32(cuda.blockDim.x)


def _launch(
    lowering: GpuLowering, norm: Tensor, dst: Tensor, *rows: Tensor, total: Tensor | None = None
) -> None:
    """Launch a norm whose result, with a weight and a bias if there are ``rows``, is ``dst``.

    Args:
        total: the ADD that is the norm's source, if the launch computes it too.
    """
    x, r = (norm.src[0], None) if total is None else total.src[:2]
    warp, grid, threads = row_launch(x)
    w, b = (*rows, None, None)[:2]
    quads = is_quads(x, dst, *(t for t in (*rows, r, total) if t is not None))
    kernel = norm_kernel(norm.op.name, warp, quads, r is not None, w is not None, b is not None)
    call = kernel(
        x=x, y=dst, r=r, z=total, w=w, b=b, n=x.ne[0], rows=x.nrows, ne1=x.ne[1], ne2=x.ne[2],
        eps=norm.op_params["eps"],
    )  # fmt: skip
    lowering.launch(call, grid, threads=threads)


@lowers("RMS_NORM", all_f32)
@lowers("NORM", all_f32)
@lowers("L2_NORM", all_f32)
def _lower_norm(lowering: GpuLowering, node: Tensor) -> None:
    _launch(lowering, node, node)


@fuses("RMS_NORM", "MUL")
@fuses("NORM", "MUL")
@fuses("NORM", "MUL", "ADD")  # registered before the shorter pattern
def _lower_fused_norm(
    lowering: GpuLowering, norm: Tensor, *more: Tensor, total: Tensor | None = None
) -> bool:
    """A norm and the nodes after it: weight and bias are applied as a row is written."""
    rows = norm_rows(norm, *more, total=total)
    if rows is None:
        return False
    _launch(lowering, norm, more[-1], *rows, total=total)
    return True


@fuses("ADD", "RMS_NORM", "MUL", stored=1)
@fuses("ADD", "NORM", "MUL", stored=1)
@fuses("ADD", "NORM", "MUL", "ADD", stored=1)
def _lower_add_norm(lowering: GpuLowering, total: Tensor, norm: Tensor, *more: Tensor) -> bool:
    """A residual sum, which is stored, and the norm of it."""
    x, r = total.src[:2]
    if norm.src[0] is not total or x.ne != r.ne or not all_f32(total) or overlap(total, more[-1]):
        return False
    if not may_write_over(total, x) or not may_write_over(total, r):
        return False
    return _lower_fused_norm(lowering, norm, *more, total=total)


def _supports_group_norm(node: Tensor) -> bool:
    """Elements of a group are counted in 32 bits."""
    of_group = ceil_div(node.ne[2], int(node.op_params["n_groups"]))
    return all_f32(node) and of_group * node.ne[1] * node.ne[0] < 1 << 31


@lowers("GROUP_NORM", _supports_group_norm)
def _lower_group_norm(lowering: GpuLowering, node: Tensor) -> None:
    x, groups = node.src[0], int(node.op_params["n_groups"])
    call = group_norm(
        x=x, y=node, n=x.ne[0], height=x.ne[1], channels=x.ne[2],
        of_group=ceil_div(x.ne[2], groups), groups=groups, eps=node.op_params["eps"],
    )  # fmt: skip
    lowering.launch(call, Grid(groups * x.ne[3]), threads=512)
