"""SET, ACC, CONCAT and REPEAT: rows are copied (or added) to regions of the result.

SET and ACC that are not in place first copy their first source in a launch of its own.
Access: rows of the region front to back, long ones of REPEAT in pieces; a strided source takes a
scalar loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from .....compiler.jit import CpuKernel, inline, kernel
from .....dtype import GGMLType
from .....tensor import Tensor
from ...abi import DST, SRC0, data, first_row, ne, nrows, params_of, row_address
from ...compile.lowering import GRAIN, CpuLowering, lowers
from ...simd.element import F32, I32, load_elem, store_elem
from ..span import Parts, columns, repeated_row, split
from .cpy import RAW, CpyArgs, copy_kernel

_SIZES = {raw: size for size, raw in RAW.items()}


class Region(NamedTuple):
    """The values of a copy into a region of the result."""

    offset: int
    nb1: int  # strides of the region
    nb2: int
    nb3: int
    elements: int  # of a row of the source
    step: int  # bytes between them


@inline
def region_row(node, row):
    """Address in the result of the region's row ``row`` (counted over SRC0's)."""
    ne1, ne2 = ne(node, SRC0, 1), ne(node, SRC0, 2)
    p, rest = params_of(node, Region), row // ne1
    i3 = rest // ne2
    return (
        data(node, DST)
        + p.offset
        + (row - rest * ne1) * p.nb1
        + (rest - i3 * ne2) * p.nb2
        + i3 * p.nb3
    )


@cache
def place_kernel(raw: int) -> CpuKernel:
    """The kernel that copies SRC0, elements of an integer type, into the region."""
    size = _SIZES[raw]

    def place(node, chunk, n_chunks, scratch):
        p = params_of(node, Region)
        n, step, rows = p.elements, p.step, nrows(node, SRC0)
        for row in range(first_row(rows, chunk, n_chunks), first_row(rows, chunk + 1, n_chunks)):
            x, y = row_address(node, SRC0, row), region_row(node, row)
            if step == size:
                for i in range(n):
                    store_elem(raw, y, i, load_elem(raw, x, i))
            else:
                for i in range(n):
                    store_elem(raw, y, i, load_elem(raw, x + i * step, 0))

    return kernel(place, f"place_{8 * size}")


@kernel
def acc_f32(node, chunk, n_chunks, scratch):
    """Add SRC0 to the region."""
    n, rows = params_of(node, Region).elements, nrows(node, SRC0)
    for row in range(first_row(rows, chunk, n_chunks), first_row(rows, chunk + 1, n_chunks)):
        x, y = row_address(node, SRC0, row), region_row(node, row)
        for i in range(n):
            store_elem(F32, y, i, load_elem(F32, y, i) + load_elem(F32, x, i))


def launch_place(
    lowering: CpuLowering, node: Tensor, x: Tensor, nb: Sequence[int], offset: int
) -> None:
    """Add the launch that copies ``x`` into a region of ``node``: strides ``nb``, from ``offset``.

    Blocks of a quantized type are copied as bytes; their rows have no gaps.
    """
    if x.nelements == 0:
        return
    if x.type.is_quantized:
        size, n, step = 1, x.ne[0] // x.type.block_size * x.type.type_size, 1
    else:
        size, n, step = x.type.type_size, x.ne[0], x.nb[0]
    params = Region(offset, *nb, elements=n, step=size if n == 1 else step)
    lowering.launch(place_kernel(RAW[size]), node, params, lowering.row_chunks(x), src=(x,))


def _lower(lowering: CpuLowering, node: Tensor) -> None:
    a, b = node.src[0], node.src[1]
    p = node.op_params
    if not p["inplace"]:
        copy = copy_kernel(I32, I32)
        params = CpyArgs(flat=1, elements=node.nelements)
        lowering.launch(copy, node, params, lowering.row_chunks(node), src=(a,))
    if node.op.name == "SET":
        launch_place(lowering, node, b, p["nb"], p["offset"])
    elif b.nelements:
        region = Region(p["offset"], *p["nb"], elements=b.ne[0], step=4)
        lowering.launch(acc_f32, node, region, lowering.row_chunks(b), src=(b,))


for _op in ("SET", "ACC"):
    lowers(_op)(_lower)


@cache
def repeat_kernel(raw: int) -> CpuKernel:
    """The kernel for elements of an integer type."""

    def repeat(node, chunk, n_chunks, scratch):
        n, period, parts = ne(node, DST, 0), ne(node, SRC0, 0), params_of(node, Parts).parts
        units = nrows(node, DST) * parts
        for u in range(first_row(units, chunk, n_chunks), first_row(units, chunk + 1, n_chunks)):
            row = u // parts
            i, end = columns(n, u - row * parts, parts)
            x, y = repeated_row(node, DST, SRC0, row), row_address(node, DST, row)
            if period == 1:
                v = load_elem(raw, x, 0)
                for k in range(i, end):
                    store_elem(raw, y, k, v)
            else:
                j = i % period
                while i < end:
                    run = min(period - j, end - i)
                    for k in range(run):
                        store_elem(raw, y, i + k, load_elem(raw, x, j + k))
                    i += run
                    j = 0

    return kernel(repeat, f"repeat_{GGMLType(raw).name.lower()}")


@lowers("REPEAT")
def _lower_repeat(lowering: CpuLowering, node: Tensor) -> None:
    parts, chunks = split(lowering, node, GRAIN)
    lowering.launch(repeat_kernel(RAW[node.type.type_size]), node, Parts(parts), chunks)


@lowers("CONCAT")
def _lower_concat(lowering: CpuLowering, node: Tensor) -> None:
    a, b = node.src[0], node.src[1]
    dim = node.op_params["dim"]
    offset = a.ne[dim] // (a.type.block_size if dim == 0 else 1) * node.nb[dim]
    launch_place(lowering, node, a, node.nb[1:], 0)
    launch_place(lowering, node, b, node.nb[1:], offset)
