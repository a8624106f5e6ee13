"""MUL_MAT: dot products of weights' rows with tokens' rows.

Quantized weights are read as planes (``planes``), 16 bytes a lane, and multiplied with int8
activations by ``dp4a``; float weights with float activations. A launch takes up to ``MOST`` tokens,
so that a weight is read once for all of them. Weights in ggml's own layout are converted into
planes first, in work memory: a loader gives planes, tests and odd graphs do not.

Access: one warp a row, a lane every 32nd group of 32 columns.
"""

from functools import cache

from numba import cuda, float32, int32, int64, uint16, uint32

from ....dtype import GGMLType
from ....tensor import Tensor
from ..codec import FLOAT_TYPES, element_loader
from ..driver import Grid
from ..intrin import (
    device,
    dot4_ss,
    dot4_us,
    half_to_float,
    load_f32,
    load_i32,
    load_u8,
    load_u16,
    load_u32,
    load_u32x2,
    load_u32x4,
    store_f32,
    u32,
)
from ..kernel import U8, Kernel, i32, i64, kernel
from ..lowering import Lowering, lowers
from ..planes import is_planes, planes_of
from .quantize import quantized
from .repack import conversion
from .warp import warp_sum

MOST = 8  # tokens of a launch of the kernels here
LOW = 0x0F0F0F0F
ONES = 0x01010101
THREES = 0x03030303


@cache
def codes_of(type: GGMLType):
    """A device function: the eight words of a group's codes, ready for dp4a."""
    planes = planes_of(type)
    assert planes is not None
    wide, high_bytes = planes.code_bytes == 32, planes.high_bytes

    @device
    def load_codes(w, g, high):
        if wide:
            a0, a1, a2, a3 = load_u32x4(w, g * 32)
            b0, b1, b2, b3 = load_u32x4(w, g * 32 + 16)
            return a0, a1, a2, a3, b0, b1, b2, b3
        w0, w1, w2, w3 = load_u32x4(w, g * 16)
        a0, b0 = u32(w0 & LOW), u32((w0 >> uint32(4)) & LOW)
        a1, b1 = u32(w1 & LOW), u32((w1 >> uint32(4)) & LOW)
        a2, b2 = u32(w2 & LOW), u32((w2 >> uint32(4)) & LOW)
        a3, b3 = u32(w3 & LOW), u32((w3 >> uint32(4)) & LOW)
        if high_bytes == 4:
            h = load_u32(w, high + g * 4)
            a0 = u32(a0 | ((h & ONES) << uint32(4)))
            a1 = u32(a1 | (((h >> uint32(1)) & ONES) << uint32(4)))
            a2 = u32(a2 | (((h >> uint32(2)) & ONES) << uint32(4)))
            a3 = u32(a3 | (((h >> uint32(3)) & ONES) << uint32(4)))
            b0 = u32(b0 | (((h >> uint32(4)) & ONES) << uint32(4)))
            b1 = u32(b1 | (((h >> uint32(5)) & ONES) << uint32(4)))
            b2 = u32(b2 | (((h >> uint32(6)) & ONES) << uint32(4)))
            b3 = u32(b3 | (((h >> uint32(7)) & ONES) << uint32(4)))
        elif high_bytes == 8:
            h, k = load_u32x2(w, high + g * 8)
            a0 = u32(a0 | ((h & THREES) << uint32(4)))
            a1 = u32(a1 | (((h >> uint32(2)) & THREES) << uint32(4)))
            a2 = u32(a2 | (((h >> uint32(4)) & THREES) << uint32(4)))
            a3 = u32(a3 | (((h >> uint32(6)) & THREES) << uint32(4)))
            b0 = u32(b0 | ((k & THREES) << uint32(4)))
            b1 = u32(b1 | (((k >> uint32(2)) & THREES) << uint32(4)))
            b2 = u32(b2 | (((k >> uint32(4)) & THREES) << uint32(4)))
            b3 = u32(b3 | (((k >> uint32(6)) & THREES) << uint32(4)))
        return a0, a1, a2, a3, b0, b1, b2, b3

    return load_codes


@cache
def scales_of(type: GGMLType):
    """A device function: the scales of a group's two halves, and what multiplies their sums of x.

    x . w = scale_0 * dot_0 + scale_1 * dot_1 + offset_0 * sum_0 + offset_1 * sum_1
    """
    planes = planes_of(type)
    assert planes is not None
    f = planes.format
    in_block, scale_bytes, n_steps = planes.columns // 32, planes.scale_bytes, planes.n_steps
    step_bytes, zero, step_zero = planes.step_bytes, f.zero, f.step_zero
    signed_steps, has_minima = f.signed_steps, bool(f.minima)

    @device
    def step_of(w, at):
        s = int32(load_u8(w, at))
        if signed_steps:
            s = (s ^ 128) - 128
        return float32(int32(s - step_zero))

    @device
    def load_scales(w, g, steps, scales):
        at = scales + (g // in_block) * scale_bytes
        low = float32(0)
        if scale_bytes == 4:
            both = load_u32(w, at)
            d = half_to_float(uint16(both & uint32(0xFFFF)))
            low = half_to_float(uint16(both >> uint32(16)))
        else:
            d = half_to_float(load_u16(w, at))
        s0, s1 = d, d
        m0, m1 = low, low
        if n_steps >= 1:
            s0 = d * step_of(w, steps + g * step_bytes)
            s1 = s0
        if n_steps == 2:
            s1 = d * step_of(w, steps + g * step_bytes + 1)
        if has_minima:
            m0 = -low * float32(int32(load_u8(w, steps + g * step_bytes + n_steps)))
            m1 = m0
            if n_steps == 2:
                m1 = -low * float32(int32(load_u8(w, steps + g * step_bytes + 3)))
        if zero != 0:
            m0 -= s0 * float32(zero)
            m1 -= s1 * float32(zero)
        return s0, s1, m0, m1

    return load_scales


@cache
def mat_vec_planes(type: GGMLType, n_tokens: int) -> Kernel:
    """The kernel of a format for so many tokens."""
    planes = planes_of(type)
    assert planes is not None
    load_codes, load_scales = codes_of(type), scales_of(type)
    dot4 = dot4_ss if planes.format.signed else dot4_us
    needs_sums = bool(planes.format.low) or planes.format.zero != 0

    @kernel(f"mul_mat_vec_{type.name.lower()}_{n_tokens}", threads=128)
    def mul_mat_vec(
        w: U8, x: U8, y: U8, n_groups: i32, n_rows: i32, high: i64, steps: i64, scales: i64,
        d: i64, sums: i64, first_token: i64, ne12: i32, rows_of: i32, r2: i32, r3: i32,
        ne02: i32, tokens: i32, y1: i64, y2: i64, y3: i64,
    ):  # fmt: skip
        lane = cuda.threadIdx.x & 31
        row = int32(cuda.blockIdx.x * (cuda.blockDim.x >> 5) + (cuda.threadIdx.x >> 5))
        if row >= n_rows:
            return
        i3 = int32(cuda.blockIdx.y) // ne12
        i2 = int32(cuda.blockIdx.y) - i3 * ne12
        w_row = int64((i3 // r3) * ne02 + i2 // r2) * rows_of + row
        token = (int64(i3) * ne12 + i2) * tokens + first_token
        acc = cuda.local.array(n_tokens, float32)
        for t in range(n_tokens):
            acc[t] = float32(0)
        g = int32(lane)
        while g < n_groups:
            gw = w_row * n_groups + g
            a0, a1, a2, a3, b0, b1, b2, b3 = load_codes(w, gw, high)
            s0, s1, m0, m1 = load_scales(w, gw, steps, scales)
            for t in range(n_tokens):
                gx = (token + t) * n_groups + g
                x0, x1, x2, x3 = load_u32x4(x, gx * 32)
                low = dot4(a3, x3, dot4(a2, x2, dot4(a1, x1, dot4(a0, x0, int32(0)))))
                x0, x1, x2, x3 = load_u32x4(x, gx * 32 + 16)
                up = dot4(b3, x3, dot4(b2, x2, dot4(b1, x1, dot4(b0, x0, int32(0)))))
                v = s0 * float32(low) + s1 * float32(up)
                if needs_sums:
                    both = load_i32(x, sums + gx * 4)
                    v += m0 * float32(int32(int32(both << 16) >> 16)) + m1 * float32(
                        int32(both >> 16)
                    )
                acc[t] += load_f32(x, d + gx * 4) * v
            g += 32
        for t in range(n_tokens):
            v = warp_sum(acc[t])
            if lane == 0:
                store_f32(y, i3 * y3 + i2 * y2 + (first_token + t) * y1 + int64(row) * 4, v)

    return mul_mat_vec


@cache
def mat_vec_float(type: GGMLType, x_type: GGMLType, n_tokens: int) -> Kernel:
    """The kernel of weights and activations of float types, of any strides between rows."""
    load, load_x = element_loader(type), element_loader(x_type)

    @kernel(f"mul_mat_vec_{type.name.lower()}_{x_type.name.lower()}_{n_tokens}", threads=128)
    def mul_mat_vec(
        w: U8, x: U8, y: U8, n: i32, n_rows: i32, w1: i64, w2: i64, w3: i64, x1: i64, x2: i64,
        x3: i64, first_token: i64, ne12: i32, r2: i32, r3: i32, y1: i64, y2: i64, y3: i64,
    ):  # fmt: skip
        lane = cuda.threadIdx.x & 31
        row = int32(cuda.blockIdx.x * (cuda.blockDim.x >> 5) + (cuda.threadIdx.x >> 5))
        if row >= n_rows:
            return
        i3 = int32(cuda.blockIdx.y) // ne12
        i2 = int32(cuda.blockIdx.y) - i3 * ne12
        w_row = int64(i3 // r3) * w3 + int64(i2 // r2) * w2 + int64(row) * w1
        x_row = i3 * x3 + i2 * x2 + first_token * x1
        acc = cuda.local.array(n_tokens, float32)
        for t in range(n_tokens):
            acc[t] = float32(0)
        j = int32(lane)
        while j < n:
            v = load(w, w_row, j)
            for t in range(n_tokens):
                acc[t] += v * load_x(x, x_row + t * x1, j)
            j += 32
        for t in range(n_tokens):
            v = warp_sum(acc[t])
            if lane == 0:
                store_f32(y, i3 * y3 + i2 * y2 + (first_token + t) * y1 + int64(row) * 4, v)

    return mul_mat_vec


def _supports(node: Tensor) -> bool:
    a, b = node.src[:2]
    if a.type in FLOAT_TYPES:
        return b.type in FLOAT_TYPES and a.is_contiguous_rows() and b.is_contiguous_rows()
    if planes_of(a.type) is None or b.type is not GGMLType.F32 or not b.is_contiguous_rows():
        return False
    return is_planes(a) or a.is_contiguous()


@lowers("MUL_MAT", _supports)
def _lower_mul_mat(low: Lowering, node: Tensor) -> None:
    a, b = node.src[:2]
    n_tokens, done = b.ne[1], 0
    rows = Grid(-(-a.ne[1] // 4), b.ne[2] * b.ne[3])
    while done < n_tokens:
        n = next(n for n in (8, 4, 2, 1) if n <= n_tokens - done)
        common = dict(
            y=node, n_rows=a.ne[1], first_token=done, ne12=b.ne[2], r2=b.ne[2] // a.ne[2],
            r3=b.ne[3] // a.ne[3], y1=node.nb[1], y2=node.nb[2], y3=node.nb[3],
        )  # fmt: skip
        if a.type in FLOAT_TYPES:
            call = mat_vec_float(a.type, b.type, n)(
                w=a, x=b, n=a.ne[0], w1=a.nb[1], w2=a.nb[2], w3=a.nb[3],
                x1=b.nb[1], x2=b.nb[2], x3=b.nb[3], **common,
            )  # fmt: skip
        else:
            planes = planes_of(a.type)
            at = planes.offsets(a.ne[0], a.nrows)
            if done == 0:
                w = _planes(low, a)
                x, q8 = quantized(low, b)
            call = mat_vec_planes(a.type, n)(
                w=w, x=x, n_groups=a.ne[0] // 32, high=at.high, steps=at.steps, scales=at.scales,
                d=q8.d, sums=q8.sums, rows_of=a.ne[1], ne02=a.ne[2], tokens=n_tokens, **common,
            )  # fmt: skip
        low.launch(call, rows)
        done += n


def _planes(low: Lowering, a: Tensor):
    """The planes of a weight: its own, or made of ggml's blocks for this node."""
    if is_planes(a):
        return a
    planes = planes_of(a.type)
    work = low.take(planes.n_bytes(a.ne[0], a.nrows))
    call, grid = conversion(a.type, a.ne, a, work)
    low.launch(call, grid)
    return work
