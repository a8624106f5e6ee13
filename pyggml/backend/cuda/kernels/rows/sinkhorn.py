"""SINKHORN: a thread has a matrix of up to ``MOST`` elements in its local memory.

Access: adjacent threads, adjacent matrices; each is read and written once.
"""

import math
from functools import cache

from numba import cuda, float32, int32

from .....rounding import ceil_div
from .....tensor import Tensor
from ...driver import Grid
from ...intrin import divide, load_f32, store_f32
from ...kernel import U8, GpuKernel, f32, i32, i64, kernel
from ...lowering import GpuLowering, lowers

MOST = 64  # elements of a matrix
THREADS = 64
_ZERO = float32(0)


@cache
def sinkhorn_kernel(n: int, m: int) -> GpuKernel:
    """The kernel of matrices of ``m`` rows of ``n`` elements."""
    size = n * m

    @kernel(f"sinkhorn_{n}x{m}", threads=THREADS)
    def sinkhorn(
        x: U8, y: U8, matrices: i32, ne2: i32, x1: i64, x2: i64, x3: i64, y1: i64, y2: i64, y3: i64,
        iterations: i32, eps: f32,
    ):  # fmt: skip
        u = int32(cuda.grid(1))
        if u >= matrices:
            return
        i3 = divide(u, ne2)
        i2 = int32(u - i3 * ne2)
        v = cuda.local.array(size, float32)
        for j in range(m):
            at = i2 * x2 + i3 * x3 + j * x1
            top, total = load_f32(x, at), _ZERO
            for i in range(n):
                v[j * n + i] = load_f32(x, at + 4 * i)
                top = v[j * n + i] if v[j * n + i] > top else top
            for i in range(n):
                v[j * n + i] = math.exp(v[j * n + i] - top)
                total += v[j * n + i]
            for i in range(n):
                v[j * n + i] = v[j * n + i] / total + eps
        for k in range(iterations):
            if k > 0:
                for j in range(m):
                    total = _ZERO
                    for i in range(n):
                        total += v[j * n + i]
                    for i in range(n):
                        v[j * n + i] /= total + eps
            for i in range(n):
                total = _ZERO
                for j in range(m):
                    total += v[j * n + i]
                for j in range(m):
                    v[j * n + i] /= total + eps
        for j in range(m):
            for i in range(n):
                store_f32(y, i2 * y2 + i3 * y3 + j * y1 + 4 * i, v[j * n + i])

    return sinkhorn


def _supports(node: Tensor) -> bool:
    return node.src[0].is_contiguous_rows() and node.ne[0] * node.ne[1] <= MOST


@lowers("SINKHORN", _supports)
def _lower_sinkhorn(lowering: GpuLowering, node: Tensor) -> None:
    n, m, ne2, ne3 = node.ne
    p = node.op_params
    call = sinkhorn_kernel(n, m)(
        x=node.src[0], y=node, matrices=ne2 * ne3, ne2=ne2, iterations=p["iterations"], eps=p["eps"]
    )
    lowering.launch(call, Grid(ceil_div(ne2 * ne3, THREADS)))
