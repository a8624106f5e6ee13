"""Activations as matmuls read them: in int8, or in halves.

    work, at = quantized(lowering, x)                   # for quantized weights
    work, at = halved(lowering, x, GGMLType.F16)        # for float weights and tensor cores

    x[j] = d * q[j],   d = max |x| / 127           # int8: of each 32 columns, a group

    low    int8, the first 16 q of each group
    high   int8, the other 16
    d      float32, one a group
    sums   of the group's first and last 16 q, as two int16 of a word

so that 32 lanes with a group each read 512 bytes in a row.

    x[j] = 2^e h[j],   2^14 <= max |h| < 2^15      # float16: of each row, so that none overflows

Halves are rows padded with zeros to a multiple of 8, then a float32 2^e for each row; bfloat16 has
no exponents since its range is float32's.
Access: int8: a lane reads 4 elements, 8 lanes a group. Halves: a block reads a row twice.
"""

import math
from functools import cache

from numba import cuda, float32, int32, int64

from .....dtype import GGMLType
from .....rounding import ceil_div
from .....tensor import Tensor
from ...codec import element_loader, element_storer
from ...driver import Grid
from ...intrin import (
    bits_to_float,
    device,
    divide,
    float_to_bits,
    load_f32x4,
    store_f32,
    store_u32,
    u32,
)
from ...kernel import U8, GpuKernel, i32, i64, kernel
from ...lowering import GpuLowering, Work, blocks
from ..span import row_at
from ..warp import FULL, block_top


@device
def round_to_int(v):
    """The nearest integer, halves away from zero."""
    q = int32(math.floor(abs(v) + float32(0.5)))
    return int32(-q if v < float32(0) else q)


def is_aligned(x: Tensor) -> bool:
    """Whether all rows begin at a multiple of 16 bytes."""
    return x.data % 16 == 0 and all(
        stride % 16 == 0 for stride, n in zip(x.nb[1:], x.ne[1:], strict=True) if n > 1
    )


@cache
def quantize_q8(type: GGMLType, vector: bool) -> GpuKernel:
    """The kernel for activations of a type; ``vector``: F32, 16 bytes at once."""
    load = element_loader(type)

    @kernel(f"quantize_q8_{type.name.lower()}{'_x4' * vector}", threads=256)
    def quantize(
        x: U8, y: U8, n_groups: i64, per_row: i32, ne1: i32, ne2: i32, x1: i64, x2: i64,
        x3: i64, high: i64, d: i64, sums: i64,
    ):  # fmt: skip
        t = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        k = int32(t & 7)
        g = min(t >> 3, n_groups - 1)  # all lanes take part in the shuffles
        row = divide(g, per_row)
        base, j = row_at(row, ne1, ne2, x1, x2, x3), int32(g - row * per_row) * 32 + 4 * k
        if vector:
            v0, v1, v2, v3 = load_f32x4(x, base + int64(4) * j)
        else:
            v0, v1 = load(x, base, j), load(x, base, j + 1)
            v2, v3 = load(x, base, j + 2), load(x, base, j + 3)
        # The bits of magnitudes are ordered as the magnitudes are, NaN above all.
        b0, b1 = u32(float_to_bits(v0) & 0x7FFFFFFF), u32(float_to_bits(v1) & 0x7FFFFFFF)
        b2, b3 = u32(float_to_bits(v2) & 0x7FFFFFFF), u32(float_to_bits(v3) & 0x7FFFFFFF)
        top = max(max(b0, b1), max(b2, b3))
        step = 4
        while step > 0:
            top = max(top, u32(cuda.shfl_xor_sync(FULL, int32(top), step)))
            step >>= 1
        largest = bits_to_float(u32(top))
        scale = largest / float32(127)
        inverse = float32(127) / largest if largest > float32(0) else float32(0)
        q0, q1 = round_to_int(v0 * inverse), round_to_int(v1 * inverse)
        q2, q3 = round_to_int(v2 * inverse), round_to_int(v3 * inverse)
        part = int32(q0 + q1 + q2 + q3)
        part += cuda.shfl_xor_sync(FULL, part, 1)
        part += cuda.shfl_xor_sync(FULL, part, 2)
        other = cuda.shfl_xor_sync(FULL, part, 4)
        if t >> 3 < n_groups:
            word = (q0 & 255) | ((q1 & 255) << 8) | ((q2 & 255) << 16) | (q3 << 24)
            at = g * 16 + 4 * (k & 3)
            store_u32(y, at + high if k >= 4 else at, u32(word))
            if k == 0:
                store_f32(y, d + 4 * g, scale)
                store_u32(y, sums + 4 * g, u32((part & 0xFFFF) | (other << 16)))

    return quantize


class Quantized:
    """Where the planes of the int8 form of a matrix of rows are, and how large it is."""

    def __init__(self, n: int, rows: int) -> None:
        groups = rows * (n // 32)
        self.high, self.d, self.sums, self.n_bytes = (k * groups for k in (16, 32, 36, 40))


def quantized(lowering: GpuLowering, x: Tensor) -> tuple[Work, Quantized]:
    """The int8 form of ``x``, made once for the matmuls that follow each other.

    Shape:
        x: F32, F16 or BF16 [n, ...] with rows without gaps; n a multiple of 32.
    """
    n, rows = x.ne[0], x.nrows
    at = Quantized(n, rows)

    def make(work: Work) -> None:
        groups = rows * (n // 32)
        vector = x.type is GGMLType.F32 and is_aligned(x)
        call = quantize_q8(x.type, vector)(
            x=x, y=work, n_groups=groups, per_row=n // 32, ne1=x.ne[1], ne2=x.ne[2],
            high=at.high, d=at.d, sums=at.sums,
        )  # fmt: skip
        lowering.launch(call, blocks(groups, 32))

    return lowering.shared("q8", x, at.n_bytes, make), at


@cache
def halve(type: GGMLType, x_type: GGMLType) -> GpuKernel:
    """The kernel that makes rows of F16 or BF16."""
    load, store, scaled = element_loader(x_type), element_storer(type), type is GGMLType.F16

    @kernel(f"halve_{type.name.lower()}_{x_type.name.lower()}", threads=256)
    def halve(x: U8, y: U8, n: i32, padded: i32, ne1: i32, ne2: i32, x1: i64, x2: i64,
              x3: i64, scales: i64):  # fmt: skip
        row = int32(cuda.blockIdx.x)
        base = row_at(row, ne1, ne2, x1, x2, x3)
        factor = float32(1)
        j = int32(cuda.threadIdx.x)
        if scaled:
            top = int32(0)
            while j < n:
                bits = int32(float_to_bits(load(x, base, j)) & 0x7FFFFFFF)
                top = bits if bits > top else top
                j += int32(cuda.blockDim.x)
            top = block_top(top)
            e = int32(top >> 23) - 127
            e = 14 if e == 128 or top == 0 else max(e, -112)  # infinite, or all are 0
            factor = bits_to_float(u32((14 - e + 127) << 23))
            if cuda.threadIdx.x == 0:
                store_f32(y, scales + int64(4) * row, bits_to_float(u32((e - 14 + 127) << 23)))
        j = int32(cuda.threadIdx.x)
        while j < padded:
            v = load(x, base, j) * factor if j < n else float32(0)
            store(y, int64(row) * padded * 2, j, v)
            j += int32(cuda.blockDim.x)

    return halve


class Halved:
    """Elements of a row with padding, where the rows' factors are, and how large all is."""

    def __init__(self, n: int, rows: int) -> None:
        self.padded = 8 * ceil_div(n, 8)
        self.scales = ceil_div(2 * self.padded * rows, 16) * 16
        self.n_bytes = self.scales + 4 * rows


def halved(lowering: GpuLowering, x: Tensor, type: GGMLType) -> tuple[Work, Halved]:
    """``x`` in F16 or BF16, made once for the matmuls that follow each other.

    Shape:
        x: F32, F16 or BF16 [n, ...] with rows without gaps.
    """
    at = Halved(x.ne[0], x.nrows)

    def make(work: Work) -> None:
        call = halve(type, x.type)(
            x=x, y=work, n=x.ne[0], padded=at.padded, ne1=x.ne[1], ne2=x.ne[2],
            scales=at.scales,
        )  # fmt: skip
        lowering.launch(call, Grid(x.nrows))

    return lowering.shared(type.name, x, at.n_bytes, make), at
