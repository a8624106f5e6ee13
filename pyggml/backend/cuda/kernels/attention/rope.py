"""ROPE: normal and neox pairs, partial rows, frequency factors, YaRN.

A thread computes the angle of one pair of one token by the rule of ``ops/attention/rope.py``, with
its roundings (powers by repeated multiplication, no contraction), and rotates that pair in several
heads. Sines and cosines are accurate to 1e-7 at any position below 2^24 (``elementwise.sincos``).
Access: adjacent threads, adjacent pairs.
"""

from functools import cache

import numpy as np
from numba import cuda, float32, int32, int64

from .....dtype import GGMLType
from .....ops.attention.rope import RopeMode, rope_values
from .....rounding import ceil_div
from .....tensor import Tensor
from ...codec import FLOAT_TYPES, element_loader, element_storer
from ...driver import Grid
from ...intrin import divide, load_f32, load_i32, mul_rounded
from ...kernel import U8, GpuKernel, f32, i32, i64, kernel
from ...lowering import GpuLowering, lowers
from ..elementwise.elementwise import sincos

THREADS = 128
HEADS = 8  # of a block
ZERO, ONE = np.float32(0), np.float32(1)


@cache
def rope_kernel(mode: RopeMode, type: GGMLType, factors: bool, yarn: bool) -> GpuKernel:
    """The kernel of a mode and type."""
    neox = mode == RopeMode.NEOX
    load, store = element_loader(type), element_storer(type)
    name = f"rope_{mode.name.lower()}_{type.name.lower()}" + "_freqs" * factors + "_yarn" * yarn

    @kernel(name, threads=THREADS)
    def rope(
        x: U8, y: U8, positions: U8, freqs: U8, n: i32, n_dims: i32, width_log2: i32, n_head: i32,
        n_tokens: i32, pos0: i64, x1: i64, x2: i64, x3: i64, y1: i64, y2: i64, y3: i64,
        theta_scale: f32, freq_scale: f32, ext_factor: f32, ramp_low: f32, ramp_span: f32,
        magnitude: f32,
    ):  # fmt: skip
        i3 = divide(cuda.blockIdx.x, n_tokens)
        i2 = int32(int32(cuda.blockIdx.x) - i3 * n_tokens)
        width = int32(1 << width_log2)
        p = int32(cuda.threadIdx.x) & (width - 1)
        lane, lanes = int32(cuda.threadIdx.x) >> width_log2, int32(THREADS) >> width_log2
        first = int32(cuda.blockIdx.y) * HEADS
        last = first + HEADS
        last = last if last < n_head else int64(n_head)
        x_at, y_at = i2 * x2 + i3 * x3, i2 * y2 + i3 * y3
        half = n_dims >> 1
        position = float32(load_i32(positions, i2 * pos0))
        while p < half:
            power = ONE
            for _ in range(p):
                power = mul_rounded(power, theta_scale)
            theta = mul_rounded(position, power)
            if factors:
                theta = theta / load_f32(freqs, p * 4)
            angle = mul_rounded(theta, freq_scale)
            if yarn:
                ramp = (float32(int32(p)) - ramp_low) / ramp_span
                ramp = ZERO if ramp < ZERO else (ONE if ramp > ONE else ramp)
                mix = mul_rounded(ONE - ramp, ext_factor)
                angle = mul_rounded(angle, ONE - mix) + mul_rounded(theta, mix)
            sin, cos = sincos(angle)
            sin, cos = sin * magnitude, cos * magnitude
            i, k = (p, p + half) if neox else (2 * p, 2 * p + 1)
            h = first + lane
            while h < last:
                a, b = load(x, x_at + h * x1, i), load(x, x_at + h * x1, k)
                store(y, y_at + h * y1, i, a * cos - b * sin)
                store(y, y_at + h * y1, k, a * sin + b * cos)
                h += lanes
            p += width
        h = first + lane
        while h < last:
            i = int64(n_dims) + (int32(cuda.threadIdx.x) & (width - 1))
            while i < n:
                store(y, y_at + h * y1, i, load(x, x_at + h * x1, i))
                i += width
            h += lanes

    return rope


def _supports(node: Tensor) -> bool:
    x = node.src[0]
    heads = ceil_div(x.ne[1], HEADS)
    return x.type in FLOAT_TYPES and x.is_contiguous_rows() and heads < 1 << 16


@lowers("ROPE", _supports)
def _lower_rope(lowering: GpuLowering, node: Tensor) -> None:
    x, positions, freqs = (*node.src, None)[:3]
    p, values = node.op_params, rope_values(node.op_params)
    half = p["n_dims"] // 2
    kernel = rope_kernel(RopeMode(p["mode"]), x.type, freqs is not None, p["ext_factor"] != 0)
    call = kernel(
        x=x, y=node, positions=positions, freqs=freqs, n=x.ne[0], n_dims=p["n_dims"],
        width_log2=min(max(5, (half - 1).bit_length()), 7), n_head=x.ne[1], n_tokens=x.ne[2],
        pos0=positions.nb[0], theta_scale=float(values.theta_scale),
        freq_scale=p["freq_scale"], ext_factor=p["ext_factor"], ramp_low=values.ramp_low,
        ramp_span=values.ramp_span, magnitude=float(values.magnitude),
    )  # fmt: skip
    lowering.launch(call, Grid(x.ne[2] * x.ne[3], ceil_div(x.ne[1], HEADS)))
