"""ARGMAX, SUM, SUM_ROWS, MEAN, CUMSUM and COUNT_EQUAL.

A row is reduced by one block of a size that depends on its length alone, SUM and COUNT_EQUAL by one
block over all elements: they are rare. Sums are float32, each thread's part with its rounding
errors carried along (Knuth's two-sum), then added as a tree. Access: adjacent threads, adjacent
elements.
"""

from functools import cache

import numpy as np
from numba import cuda, float32, int32, int64

from .....dtype import GGMLType
from .....tensor import Tensor
from ...codec import FLOAT_TYPES, element_loader, element_storer
from ...driver import Grid
from ...intrin import device, divide, float_to_bits, load_f32, load_i32, store_f32
from ...kernel import I32, I64, U8, GpuKernel, f32, i32, i64, kernel
from ...lowering import GpuLowering, lowers
from ..span import in_range, row_at
from ..warp import FULL, block_best, block_count, block_sum

ZERO = np.float32(0)
WARPS = 32  # of a block, at most


@device
def two_sum(a, b):
    """(a + b rounded, what rounding lost)."""
    s = a + b
    v = s - a
    return s, (a - (s - v)) + (b - v)


@device
def ordered(x, j):
    """An int64 that is larger for larger x, NaN before all, and of equal ones for smaller j."""
    bits = int32(float_to_bits(x + ZERO))  # -0 + 0 is 0
    key = int32(bits ^ ((bits >> 31) & 0x7FFFFFFF))
    if x != x:
        key = int32(0x7FFFFFFF)
    return (int64(key) << 32) | int64(0x7FFFFFFF - j)


@kernel(threads=1024, max_registers=64)
def argmax(x: U8, y: I32, n: i32, x1: i64):
    """A block for each row."""
    t, row = int32(cuda.threadIdx.x), cuda.blockIdx.x * x1
    best = int64(-(1 << 63))
    j = int32(t)
    while j < n:
        v = ordered(load_f32(x, row + j * 4), j)
        best = v if v > best else best
        j += int32(cuda.blockDim.x)
    best = block_best(best)
    if t == 0:
        y[cuda.blockIdx.x] = int32(0x7FFFFFFF - (best & 0x7FFFFFFF))


@cache
def sum_kernel(type: GGMLType) -> GpuKernel:
    """The kernel that sums ``rows`` rows a block and multiplies the sum by a factor."""
    load, store = element_loader(type), element_storer(type)

    @kernel(f"sum_{type.name.lower()}", threads=1024, max_registers=64)
    def sum_rows(
        x: U8, y: U8, n: i32, rows: i32, ne1: i32, ne2: i32, x1: i64, x2: i64, x3: i64,
        factor: f32,
    ):  # fmt: skip
        s, lost = ZERO, ZERO
        e = int32(cuda.threadIdx.x)
        first = int32(int32(cuda.blockIdx.x) * rows)
        while e < n * rows:
            r = divide(e, n)
            row = row_at(int32(first + r), ne1, ne2, x1, x2, x3)
            s, error = two_sum(s, load(x, row, int32(e - r * n)))
            lost += error
            e += int32(cuda.blockDim.x)
        s = block_sum(s) + block_sum(lost)
        if cuda.threadIdx.x == 0:
            store(y, int64(0), cuda.blockIdx.x, s * factor)

    return sum_rows


@kernel(threads=1024, max_registers=64)
def cumsum(
    x: U8, y: U8, n: i32, ne1: i32, ne2: i32, x1: i64, x2: i64, x3: i64, y1: i64, y2: i64, y3: i64
):
    """A block for each row: a scan of as many elements as threads at a time."""
    parts = cuda.shared.array(WARPS, float32)
    t, row = int32(cuda.threadIdx.x), int32(cuda.blockIdx.x)
    lane, warp = t & 31, t >> 5
    x_row, y_row = row_at(row, ne1, ne2, x1, x2, x3), row_at(row, ne1, ne2, y1, y2, y3)
    before, lost = ZERO, ZERO
    first = int32(0)
    while first < n:
        j = int32(first + t)
        s = load_f32(x, x_row + j * 4) if j < n else ZERO
        d = 1
        while d < 32:
            other = cuda.shfl_up_sync(FULL, s, d)
            s = s + other if lane >= d else s
            d <<= 1
        if lane == 31:
            parts[warp] = s
        cuda.syncthreads()
        total, lower = ZERO, ZERO
        for k in range(cuda.blockDim.x >> 5):
            if k == warp:
                lower = total
            total += parts[k]
        if j < n:
            store_f32(y, y_row + j * 4, before + (lower + s + lost))
        before, error = two_sum(before, total)
        lost += error
        cuda.syncthreads()
        first += int32(cuda.blockDim.x)


@kernel(threads=1024, max_registers=64)
def count_equal(
    a: U8, b: U8, y: I64, n: i32, size: i32, ne1: i32, ne2: i32, a1: i64, a2: i64, a3: i64,
    b1: i64, b2: i64, b3: i64,
):  # fmt: skip
    """One block over all elements."""
    count = int64(0)
    e = int32(cuda.threadIdx.x)
    while e < size:
        r = divide(e, n)
        j = int32(e - r * n) * 4
        same = load_i32(a, row_at(r, ne1, ne2, a1, a2, a3) + j) == load_i32(
            b, row_at(r, ne1, ne2, b1, b2, b3) + j
        )
        count += int64(1) if same else int64(0)
        e += int32(cuda.blockDim.x)
    count = block_count(count)
    if cuda.threadIdx.x == 0:
        y[0] = count


def _threads(n: int) -> int:
    return min(1024, max(32, -(-n // 128) * 32))  # at least four elements a thread


def _supports(node: Tensor) -> bool:
    x = node.src[0]
    return x.is_contiguous_rows() and in_range(x) and x.type in FLOAT_TYPES


@lowers("ARGMAX", _supports)
def _lower_argmax(lowering: GpuLowering, node: Tensor) -> None:
    x = node.src[0]
    lowering.launch(argmax(x=x, y=node, n=x.ne[0]), Grid(x.ne[1]), threads=_threads(x.ne[0]))


@lowers("SUM", _supports)
@lowers("SUM_ROWS", _supports)
@lowers("MEAN", _supports)
def _lower_sum(lowering: GpuLowering, node: Tensor) -> None:
    x = node.src[0]
    rows, n_blocks = (x.nrows, 1) if node.op.name == "SUM" else (1, x.nrows)
    call = sum_kernel(x.type)(
        x=x, y=node, n=x.ne[0], rows=rows, ne1=x.ne[1], ne2=x.ne[2],
        factor=1 / x.ne[0] if node.op.name == "MEAN" else 1.0,
    )  # fmt: skip
    lowering.launch(call, Grid(n_blocks), threads=_threads(x.ne[0] * rows))


@lowers("CUMSUM", _supports)
def _lower_cumsum(lowering: GpuLowering, node: Tensor) -> None:
    x = node.src[0]
    call = cumsum(x=x, y=node, n=x.ne[0], ne1=x.ne[1], ne2=x.ne[2])
    lowering.launch(call, Grid(x.nrows), threads=_threads(x.ne[0]))


def _supports_count_equal(node: Tensor) -> bool:
    a, b = node.src[:2]
    return a.is_contiguous_rows() and b.is_contiguous_rows() and in_range(a)


@lowers("COUNT_EQUAL", _supports_count_equal)
def _lower_count_equal(lowering: GpuLowering, node: Tensor) -> None:
    a, b = node.src[:2]
    call = count_equal(a=a, b=b, y=node, n=a.ne[0], size=a.nelements, ne1=a.ne[1], ne2=a.ne[2])
    lowering.launch(call, Grid(1), threads=_threads(a.nelements))
