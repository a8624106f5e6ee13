"""ARANGE, FILL, TIMESTEP_EMBEDDING, DIAG, DIAG_MASK_INF, DIAG_MASK_ZERO and TRI.

Access: rows of the result front to back; of sources, only the elements that are kept are read.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import numpy as np

from .....compiler.jit import CpuKernel, kernel
from .....dtype import GGMLType
from .....ops.images.timestep import frequency_ratio
from .....tensor import Tensor
from ....common.lowering import all_f32
from ...abi import DST, SRC0, data, first_row, nb, ne, nrows, params_of, row_address
from ...compile.lowering import GRAIN, CpuLowering, by_rows, lowers
from ...simd.element import F32, load_elem, store_elem
from ...simd.math import sincos_f32
from ..span import columns, split


class Arange(NamedTuple):
    """The values of ARANGE."""

    start: float
    step: float


class Fill(NamedTuple):
    """The values of FILL."""

    parts: int  # of each row, see ``span``
    c: float


@kernel
def arange_f32(node, chunk, n_chunks, scratch):
    """A range of elements."""
    n, y = ne(node, DST, 0), data(node, DST)
    p = params_of(node, Arange)
    start, step = p.start, p.step
    for i in range(first_row(n, chunk, n_chunks), first_row(n, chunk + 1, n_chunks)):
        store_elem(F32, y, i, start + step * np.float32(i))


@lowers("ARANGE")
def _lower_arange(lowering: CpuLowering, node: Tensor) -> None:
    chunks = max(1, min(node.nelements // GRAIN, 8 * lowering.n_threads))
    lowering.launch(
        arange_f32, node, Arange(node.op_params["start"], node.op_params["step"]), chunks
    )


@cache
def fill_kernel(fmt: int) -> CpuKernel:
    """The kernel for a type."""

    def fill(node, chunk, n_chunks, scratch):
        p = params_of(node, Fill)
        n, parts, c = ne(node, DST, 0), p.parts, p.c
        units = nrows(node, DST) * parts
        for u in range(first_row(units, chunk, n_chunks), first_row(units, chunk + 1, n_chunks)):
            row = u // parts
            begin, end = columns(n, u - row * parts, parts)
            y = row_address(node, DST, row)
            for i in range(begin, end):
                store_elem(fmt, y, i, c)

    return kernel(fill, f"fill_{GGMLType(fmt).name.lower()}")


@lowers("FILL")
def _lower_fill(lowering: CpuLowering, node: Tensor) -> None:
    parts, chunks = split(lowering, node, GRAIN)
    kernel = fill_kernel(int(node.type))
    lowering.launch(kernel, node, Fill(parts, c=node.op_params["c"]), chunks, src=())


class Timestep(NamedTuple):
    """The values of TIMESTEP_EMBEDDING."""

    ratio: np.float64  # of a frequency to the previous one


@kernel
def timestep_embedding_f32(node, chunk, n_chunks, scratch):
    """A range of times."""
    dim, n = ne(node, DST, 0), ne(node, DST, 1)
    half, ratio = dim // 2, params_of(node, Timestep).ratio
    for r in range(first_row(n, chunk, n_chunks), first_row(n, chunk + 1, n_chunks)):
        t, y = np.float64(load_elem(F32, data(node, SRC0), r)), row_address(node, DST, r)
        frequency = 1.0
        for i in range(half):
            sin, cos = sincos_f32(np.float32(t * frequency))
            store_elem(F32, y, i, cos)
            store_elem(F32, y, half + i, sin)
            frequency *= ratio
        if dim & 1:
            store_elem(F32, y, dim - 1, np.float32(0))


@lowers("TIMESTEP_EMBEDDING")
def _lower_timestep_embedding(lowering: CpuLowering, node: Tensor) -> None:
    v = node.op_params
    params = Timestep(frequency_ratio(v["dim"], v["max_period"]))
    lowering.launch(timestep_embedding_f32, node, params, lowering.row_chunks(node))


WHOLE = 1 << 40  # columns: more than any row has


class Keep(NamedTuple):
    """The values of ``keep_f32``."""

    value: float
    begin: int
    end: int


@kernel
def keep_f32(node, chunk, n_chunks, scratch):
    """Copy columns j + begin to j + end of each row j, and set the others to ``value``."""
    p = params_of(node, Keep)
    n, rows, ne1 = ne(node, DST, 0), nrows(node, DST), ne(node, DST, 1)
    value = p.value
    for row in range(first_row(rows, chunk, n_chunks), first_row(rows, chunk + 1, n_chunks)):
        x, y, j = row_address(node, SRC0, row), row_address(node, DST, row), row % ne1
        begin = max(0, min(n, j + p.begin))
        end = max(begin, min(n, j + p.end))
        for i in range(begin):
            store_elem(F32, y, i, value)
        for i in range(begin, end):
            store_elem(F32, y, i, load_elem(F32, x, i))
        for i in range(end, n):
            store_elem(F32, y, i, value)


@kernel
def diag_f32(node, chunk, n_chunks, scratch):
    """Row j of a matrix is zeros but for element j of the source's row."""
    n, rows, ne2 = ne(node, DST, 0), nrows(node, DST), ne(node, DST, 2)
    for row in range(first_row(rows, chunk, n_chunks), first_row(rows, chunk + 1, n_chunks)):
        matrix = row // n
        i1, i3 = row - matrix * n, matrix // ne2
        x = data(node, SRC0) + (matrix - i3 * ne2) * nb(node, SRC0, 2) + i3 * nb(node, SRC0, 3)
        y = row_address(node, DST, row)
        for i in range(n):
            store_elem(F32, y, i, 0.0)
        store_elem(F32, y, i1, load_elem(F32, x, i1))


_KEPT = {  # columns that row 0 of each triangle keeps
    "lower": (-WHOLE, 0),
    "lower_diag": (-WHOLE, 1),
    "upper": (1, WHOLE),
    "upper_diag": (0, WHOLE),
}


@lowers("TRI", all_f32)
def _lower_tri(lowering: CpuLowering, node: Tensor) -> None:
    lowering.launch(
        keep_f32, node, Keep(0.0, *_KEPT[node.op_params["kind"]]), lowering.row_chunks(node)
    )


@lowers("DIAG_MASK_INF", all_f32)
@lowers("DIAG_MASK_ZERO", all_f32)
def _lower_diag_mask(lowering: CpuLowering, node: Tensor) -> None:
    value = -math.inf if node.op.name == "DIAG_MASK_INF" else 0.0
    params = Keep(value, -WHOLE, node.op_params["n_past"] + 1)
    lowering.launch(keep_f32, node, params, lowering.row_chunks(node))


lowers("DIAG", all_f32)(by_rows(diag_f32))
