"""RMS_NORM and NORM, with a weight, a bias, a gate or a factor after them and the quantization of
the result; L2_NORM and GROUP_NORM; RMS_NORM_BACK and NORM_BACK.

A row (a group) is computed by one thread with a fixed order of sums: its bits depend on it alone.
Access: a row is read two or three times (after the first time from L1) and written once.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from .....compiler.jit import inline, kernel
from .....rounding import ceil_div
from .....tensor import Tensor
from ....common.lowering import all_f32
from ....common.memory import may_write_over, overlap
from ....common.norm import norm_rows
from ...abi import DST, SRC0, SRC1, SRC2, SRC3, data, first_row, ne, nrows, params_of, row_address
from ...compile.lowering import ANY_CHUNKS, CpuLowering, fuses, lowers
from ...simd.element import F32, load_elem, store_elem
from ...simd.total import dot_f32, squares_f32
from ...weights.layout import Q8_BLOCK
from ..elementwise.elementwise import IDS, function
from ..quantize import BLOCK, quantize_row
from ..span import repeated_row
from .reduce import sum_f32

ADD, MUL, SCALE, SILU = (IDS[name] for name in ("add", "mul", "scale", "silu"))
_GRAIN = 2048  # elements of a chunk, about: read twice, and quantized


class Norm(NamedTuple):
    """The values of a norm of rows."""

    eps: float
    quantize: int = 0  # address of the quantized rows, or 0
    factor: float = 1.0  # of RMS_NORM without a weight


class GroupNorm(NamedTuple):
    """The values of GROUP_NORM."""

    eps: float
    channels: int  # of a group
    groups: int


@kernel
def rms_norm_f32(node, chunk, n_chunks, scratch):
    """SRC1: the weight, or nothing; SRC3: a gate whose SiLU is multiplied, or nothing."""
    p = params_of(node, Norm)
    n, eps, out, factor = ne(node, DST, 0), p.eps, p.quantize, p.factor
    rows, weighted, gated = nrows(node, DST), data(node, SRC1) != 0, data(node, SRC3) != 0
    for row in range(first_row(rows, chunk, n_chunks), first_row(rows, chunk + 1, n_chunks)):
        x, y = row_address(node, SRC0, row), row_address(node, DST, row)
        s = np.float32(1) / math.sqrt(squares_f32(x, n) / np.float32(n) + eps)
        if weighted:
            w = repeated_row(node, DST, SRC1, row)
            if gated:
                g = row_address(node, SRC3, row)
                for i in range(n):
                    v = load_elem(F32, x, i) * s * load_elem(F32, w, i)
                    store_elem(F32, y, i, function(SILU, load_elem(F32, g, i)) * v)
            else:
                for i in range(n):
                    store_elem(F32, y, i, load_elem(F32, x, i) * s * load_elem(F32, w, i))
        elif factor != 1:
            for i in range(n):
                store_elem(F32, y, i, function(SCALE, load_elem(F32, x, i) * s, factor))
        else:
            for i in range(n):
                store_elem(F32, y, i, load_elem(F32, x, i) * s)
        if out != 0:
            quantize_row(y, out + row * (n // BLOCK) * Q8_BLOCK, n)


@inline
def centred_squares(x, n, mean):
    """The float64 sum of squared distances from ``mean``, in one order for each ``n``."""
    total = 0.0
    for i in range(n):
        v = np.float64(load_elem(F32, x, i)) - mean
        total += v * v
    return total


@kernel
def norm_f32(node, chunk, n_chunks, scratch):
    """SRC1: the weight, or nothing; SRC2: its bias, or nothing."""
    p = params_of(node, Norm)
    n, eps, out = ne(node, DST, 0), np.float64(p.eps), p.quantize
    rows, weighted, biased = nrows(node, DST), data(node, SRC1) != 0, data(node, SRC2) != 0
    for row in range(first_row(rows, chunk, n_chunks), first_row(rows, chunk + 1, n_chunks)):
        x, y = row_address(node, SRC0, row), row_address(node, DST, row)
        mean = sum_f32(x, n) / n
        s = 1 / math.sqrt(centred_squares(x, n, mean) / n + eps)
        if weighted:
            w = repeated_row(node, DST, SRC1, row)
            if biased:
                b = repeated_row(node, DST, SRC2, row)
                for i in range(n):
                    v = np.float32((np.float64(load_elem(F32, x, i)) - mean) * s)
                    v = function(MUL, v, load_elem(F32, w, i))
                    store_elem(F32, y, i, function(ADD, v, load_elem(F32, b, i)))
            else:
                for i in range(n):
                    v = np.float32((np.float64(load_elem(F32, x, i)) - mean) * s)
                    store_elem(F32, y, i, function(MUL, v, load_elem(F32, w, i)))
        else:
            for i in range(n):
                store_elem(F32, y, i, np.float32((np.float64(load_elem(F32, x, i)) - mean) * s))
        if out != 0:
            quantize_row(y, out + row * (n // BLOCK) * Q8_BLOCK, n)


@kernel
def l2_norm_f32(node, chunk, n_chunks, scratch):
    """Rows divided by their lengths."""
    n, rows, eps = ne(node, DST, 0), nrows(node, DST), np.float64(params_of(node, Norm).eps)
    for row in range(first_row(rows, chunk, n_chunks), first_row(rows, chunk + 1, n_chunks)):
        x, y = row_address(node, SRC0, row), row_address(node, DST, row)
        length = math.sqrt(centred_squares(x, n, 0.0))
        s = 1 / (eps if length < eps else length)
        for i in range(n):
            store_elem(F32, y, i, np.float32(np.float64(load_elem(F32, x, i)) * s))


@kernel
def group_norm_f32(node, chunk, n_chunks, scratch):
    """A range of groups."""
    p = params_of(node, GroupNorm)
    n, height, channels = ne(node, DST, 0), ne(node, DST, 1), ne(node, DST, 2)
    eps, step, groups = np.float64(p.eps), p.channels, p.groups
    units = groups * ne(node, DST, 3)
    for u in range(first_row(units, chunk, n_chunks), first_row(units, chunk + 1, n_chunks)):
        i3 = u // groups
        first = (u - i3 * groups) * step
        rows = height * (min(channels, first + step) - first)  # <= 0: no channels are left
        start = (i3 * channels + first) * height
        mean = 0.0
        for r in range(rows):
            mean += sum_f32(row_address(node, SRC0, start + r), n)
        mean /= n * rows
        variance = 0.0
        for r in range(rows):
            variance += centred_squares(row_address(node, SRC0, start + r), n, mean)
        s = 1 / math.sqrt(variance / (n * rows) + eps)
        for r in range(rows):
            x, y = row_address(node, SRC0, start + r), row_address(node, DST, start + r)
            for i in range(n):
                store_elem(F32, y, i, np.float32((np.float64(load_elem(F32, x, i)) - mean) * s))


@kernel
def rms_norm_back_f32(node, chunk, n_chunks, scratch):
    """SRC0: the gradient of the result, SRC1: the input of the norm."""
    n, rows, eps = ne(node, DST, 0), nrows(node, DST), params_of(node, Norm).eps
    for row in range(first_row(rows, chunk, n_chunks), first_row(rows, chunk + 1, n_chunks)):
        dy, x = row_address(node, SRC0, row), row_address(node, SRC1, row)
        y = row_address(node, DST, row)
        square = np.float32(1) / (squares_f32(x, n) / np.float32(n) + eps)
        s, c = math.sqrt(square), square * dot_f32(F32, dy, x, n) / np.float32(n)
        for i in range(n):
            store_elem(F32, y, i, s * (load_elem(F32, dy, i) - c * load_elem(F32, x, i)))


@inline
def centred_products(x, y, n, mean_x, mean_y):
    """``sum((x - mean_x) * (y - mean_y))`` in float64, in one order for each ``n``."""
    total = 0.0
    for i in range(n):
        v = np.float64(load_elem(F32, x, i)) - mean_x
        total += v * (np.float64(load_elem(F32, y, i)) - mean_y)
    return total


@kernel
def norm_back_f32(node, chunk, n_chunks, scratch):
    """SRC0: the gradient of the result, SRC1: the input of the norm."""
    n, rows, eps = ne(node, DST, 0), nrows(node, DST), np.float64(params_of(node, Norm).eps)
    for row in range(first_row(rows, chunk, n_chunks), first_row(rows, chunk + 1, n_chunks)):
        dy, x = row_address(node, SRC0, row), row_address(node, SRC1, row)
        y = row_address(node, DST, row)
        mean_dy, mean = sum_f32(dy, n) / n, sum_f32(x, n) / n
        square = 1 / (centred_squares(x, n, mean) / n + eps)
        s, c = math.sqrt(square), square * centred_products(dy, x, n, mean_dy, mean) / n
        for i in range(n):
            d = np.float64(load_elem(F32, dy, i)) - mean_dy
            v = s * (d - c * (np.float64(load_elem(F32, x, i)) - mean))
            store_elem(F32, y, i, np.float32(v))


@lowers("RMS_NORM_BACK", all_f32)
@lowers("NORM_BACK", all_f32)
def _lower_norm_back(lowering: CpuLowering, node: Tensor) -> None:
    kernel = rms_norm_back_f32 if node.op.name == "RMS_NORM_BACK" else norm_back_f32
    params = Norm(node.op_params["eps"])
    lowering.launch(kernel, node, params, lowering.row_chunks(node, _GRAIN))


_OF_ROWS = {"RMS_NORM": rms_norm_f32, "NORM": norm_f32}


def _launch(
    lowering: CpuLowering, norm: Tensor, dst: Tensor, *rows: Tensor | None,
    gate: Tensor | None = None, factor: float = 1.0,
) -> None:  # fmt: skip
    src = (*(norm.src[0], *rows, None, None)[:3], gate)  # kernels read four sources
    chunks = min(dst.nrows, dst.nelements // _GRAIN, 8 * lowering.n_threads)
    kernel, params = _OF_ROWS[norm.op.name], Norm(norm.op_params["eps"], factor=factor)
    lowering.launch(kernel, dst, params, chunks, src=src, quantizes=True, replicate=ANY_CHUNKS)


@lowers("RMS_NORM", all_f32)
@lowers("NORM", all_f32)
def _lower_norm(lowering: CpuLowering, node: Tensor) -> None:
    _launch(lowering, node, node)


@fuses("RMS_NORM", "MUL", "UNARY", "MUL")  # registered before the shorter pattern
def _lower_gated_norm(
    lowering: CpuLowering, norm: Tensor, weighted: Tensor, gate: Tensor, gated: Tensor
) -> bool:
    """Launch a norm, its weight and the gate of linear attention: the norm times ``silu(z)``."""
    z, rows = gate.src[0], norm_rows(norm, weighted)
    if rows is None or gated.src != (weighted, gate) or gate.op_params["kind"] != "silu":
        return False
    if not (all_f32(gate) and all_f32(gated)) or z.ne != norm.ne or gated.ne != norm.ne:
        return False
    if not may_write_over(gated, norm.src[0]) or not may_write_over(gated, z):
        return False
    if any(overlap(w, gated) for w in rows):
        return False
    _launch(lowering, norm, gated, *rows, gate=z)
    return True


@fuses("RMS_NORM", "SCALE")
def _lower_scaled_norm(lowering: CpuLowering, norm: Tensor, scaled: Tensor) -> bool:
    """Launch a norm whose rows get another length."""
    p, plain = scaled.op_params, all_f32(norm) and all_f32(scaled)
    if not plain or p["b"] != 0 or p["s"] == 1 or not may_write_over(scaled, norm.src[0]):
        return False
    _launch(lowering, norm, scaled, factor=p["s"])
    return True


@fuses("RMS_NORM", "MUL")
@fuses("NORM", "MUL")
@fuses("NORM", "MUL", "ADD")  # registered before the shorter pattern
def _lower_fused_norm(lowering: CpuLowering, norm: Tensor, *more: Tensor) -> bool:
    """Launch a norm and the nodes after it: weight and bias are applied as a row is written."""
    rows = norm_rows(norm, *more)
    if rows is None:
        return False
    _launch(lowering, norm, more[-1], *rows)
    return True


@lowers("L2_NORM", all_f32)
def _lower_l2_norm(lowering: CpuLowering, node: Tensor) -> None:
    lowering.launch(l2_norm_f32, node, Norm(node.op_params["eps"]), lowering.row_chunks(node))


@lowers("GROUP_NORM", all_f32)
def _lower_group_norm(lowering: CpuLowering, node: Tensor) -> None:
    groups = int(node.op_params["n_groups"])
    step = ceil_div(node.ne[2], groups)
    params = GroupNorm(node.op_params["eps"], step, groups)
    lowering.launch(group_norm_f32, node, params, min(groups * node.ne[3], 8 * lowering.n_threads))
