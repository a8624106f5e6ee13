"""REPEAT and CONCAT: copies of whole stretches of rows.

Access: rows of the result front to back, split inside long ones; CONCAT writes one source after the
other.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from ....dtype import GGMLType
from ....jit import Kernel, kernel
from ....tensor import Tensor
from ..abi import DST, SRC0, first_row, ne, nrows, params_of, row_address
from ..lowering import GRAIN, Lowering, lowers
from ..simd.element import put, take
from .region import RAW, launch_place
from .span import columns, repeated_row, split


class Repeat(NamedTuple):
    """The values of REPEAT."""

    parts: int  # of each row, see ``span``


@cache
def repeat_kernel(raw: int) -> Kernel:
    """The kernel for elements of an integer type."""

    def repeat(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
        n, period, parts = ne(node, DST, 0), ne(node, SRC0, 0), params_of(node, Repeat).parts
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
    made.name = f"repeat_{GGMLType(raw).name.lower()}"
    return made


@lowers("REPEAT")
def _lower_repeat(low: Lowering, node: Tensor) -> None:
    parts, chunks = split(low, node, GRAIN)
    low.launch(repeat_kernel(RAW[node.type.type_size]), node, Repeat(parts), chunks)


@lowers("CONCAT")
def _lower_concat(low: Lowering, node: Tensor) -> None:
    a, b = node.src[0], node.src[1]
    assert a is not None and b is not None
    dim = node.op_params["dim"]
    offset = a.ne[dim] // (a.type.block_size if dim == 0 else 1) * node.nb[dim]
    launch_place(low, node, a, node.nb[1:], 0)
    launch_place(low, node, b, node.nb[1:], offset)
