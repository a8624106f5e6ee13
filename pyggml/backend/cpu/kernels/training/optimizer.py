"""OPT_STEP_ADAMW and OPT_STEP_SGD: each element of a parameter by itself.

Access: parameter, gradient and moments front to back, read and written once; bound by memory.
"""

from __future__ import annotations

import math

import numpy as np

from .....compiler.jit import kernel
from .....tensor import Tensor
from ....common.lowering import all_f32
from ...abi import (
    DST,
    SRC1,
    SRC2,
    SRC3,
    SRC4,
    data,
    f32_ptr,
    first_row,
    ne,
    nrows,
    params_of,
    row_address,
)
from ...compile.lowering import CpuLowering, lowers
from ...simd.element import F32, load_elem, store_elem
from ..span import Parts, columns, split

_GRAIN = 4096  # elements of a chunk


@kernel
def opt_step_adamw_f32(node, chunk, n_chunks, scratch):
    """SRC1: the gradient, SRC2 and SRC3: the moments, SRC4: numbers; see ``ADAMW_PARAMS``."""
    n, parts, p = ne(node, DST, 0), params_of(node, Parts).parts, f32_ptr(data(node, SRC4))
    alpha, beta1, beta2, eps, wd, beta1h, beta2h = p[0], p[1], p[2], p[3], p[4], p[5], p[6]
    one = np.float32(1)
    keep, rest1, rest2 = one - alpha * wd, one - beta1, one - beta2
    units = nrows(node, DST) * parts
    for u in range(first_row(units, chunk, n_chunks), first_row(units, chunk + 1, n_chunks)):
        row = u // parts
        begin, end = columns(n, u - row * parts, parts)
        w, grad = row_address(node, DST, row), row_address(node, SRC1, row)
        first, second = row_address(node, SRC2, row), row_address(node, SRC3, row)
        for i in range(begin, end):
            g = load_elem(F32, grad, i)
            m = beta1 * load_elem(F32, first, i) + rest1 * g
            v = beta2 * load_elem(F32, second, i) + rest2 * g * g
            step = m * beta1h / (math.sqrt(v * beta2h) + eps)
            store_elem(F32, first, i, m)
            store_elem(F32, second, i, v)
            store_elem(F32, w, i, keep * load_elem(F32, w, i) - alpha * step)


@kernel
def opt_step_sgd_f32(node, chunk, n_chunks, scratch):
    """SRC1: the gradient, SRC2: learning rate and weight decay."""
    n, parts, p = ne(node, DST, 0), params_of(node, Parts).parts, f32_ptr(data(node, SRC2))
    alpha, keep = p[0], np.float32(1) - p[0] * p[1]
    units = nrows(node, DST) * parts
    for u in range(first_row(units, chunk, n_chunks), first_row(units, chunk + 1, n_chunks)):
        row = u // parts
        begin, end = columns(n, u - row * parts, parts)
        w, grad = row_address(node, DST, row), row_address(node, SRC1, row)
        for i in range(begin, end):
            v = keep * load_elem(F32, w, i) - alpha * load_elem(F32, grad, i)
            store_elem(F32, w, i, v)


@lowers("OPT_STEP_ADAMW", all_f32)
@lowers("OPT_STEP_SGD", all_f32)
def _lower_opt_step(lowering: CpuLowering, node: Tensor) -> None:
    kernel = opt_step_adamw_f32 if node.op.name == "OPT_STEP_ADAMW" else opt_step_sgd_f32
    parts, chunks = split(lowering, node, _GRAIN)
    lowering.launch(kernel, node, Parts(parts), chunks)
