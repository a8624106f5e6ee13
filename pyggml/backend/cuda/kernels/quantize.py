"""Activations in int8, for dot products of quantized weights.

    x[j] = d * q[j],   d = max |x| / 127           # of each 32 columns

    q      int8, 32 bytes a group
    d      float32, one a group
    sums   of the group's first and last 16 q, as two int16 of a word

Access: one warp a group, one lane an element.
"""

import math

from numba import cuda, float32, int32, int64, uint8

from ....tensor import Tensor
from ..intrin import store_f32, store_u8, store_u32, u32
from ..kernel import F32, U8, i32, i64, kernel
from ..lowering import Lowering, Work, blocks
from .warp import FULL, warp_max


@kernel()
def quantize_q8(x: F32, y: U8, n: i32, n_groups: i64, ne1: i32, ne2: i32, nb1: i64, nb2: i64,
                nb3: i64, d: i64, sums: i64):  # fmt: skip
    """Rows of ``n`` columns at ``x``, with strides in bytes, as ``n_groups`` groups at ``y``."""
    lane = cuda.threadIdx.x & 31
    g = int64(cuda.blockIdx.x) * (cuda.blockDim.x >> 5) + (cuda.threadIdx.x >> 5)
    if g >= n_groups:
        return
    per_row = n >> 5
    row = g // per_row
    rest = row // ne1
    base = (row - rest * ne1) * nb1 + (rest % ne2) * nb2 + (rest // ne2) * nb3
    v = x[(base >> 2) + (g - row * per_row) * 32 + lane]
    top = warp_max(abs(v))
    scale = top / float32(127)
    inverse = float32(127) / top if top > float32(0) else float32(0)
    q = int32(math.floor(abs(v) * inverse + float32(0.5)))
    q = -q if v < float32(0) else q
    store_u8(y, g * 32 + lane, uint8(q & 255))
    part = q
    step = 8
    while step > 0:
        part += cuda.shfl_xor_sync(FULL, part, step)
        step >>= 1
    other = cuda.shfl_xor_sync(FULL, part, 16)
    if lane == 0:
        store_f32(y, d + 4 * g, scale)
        store_u32(y, sums + 4 * g, u32((part & 0xFFFF) | (other << 16)))


class Quantized:
    """Where the int8 form of a matrix of rows is, and how large it is."""

    def __init__(self, n: int, rows: int) -> None:
        groups = rows * (n // 32)
        self.d, self.sums, self.n_bytes = 32 * groups, 36 * groups, 40 * groups


def quantized(low: Lowering, x: Tensor) -> tuple[Work, Quantized]:
    """The int8 form of ``x``, made once for the matmuls that follow each other.

    Shape:
        x: F32 [n, ...] with rows without gaps; n a multiple of 32.
    """
    n, rows = x.ne[0], x.nrows
    at = Quantized(n, rows)

    def make(work: Work) -> None:
        groups = rows * (n // 32)
        call = quantize_q8(
            x=x, y=work, n=n, n_groups=groups, ne1=x.ne[1], ne2=x.ne[2],
            nb1=x.nb[1], nb2=x.nb[2], nb3=x.nb[3], d=at.d, sums=at.sums,
        )  # fmt: skip
        low.launch(call, blocks(groups, 8))

    return low.shared("q8", x, at.n_bytes, make), at
