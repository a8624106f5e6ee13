"""CROSS_ENTROPY_LOSS and CROSS_ENTROPY_LOSS_BACK.

Access: a row of logits is read twice (the second time from cache); its exponentials are kept in
thread scratch, or in the result. Each row is computed by one thread, and the losses of rows are
added in order.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import numpy as np

from .....compiler.jit import CpuKernel, inline, kernel
from .....dtype import GGMLType
from .....tensor import Tensor
from ...abi import (
    BAD_INDEX,
    DST,
    SRC0,
    SRC1,
    SRC2,
    data,
    f32_ptr,
    f64_ptr,
    first_row,
    i32_ptr,
    ne,
    nrows,
    params_of,
    row_address,
    set_error,
)
from ...compile.lowering import CpuLowering, lowers
from ...simd.element import F32, I32, load_elem
from ...simd.math import ZERO, exp_f32
from ...simd.total import max_f32, total_f32
from ..rows.reduce import Total, sum_total_kernel

_GRAIN = 1024  # elements of a chunk, about


class Losses(NamedTuple):
    """The values of CROSS_ENTROPY_LOSS."""

    out: int  # address of the losses of rows, float64


@inline
def exponentials(x, y, n):
    """Store ``exp(x - max(x))`` at ``y``; returns (max(x), the sum of what was stored)."""
    top = max_f32(x, n)
    ys = f32_ptr(y)
    for i in range(n):
        ys[i] = exp_f32(load_elem(F32, x, i) - top)
    return top, total_f32(y, n)


@inline
def class_of(node, labels, row, n):
    """The class of a row, negative for none; sets an error if there is no such class."""
    label = i32_ptr(data(node, labels))[row]
    if label >= n:
        set_error(node, BAD_INDEX)
        return -1
    return label


@cache
def losses_kernel(labels: int) -> CpuKernel:
    """The kernel of a type of labels: the loss of each row, divided by the number of rows."""

    def losses(node, chunk, n_chunks, scratch):
        n, rows = ne(node, SRC0, 0), nrows(node, SRC0)
        out = f64_ptr(params_of(node, Losses).out)
        for row in range(first_row(rows, chunk, n_chunks), first_row(rows, chunk + 1, n_chunks)):
            x, out[row] = row_address(node, SRC0, row), 0.0
            if labels == I32:
                label = class_of(node, SRC1, row, n)
                if label >= 0:
                    top, total = exponentials(x, scratch, n)
                    v = np.float64(f32_ptr(x)[label]) - np.float64(top)
                    out[row] = (math.log(np.float64(total)) - v) / rows
            else:
                top, total = exponentials(x, scratch, n)
                p = row_address(node, SRC1, row)
                base = np.float64(top) + math.log(np.float64(total))
                loss = 0.0
                for i in range(n):
                    v = base - np.float64(load_elem(F32, x, i))
                    loss += np.float64(load_elem(F32, p, i)) * v
                out[row] = loss / rows

    return kernel(losses, f"cross_entropy_loss_{GGMLType(labels).name.lower()}")


@lowers("CROSS_ENTROPY_LOSS")
def _lower_loss(lowering: CpuLowering, node: Tensor) -> None:
    a, labels = node.src
    out = lowering.take(8 * max(1, a.nrows))
    lowering.launch(
        losses_kernel(int(labels.type)), node, Losses(out.address), lowering.row_chunks(a, _GRAIN),
        writes=out, scratch=4 * a.ne[0],
    )  # fmt: skip
    lowering.launch(sum_total_kernel(F32), node, Total(a.nrows, out.address), src=(), work=[out])


@cache
def loss_back_kernel(labels: int) -> CpuKernel:
    """The kernel of a type of labels. SRC0: the gradient of the loss."""

    def loss_back(node, chunk, n_chunks, scratch):
        n, rows = ne(node, SRC1, 0), nrows(node, SRC1)
        d = f32_ptr(data(node, SRC0))[0] / np.float32(rows)
        for row in range(first_row(rows, chunk, n_chunks), first_row(rows, chunk + 1, n_chunks)):
            x, y = row_address(node, SRC1, row), row_address(node, DST, row)
            ys = f32_ptr(y)
            if labels == I32:
                label = class_of(node, SRC2, row, n)
                if label < 0:
                    for i in range(n):
                        ys[i] = ZERO
                    continue
                _, total = exponentials(x, y, n)
                factor = d / total
                for i in range(n):
                    ys[i] = ys[i] * factor
                ys[label] -= d
            else:
                _, total = exponentials(x, y, n)
                p = row_address(node, SRC2, row)
                factor = d * total_f32(p, n) / total
                for i in range(n):
                    ys[i] = ys[i] * factor - load_elem(F32, p, i) * d

    return kernel(loss_back, f"cross_entropy_loss_back_{GGMLType(labels).name.lower()}")


@lowers("CROSS_ENTROPY_LOSS_BACK")
def _lower_loss_back(lowering: CpuLowering, node: Tensor) -> None:
    chunks = lowering.row_chunks(node, _GRAIN)
    lowering.launch(loss_back_kernel(int(node.src[2].type)), node, chunks=chunks)
