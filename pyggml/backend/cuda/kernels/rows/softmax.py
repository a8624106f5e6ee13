"""SOFT_MAX with mask, scale, ALiBi and sinks.

A row of up to ``WARP_ROW`` elements is computed by a warp, a longer one by a block. Access: a row
and its mask are read three times, after the first time from L1 or L2: maximum, sum, result.
"""

import math
from functools import cache

import numpy as np
from numba import cuda, float32, int32, int64

from .....dtype import GGMLType
from .....ops.rows.softmax import alibi_steps
from .....tensor import Tensor
from ...codec import element_loader
from ...intrin import device, divide, exp2, load_f32, store_f32
from ...kernel import U8, GpuKernel, f32, i32, i64, kernel
from ...lowering import GpuLowering, lowers
from ..span import indices_of
from ..warp import block_max, block_sum, warp_max, warp_sum
from .norm import MAX_THREADS, row_launch

MASKS = (GGMLType.F32, GGMLType.F16)
ZERO, ONE, LOWEST = np.float32(0), np.float32(1), np.float32(-np.inf)


@device
def alibi_slope(head, n2, step_0, step_1):
    """The slope of a head; ``step_0`` and ``step_1`` from ``alibi_steps``."""
    if head < n2:
        return exp2(step_0 * float32(int32(head + 1)))
    return exp2(step_1 * float32(int32(2 * (head - n2) + 1)))


@cache
def softmax_kernel(warp: bool, mask: GGMLType | None, sinks: bool) -> GpuKernel:
    """The kernel for a type of mask, for rows of a warp or of a block."""
    total, largest = (warp_sum, warp_max) if warp else (block_sum, block_max)
    masked = mask is not None
    load_mask = element_loader(mask if masked else GGMLType.F32)
    name = "soft_max" + (f"_mask_{mask.name.lower()}" if masked else "") + "_sinks" * sinks

    @device
    def score(x, x_row, m, m_row, j, scale, slope):
        v = load_f32(x, x_row + j * 4) * scale
        if masked:
            v += slope * load_mask(m, m_row, j)
        return v

    @kernel(name + "_warp" * warp, threads=256 if warp else MAX_THREADS)
    def soft_max(
        x: U8, y: U8, m: U8, sink: U8, n: i32, rows: i32, ne1: i32, ne2: i32, x1: i64, x2: i64,
        x3: i64, y1: i64, y2: i64, y3: i64, m_ne2: i32, m_ne3: i32, m1: i64, m2: i64, m3: i64,
        scale: f32, n2: i32, step_0: f32, step_1: f32,
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
        m_row, slope = int64(0), ONE
        if masked:
            m_row = i1 * m1 + int32(i2 - divide(i2, m_ne2) * m_ne2) * m2
            m_row += int32(i3 - divide(i3, m_ne3) * m_ne3) * m3
            if step_0 != ZERO:
                slope = alibi_slope(i2, n2, step_0, step_1)
        top = LOWEST
        j = int32(t)
        while j < n:
            v = score(x, x_row, m, m_row, j, scale, slope)
            top = v if v > top else top
            j += step
        top = largest(top)
        of_sink = LOWEST
        if sinks:
            of_sink = load_f32(sink, i2 * 4)
            top = of_sink if of_sink > top else top
        top = top if top > LOWEST else ZERO
        s = ZERO
        j = int32(t)
        while j < n:
            s += math.exp(score(x, x_row, m, m_row, j, scale, slope) - top)
            j += step
        s = total(s)
        if sinks:
            s += math.exp(of_sink - top)
        factor = ZERO if s == ZERO else ONE / s
        j = int32(t)
        while j < n:
            v = math.exp(score(x, x_row, m, m_row, j, scale, slope) - top)
            store_f32(y, y_row + j * 4, v * factor)
            j += step

    return soft_max


def _supports(node: Tensor) -> bool:
    x, mask = node.src[:2]
    return x.is_contiguous_rows() and (
        mask is None or (mask.type in MASKS and mask.is_contiguous_rows())
    )


@lowers("SOFT_MAX", _supports)
def _lower_soft_max(lowering: GpuLowering, node: Tensor) -> None:
    x, mask, sinks = (*node.src, None, None)[:3]
    p, (warp, grid, threads) = node.op_params, row_launch(x)
    n2, step_0, step_1 = alibi_steps(x.ne[2], p["max_bias"])
    kernel = softmax_kernel(warp, None if mask is None else mask.type, sinks is not None)
    call = kernel(
        x=x, y=node, m=mask, sink=sinks, n=x.ne[0], rows=x.nrows, ne1=x.ne[1], ne2=x.ne[2],
        scale=p["scale"], n2=n2, step_0=step_0, step_1=step_1,
    )  # fmt: skip
    lowering.launch(call, grid, threads=threads)
