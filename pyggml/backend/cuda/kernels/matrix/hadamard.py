"""HADAMARD: a warp for each ``n`` elements, or for 32 elements of smaller groups.

Element j of a warp's part is in lane j % 32: strides below 32 are shuffles, the others take two
elements of a lane. Access: adjacent threads, adjacent elements, read and written once.
"""

import math
from functools import cache

import numpy as np
from numba import cuda, float32, int32

from .....rounding import ceil_div
from .....tensor import Tensor
from ....common.lowering import all_f32
from ...intrin import divide, load_f32, store_f32
from ...kernel import U8, GpuKernel, i32, i64, kernel
from ...lowering import GpuLowering, blocks, lowers
from ..span import in_range, row_at
from ..warp import FULL

MAX_SIZE = 1024  # of a group: 32 registers a thread
WARPS = 8  # of a block


@cache
def hadamard_kernel(n: int) -> GpuKernel:
    """The kernel for groups of ``n`` elements."""
    width, lanes = max(1, n // 32), min(n, 32)  # elements of a lane, lanes of a group
    factor = np.float32(1 / math.sqrt(n))

    @kernel(f"hadamard_{n}", threads=32 * WARPS, unroll=True)
    def hadamard(
        x: U8, y: U8, n_columns: i32, n_parts: i32, per_row: i32, ne1: i32, ne2: i32,
        x1: i64, x2: i64, x3: i64, y1: i64, y2: i64, y3: i64,
    ):  # fmt: skip
        t = int32(cuda.threadIdx.x)
        part, lane = int32(int32(cuda.blockIdx.x) * WARPS + (t >> 5)), int32(t & 31)
        if part >= n_parts:
            return
        row = divide(part, per_row)
        first = int32((part - row * per_row) * (32 * width) + lane)
        x_at = row_at(row, ne1, ne2, x1, x2, x3)
        y_at = row_at(row, ne1, ne2, y1, y2, y3)
        values = cuda.local.array(width, float32)
        for e in range(width):
            j = int32(first + 32 * e)
            values[e] = load_f32(x, x_at + j * 4) if j < n_columns else float32(0)
        for e in range(width):
            d = 1
            while d < lanes:
                other = cuda.shfl_xor_sync(FULL, values[e], d)
                values[e] = other - values[e] if (lane & d) != 0 else values[e] + other
                d <<= 1
        h = 1
        while h < width:
            for e in range(width):
                if (e & h) == 0:
                    a, b = values[e], values[e + h]
                    values[e], values[e + h] = a + b, a - b
            h <<= 1
        for e in range(width):
            j = int32(first + 32 * e)
            if j < n_columns:
                store_f32(y, y_at + j * 4, values[e] * factor)

    return hadamard


def _supports(node: Tensor) -> bool:
    return all_f32(node) and in_range(node) and int(node.op_params["n"]) <= MAX_SIZE


@lowers("HADAMARD", _supports)
def _lower_hadamard(lowering: GpuLowering, node: Tensor) -> None:
    n, x = int(node.op_params["n"]), node.src[0]
    per_row = ceil_div(x.ne[0], max(n, 32))
    n_parts = per_row * x.nrows
    call = hadamard_kernel(n)(
        x=x, y=node, n_columns=x.ne[0], n_parts=n_parts, per_row=per_row, ne1=x.ne[1], ne2=x.ne[2]
    )
    lowering.launch(call, blocks(n_parts, WARPS))
