"""ARANGE and FILL: results that no source is read for. Access: rows front to back."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from ....dtype import GGMLType
from ....jit import Kernel, kernel
from ....tensor import Tensor
from ..abi import DST, data, first_row, ne, nrows, params_of, row_address
from ..lowering import GRAIN, Lowering, lowers
from ..simd.element import F32, put
from .span import columns, split


class Arange(NamedTuple):
    """The values of ARANGE."""

    start: float
    step: float


class Fill(NamedTuple):
    """The values of FILL."""

    parts: int  # of each row, see ``span``
    c: float


@kernel
def arange_f32(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
    """A range of elements."""
    n, y = ne(node, DST, 0), data(node, DST)
    p = params_of(node, Arange)
    start, step = p.start, p.step
    for i in range(first_row(n, chunk, n_chunks), first_row(n, chunk + 1, n_chunks)):
        put(F32, y, i, start + step * np.float32(i))


@lowers("ARANGE")
def _lower_arange(low: Lowering, node: Tensor) -> None:
    chunks = max(1, min(node.nelements // GRAIN, 8 * low.n_threads))
    low.launch(arange_f32, node, Arange(node.op_params["start"], node.op_params["step"]), chunks)


@cache
def fill_kernel(fmt: int) -> Kernel:
    """The kernel for a type."""

    def fill(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
        p = params_of(node, Fill)
        n, parts, c = ne(node, DST, 0), p.parts, p.c
        units = nrows(node, DST) * parts
        for u in range(first_row(units, chunk, n_chunks), first_row(units, chunk + 1, n_chunks)):
            row = u // parts
            begin, end = columns(n, u - row * parts, parts)
            y = row_address(node, DST, row)
            for i in range(begin, end):
                put(fmt, y, i, c)

    made = kernel(fill)
    made.name = f"fill_{GGMLType(fmt).name.lower()}"
    return made


@lowers("FILL")
def _lower_fill(low: Lowering, node: Tensor) -> None:
    parts, chunks = split(low, node, GRAIN)
    made = fill_kernel(int(node.type))
    low.launch(made, node, Fill(parts, c=node.op_params["c"]), chunks, src=())
