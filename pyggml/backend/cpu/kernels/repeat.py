"""REPEAT, CONCAT, PAD, PAD_REFLECT_1D and ROLL: copies of whole stretches of rows.

Access: rows of the result front to back, each from a few runs of the source; CONCAT writes one
source after the other.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from ....jit import Kernel, inline, kernel
from ....tensor import Tensor
from ..abi import DST, SRC0, data, first_row, int_param, nb, ne, nrows, row_address
from ..lowering import GRAIN, Lowering, lowers
from ..simd.element import F32, put, take
from .region import RAW, launch_place
from .span import columns, repeated_row, split

ZERO = np.float32(0)
CIRCULAR = 4  # parameter of PAD behind what is added before each dimension


@cache
def repeat_kernel(raw: int) -> Kernel:
    """The kernel for elements of an integer type. Parameter: parts of a row."""

    def repeat(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
        n, period, parts = ne(node, DST, 0), ne(node, SRC0, 0), int_param(node, 0)
        units = nrows(node, DST) * parts
        for u in range(first_row(units, chunk, n_chunks), first_row(units, chunk + 1, n_chunks)):
            row = u // parts
            i, end = columns(n, u - row * parts, parts)
            x, y = repeated_row(node, DST, SRC0, row), row_address(node, DST, row)
            if period == 1:
                v = take(raw, x, 0)
                for k in range(i, end):
                    put(raw, y, k, v)
            else:
                j = i % period
                while i < end:
                    run = min(period - j, end - i)
                    for k in range(run):
                        put(raw, y, i + k, take(raw, x, j + k))
                    i += run
                    j = 0

    made = kernel(repeat)
    made.name = f"repeat_{raw}"
    return made


@lowers("REPEAT")
def _lower_repeat(low: Lowering, node: Tensor) -> None:
    parts, chunks = split(low, node, GRAIN)
    low.launch(repeat_kernel(RAW[node.type.type_size]), node, (parts,), chunks)


@lowers("CONCAT")
def _lower_concat(low: Lowering, node: Tensor) -> None:
    a, b = node.src[0], node.src[1]
    assert a is not None and b is not None
    dim = node.op_params["dim"]
    offset = a.ne[dim] // (a.type.block_size if dim == 0 else 1) * node.nb[dim]
    launch_place(low, node, a, node.nb[1:], 0)
    launch_place(low, node, b, node.nb[1:], offset)


@inline
def _copy_run(x, y, n):  # type: ignore[no-untyped-def]
    for i in range(n):
        put(F32, y, i, take(F32, x, i))


@inline
def _zero_run(y, n):  # type: ignore[no-untyped-def]
    for i in range(n):
        put(F32, y, i, ZERO)


@inline
def _place(i, before, n, circular):  # type: ignore[no-untyped-def]
    """Which element of a source of ``n`` lies at ``i`` behind ``before`` others; -1 for none."""
    i -= before
    if circular:
        return i % n
    return i if 0 <= i < n else -1


@kernel
def pad_f32(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
    """Parameters: what is added before each dimension; whether around the ends."""
    n, n_x, before = ne(node, DST, 0), ne(node, SRC0, 0), int_param(node, 0)
    ne1, ne2, rows = ne(node, DST, 1), ne(node, DST, 2), nrows(node, DST)
    circular = int_param(node, CIRCULAR) != 0
    for row in range(first_row(rows, chunk, n_chunks), first_row(rows, chunk + 1, n_chunks)):
        y, rest = row_address(node, DST, row), row // ne1
        i1 = _place(row % ne1, int_param(node, 1), ne(node, SRC0, 1), circular)
        i2 = _place(rest % ne2, int_param(node, 2), ne(node, SRC0, 2), circular)
        i3 = _place(rest // ne2, int_param(node, 3), ne(node, SRC0, 3), circular)
        if i1 < 0 or i2 < 0 or i3 < 0:
            _zero_run(y, n)
            continue
        x = data(node, SRC0) + i1 * nb(node, SRC0, 1) + i2 * nb(node, SRC0, 2)
        x += i3 * nb(node, SRC0, 3)
        if circular:
            i, j = 0, -before % n_x
            while i < n:
                run = min(n_x - j, n - i)
                _copy_run(x + 4 * j, y + 4 * i, run)
                i += run
                j = 0
        else:
            _zero_run(y, before)
            _copy_run(x, y + 4 * before, n_x)
            _zero_run(y + 4 * (before + n_x), n - before - n_x)


@lowers("PAD")
def _lower_pad(low: Lowering, node: Tensor) -> None:
    params = (*node.op_params["left"], int(node.op_params["circular"]))
    low.launch(pad_f32, node, params, low.row_chunks(node))


@kernel
def pad_reflect_1d_f32(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
    """Parameters: elements before and behind each row."""
    n, rows, before = ne(node, SRC0, 0), nrows(node, DST), int_param(node, 0)
    behind = int_param(node, 1)
    for row in range(first_row(rows, chunk, n_chunks), first_row(rows, chunk + 1, n_chunks)):
        x, y = row_address(node, SRC0, row), row_address(node, DST, row)
        for i in range(before):
            put(F32, y, i, take(F32, x, before - i))
        _copy_run(x, y + 4 * before, n)
        for i in range(behind):
            put(F32, y, before + n + i, take(F32, x, n - 2 - i))


@lowers("PAD_REFLECT_1D")
def _lower_pad_reflect_1d(low: Lowering, node: Tensor) -> None:
    params = (node.op_params["p0"], node.op_params["p1"])
    low.launch(pad_reflect_1d_f32, node, params, low.row_chunks(node))


@kernel
def roll_f32(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
    """Parameters: the shifts, from 0 to less than the sizes."""
    n, shift = ne(node, DST, 0), int_param(node, 0)
    ne1, ne2, ne3 = ne(node, DST, 1), ne(node, DST, 2), ne(node, DST, 3)
    rows = nrows(node, DST)
    for row in range(first_row(rows, chunk, n_chunks), first_row(rows, chunk + 1, n_chunks)):
        y, rest = row_address(node, DST, row), row // ne1
        i1 = (row % ne1 - int_param(node, 1)) % ne1
        i2 = (rest % ne2 - int_param(node, 2)) % ne2
        i3 = (rest // ne2 - int_param(node, 3)) % ne3
        x = data(node, SRC0) + i1 * nb(node, SRC0, 1) + i2 * nb(node, SRC0, 2)
        x += i3 * nb(node, SRC0, 3)
        _copy_run(x + 4 * (n - shift), y, shift)
        _copy_run(x, y + 4 * shift, n - shift)


@lowers("ROLL")
def _lower_roll(low: Lowering, node: Tensor) -> None:
    shifts = [s % n for s, n in zip(node.op_params["shift"], node.ne, strict=True)]
    low.launch(roll_f32, node, shifts, low.row_chunks(node))
