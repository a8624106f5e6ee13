"""PAD, PAD_REFLECT_1D and ROLL: rows of the result from a few runs of the source's.

Access: rows of the result front to back.
"""

from __future__ import annotations

from typing import NamedTuple

from .....compiler.jit import inline, kernel
from .....tensor import Tensor
from ...abi import DST, SRC0, data, first_row, nb, ne, nrows, params_of, row_address
from ...compile.lowering import CpuLowering, lowers
from ...simd.element import F32, copy_run, load_elem, store_elem, zero_run


class Pad(NamedTuple):
    """The values of PAD: elements added before each dimension, and whether it is circular."""

    before0: int
    before1: int
    before2: int
    before3: int
    circular: int


class PadReflect(NamedTuple):
    """The values of PAD_REFLECT_1D: elements before and after each row."""

    before: int
    after: int


class Roll(NamedTuple):
    """The values of ROLL: a shift by dimension, from 0 to less than its size."""

    shift0: int
    shift1: int
    shift2: int
    shift3: int


@inline
def _place(i, before, n, circular):
    """The source index, below ``n``, of ``i`` in the padded result; -1: none."""
    i -= before
    if circular:
        return i % n
    return i if 0 <= i < n else -1


@kernel
def pad_f32(node, chunk, n_chunks, scratch):
    """Rows of the result."""
    p = params_of(node, Pad)
    n, n_x, before = ne(node, DST, 0), ne(node, SRC0, 0), p.before0
    ne1, ne2, rows = ne(node, DST, 1), ne(node, DST, 2), nrows(node, DST)
    circular = p.circular != 0
    for row in range(first_row(rows, chunk, n_chunks), first_row(rows, chunk + 1, n_chunks)):
        y, rest = row_address(node, DST, row), row // ne1
        i1 = _place(row % ne1, p.before1, ne(node, SRC0, 1), circular)
        i2 = _place(rest % ne2, p.before2, ne(node, SRC0, 2), circular)
        i3 = _place(rest // ne2, p.before3, ne(node, SRC0, 3), circular)
        if i1 < 0 or i2 < 0 or i3 < 0:
            zero_run(y, n)
            continue
        x = data(node, SRC0) + i1 * nb(node, SRC0, 1) + i2 * nb(node, SRC0, 2)
        x += i3 * nb(node, SRC0, 3)
        if circular:
            i, j = 0, -before % n_x
            while i < n:
                run = min(n_x - j, n - i)
                copy_run(x + 4 * j, y + 4 * i, run)
                i += run
                j = 0
        else:
            zero_run(y, before)
            copy_run(x, y + 4 * before, n_x)
            zero_run(y + 4 * (before + n_x), n - before - n_x)


@lowers("PAD")
def _lower_pad(lowering: CpuLowering, node: Tensor) -> None:
    params = Pad(*node.op_params["left"], circular=node.op_params["circular"])
    lowering.launch(pad_f32, node, params, lowering.row_chunks(node))


@kernel
def pad_reflect_1d_f32(node, chunk, n_chunks, scratch):
    """Rows of the result."""
    p = params_of(node, PadReflect)
    n, rows, before, after = ne(node, SRC0, 0), nrows(node, DST), p.before, p.after
    for row in range(first_row(rows, chunk, n_chunks), first_row(rows, chunk + 1, n_chunks)):
        x, y = row_address(node, SRC0, row), row_address(node, DST, row)
        for i in range(before):
            store_elem(F32, y, i, load_elem(F32, x, before - i))
        copy_run(x, y + 4 * before, n)
        for i in range(after):
            store_elem(F32, y, before + n + i, load_elem(F32, x, n - 2 - i))


@lowers("PAD_REFLECT_1D")
def _lower_pad_reflect_1d(lowering: CpuLowering, node: Tensor) -> None:
    params = PadReflect(node.op_params["p0"], node.op_params["p1"])
    lowering.launch(pad_reflect_1d_f32, node, params, lowering.row_chunks(node))


@kernel
def roll_f32(node, chunk, n_chunks, scratch):
    """Rows of the result."""
    p = params_of(node, Roll)
    n, shift = ne(node, DST, 0), p.shift0
    ne1, ne2, ne3 = ne(node, DST, 1), ne(node, DST, 2), ne(node, DST, 3)
    rows = nrows(node, DST)
    for row in range(first_row(rows, chunk, n_chunks), first_row(rows, chunk + 1, n_chunks)):
        y, rest = row_address(node, DST, row), row // ne1
        i1 = (row % ne1 - p.shift1) % ne1
        i2 = (rest % ne2 - p.shift2) % ne2
        i3 = (rest // ne2 - p.shift3) % ne3
        x = data(node, SRC0) + i1 * nb(node, SRC0, 1) + i2 * nb(node, SRC0, 2)
        x += i3 * nb(node, SRC0, 3)
        copy_run(x + 4 * (n - shift), y, shift)
        copy_run(x, y + 4 * shift, n - shift)


@lowers("ROLL")
def _lower_roll(lowering: CpuLowering, node: Tensor) -> None:
    shifts = [s % n for s, n in zip(node.op_params["shift"], node.ne, strict=True)]
    lowering.launch(roll_f32, node, Roll(*shifts), lowering.row_chunks(node))
