"""SOFT_MAX with mask, ALiBi slopes and sinks, and SOFT_MAX_BACK.

Access: a row is read once with its mask row, then updated in place in the result (L1 or L2). A row
is computed by one thread with a fixed order of sums.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import numpy as np

from .....compiler.jit import CpuKernel, inline, kernel
from .....dtype import GGMLType
from .....ops.rows.softmax import alibi_steps
from .....tensor import Tensor
from ....common.lowering import all_f32
from ...abi import (
    DST,
    SRC0,
    SRC1,
    SRC2,
    data,
    f32_ptr,
    first_row,
    nb,
    ne,
    nrows,
    params_of,
    row_address,
)
from ...compile.lowering import CpuLowering, lowers
from ...simd.element import F32, load_elem, store_elem
from ...simd.math import INF, ZERO, abs_f32, exp_f32
from ...simd.total import dot_f32, max_f32, total_f32

_TYPES = (GGMLType.F32, GGMLType.F16)


class SoftMax(NamedTuple):
    """The values of SOFT_MAX."""

    scale: float
    base_0: float  # ALiBi: base of the slopes of the first ``n_head_log2`` heads
    base_1: float  # base of the slopes of the other heads
    n_head_log2: int


@inline
def alibi_slope(node, head):
    """The factor on the mask of a head (1 without ALiBi)."""
    p = params_of(node, SoftMax)
    n2 = p.n_head_log2
    if head < n2:
        return np.float32(math.pow(np.float64(p.base_0), np.float64(head + 1)))
    exponent = np.float64(2 * (head - n2) + 1)
    return np.float32(math.pow(np.float64(p.base_1), exponent))


@cache
def soft_max_kernel(mask_type: int) -> CpuKernel:
    """The kernel for a mask's type. SRC1: the mask, SRC2: the sinks, or nothing."""

    def soft_max(node, chunk, n_chunks, scratch):
        n, rows, scale = ne(node, DST, 0), nrows(node, DST), params_of(node, SoftMax).scale
        mask, sinks = data(node, SRC1), data(node, SRC2)
        ne1, ne2 = ne(node, DST, 1), ne(node, DST, 2)
        for row in range(first_row(rows, chunk, n_chunks), first_row(rows, chunk + 1, n_chunks)):
            x, y = row_address(node, SRC0, row), row_address(node, DST, row)
            i1, rest = row % ne1, row // ne1
            i2, i3 = rest % ne2, rest // ne2
            if mask != 0:
                m = mask + i1 * nb(node, SRC1, 1)
                m += i2 % ne(node, SRC1, 2) * nb(node, SRC1, 2)
                m += i3 % ne(node, SRC1, 3) * nb(node, SRC1, 3)
                slope = alibi_slope(node, i2)
                for i in range(n):
                    store_elem(
                        F32, y, i, load_elem(F32, x, i) * scale + slope * load_elem(mask_type, m, i)
                    )
            else:
                for i in range(n):
                    store_elem(F32, y, i, load_elem(F32, x, i) * scale)
            top = max_f32(y, n)
            if sinks != 0:
                sink = f32_ptr(sinks)[i2]
                top = sink if sink > top else top
            top = top if abs_f32(top) < INF else ZERO
            ys = f32_ptr(y)
            for i in range(n):
                ys[i] = exp_f32(ys[i] - top)
            total = total_f32(y, n)
            if sinks != 0:
                total += exp_f32(f32_ptr(sinks)[i2] - top)
            inverse = np.float32(1) / total if total != ZERO else ZERO
            for i in range(n):
                ys[i] = ys[i] * inverse

    return kernel(soft_max, f"soft_max_{GGMLType(mask_type).name.lower()}")


class SoftMaxBack(NamedTuple):
    """The values of SOFT_MAX_BACK."""

    scale: float


@kernel
def soft_max_back_f32(node, chunk, n_chunks, scratch):
    """SRC0: the gradient of the result, SRC1: the result."""
    n, rows, scale = ne(node, DST, 0), nrows(node, DST), params_of(node, SoftMaxBack).scale
    for row in range(first_row(rows, chunk, n_chunks), first_row(rows, chunk + 1, n_chunks)):
        dy, p = row_address(node, SRC0, row), row_address(node, SRC1, row)
        y = row_address(node, DST, row)
        mean = dot_f32(F32, dy, p, n)  # of dy, weighted by p
        for i in range(n):
            v = scale * load_elem(F32, p, i) * (load_elem(F32, dy, i) - mean)
            store_elem(F32, y, i, v)


@lowers("SOFT_MAX_BACK", all_f32)
def _lower_soft_max_back(lowering: CpuLowering, node: Tensor) -> None:
    params = SoftMaxBack(node.op_params["scale"])
    lowering.launch(soft_max_back_f32, node, params, lowering.row_chunks(node))


def _supports(node: Tensor) -> bool:
    x, mask, _ = node.src
    plain = x.is_contiguous_rows() and node.is_contiguous_rows()
    return plain and (mask is None or (mask.type in _TYPES and mask.is_contiguous_rows()))


@lowers("SOFT_MAX", _supports)
def _lower_soft_max(lowering: CpuLowering, node: Tensor) -> None:
    mask, p = node.src[1], node.op_params
    n2, step_0, step_1 = alibi_steps(node.ne[2], p["max_bias"])
    params = SoftMax(p["scale"], base_0=2.0**step_0, base_1=2.0**step_1, n_head_log2=n2)
    kernel = soft_max_kernel(F32 if mask is None else int(mask.type))
    chunks = lowering.row_chunks(node, 1024)
    lowering.launch(kernel, node, params, chunks)
