"""SET and ACC: a tensor goes to a region of the result, or is added to it.

Where the result is a copy of the first source, that is a launch of its own before. Access: rows of
the region front to back; a strided source takes a scalar loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from ....jit import Kernel, inline, kernel
from ....tensor import Tensor
from ..abi import DST, SRC0, data, first_row, int_param, ne, nrows, row_address
from ..lowering import Lowering, lowers
from ..simd.element import F32, I8, I16, I32, I64, put, take
from .cpy import copy_kernel

RAW = {1: I8, 2: I16, 4: I32, 8: I64}  # copies move bits
_SIZES = {raw: size for size, raw in RAW.items()}
OFFSET, STRIDES, ELEMENTS, STEP = 0, 1, 4, 5  # parameters; elements of a row, bytes between them


@inline
def region_row(node, row):  # type: ignore[no-untyped-def]
    """Address in the result of the region's row ``row`` (counted over SRC0's)."""
    ne1, ne2 = ne(node, SRC0, 1), ne(node, SRC0, 2)
    rest = row // ne1
    i3 = rest // ne2
    return (
        data(node, DST)
        + int_param(node, OFFSET)
        + (row - rest * ne1) * int_param(node, STRIDES)
        + (rest - i3 * ne2) * int_param(node, STRIDES + 1)
        + i3 * int_param(node, STRIDES + 2)
    )


@cache
def place_kernel(raw: int) -> Kernel:
    """The kernel that copies SRC0, elements of an integer type, into the region."""
    size = _SIZES[raw]

    def place(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
        n, step, rows = int_param(node, ELEMENTS), int_param(node, STEP), nrows(node, SRC0)
        for row in range(first_row(rows, chunk, n_chunks), first_row(rows, chunk + 1, n_chunks)):
            x, y = row_address(node, SRC0, row), region_row(node, row)
            if step == size:
                for i in range(n):
                    put(raw, y, i, take(raw, x, i))
            else:
                for i in range(n):
                    put(raw, y, i, take(raw, x + i * step, 0))

    made = kernel(place)
    made.name = f"place_{8 * size}"
    return made


@kernel
def acc_f32(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
    """Adds SRC0 to the region."""
    n, rows = int_param(node, ELEMENTS), nrows(node, SRC0)
    for row in range(first_row(rows, chunk, n_chunks), first_row(rows, chunk + 1, n_chunks)):
        x, y = row_address(node, SRC0, row), region_row(node, row)
        for i in range(n):
            put(F32, y, i, take(F32, y, i) + take(F32, x, i))


def launch_place(low: Lowering, node: Tensor, x: Tensor, nb: Sequence[int], offset: int) -> None:
    """Add the launch that copies ``x`` into a region of ``node``: strides ``nb``, from ``offset``.

    Blocks of a quantized type are copied as bytes; their rows have no gaps.
    """
    if x.nelements == 0:
        return
    if x.type.is_quantized:
        size, n, step = 1, x.ne[0] // x.type.block_size * x.type.type_size, 1
    else:
        size, n, step = x.type.type_size, x.ne[0], x.nb[0]
    params = (offset, *nb, n, size if n == 1 else step)
    low.launch(place_kernel(RAW[size]), node, params, low.row_chunks(x), src=(x,))


def _lower(low: Lowering, node: Tensor) -> None:
    a, b = node.src[0], node.src[1]
    assert node.op is not None and a is not None and b is not None
    p = node.op_params
    if not p["inplace"]:
        copy = copy_kernel(I32, I32)
        low.launch(copy, node, (1, node.nelements), low.row_chunks(node), src=(a,))
    if node.op.name == "SET":
        launch_place(low, node, b, p["nb"], p["offset"])
    elif b.nelements:
        params = (p["offset"], *p["nb"], b.ne[0], 4)
        low.launch(acc_f32, node, params, low.row_chunks(b), src=(b,))


for _op in ("SET", "ACC"):
    lowers(_op)(_lower)
