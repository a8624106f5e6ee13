"""RMS_NORM, with the multiplication by a weight behind it and the quantization of the result.

A row belongs to one thread, and its sum has one order, so the bits depend on the row alone.
Access: a row is read twice (the second time from L1) and written once.
"""

from __future__ import annotations

import math

import numpy as np

from ....dtype import GGMLType
from ....jit import inline, kernel
from ....tensor import Tensor
from ..abi import DST, SRC0, SRC1, data, first_row, float_param, int_param, ne, nrows, row_address
from ..layout import Q8_BLOCK
from ..lowering import Lowering, all_f32, fuses, lowers
from ..simd.element import F32, put, take
from .quantize import BLOCK, quantize_row
from .span import may_write_over, repeated_row

EPS, QUANTIZE = 0, 1  # parameters


@inline
def sum_of_squares(x, n):  # type: ignore[no-untyped-def]
    """The sum of squares of ``n`` float32, in one order for each ``n``."""
    total = np.float32(0)
    for i in range(n):
        v = take(F32, x, i)
        total += v * v
    return total


@kernel
def rms_norm_f32(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
    """Parameters: eps, where to write the quantized rows (or 0). SRC1: the weight, or nothing."""
    n, eps, out = ne(node, DST, 0), float_param(node, EPS), int_param(node, QUANTIZE)
    rows, weighted = nrows(node, DST), data(node, SRC1) != 0
    for row in range(first_row(rows, chunk, n_chunks), first_row(rows, chunk + 1, n_chunks)):
        x, y = row_address(node, SRC0, row), row_address(node, DST, row)
        s = np.float32(1) / math.sqrt(sum_of_squares(x, n) / np.float32(n) + eps)
        if weighted:
            w = repeated_row(node, DST, SRC1, row)
            for i in range(n):
                put(F32, y, i, take(F32, x, i) * s * take(F32, w, i))
        else:
            for i in range(n):
                put(F32, y, i, take(F32, x, i) * s)
        if out != 0:
            quantize_row(y, out + row * (n // BLOCK) * Q8_BLOCK, n)


def _launch(low: Lowering, norm: Tensor, dst: Tensor, weight: Tensor | None) -> None:
    params = (float(norm.op_params["eps"]), 0)
    src = (norm.src[0], weight)
    launch = low.launch(rms_norm_f32, dst, params, low.row_chunks(dst), src=src)
    launch.quantize_param = QUANTIZE


@lowers("RMS_NORM", all_f32)
def _lower_rms_norm(low: Lowering, node: Tensor) -> None:
    _launch(low, node, node, None)


@fuses("RMS_NORM", "MUL")
def _lower_rms_norm_mul(low: Lowering, norm: Tensor, product: Tensor) -> bool:
    """The weight is applied as the row is written."""
    x, w = norm.src[0], product.src[1]
    if x is None or w is None or product.src[0] is not norm or w is norm:
        return False
    if not all_f32(norm) or w.type is not GGMLType.F32 or not w.is_contiguous_rows():
        return False
    if w.ne[0] != norm.ne[0] or not may_write_over(product, x):
        return False
    _launch(low, norm, product, w)
    return True
