"""ARGMAX: the place of the largest element of each row, the first of equal ones.

Access: a row is read once, in blocks of 512 whose maxima are vectorised, and the best block again.
"""

from __future__ import annotations

import numpy as np

from ....jit import inline_strict, kernel
from ....tensor import Tensor
from ..abi import DST, SRC0, data, f32_bits, first_row, nb, ne
from ..lowering import Lowering, lowers
from ..simd.element import F32, I32, put, take

_BLOCK = 512
LOWEST = np.int32(-(2**31))


@inline_strict
def order_key(x):  # type: ignore[no-untyped-def]
    """An int32 that orders as the float does (0 equals -0; NaN, by its sign, beyond inf)."""
    bits = f32_bits(x + np.float32(0))
    return np.int32(bits ^ ((bits >> 31) & 0x7FFFFFFF))


@inline_strict
def largest_key(x, first, end):  # type: ignore[no-untyped-def]
    """The largest ``order_key`` of elements ``first`` to ``end`` of a row."""
    top = LOWEST
    for i in range(first, end):
        key = order_key(take(F32, x, i))
        top = key if key > top else top
    return top


@kernel
def argmax_f32(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
    """Rows of a matrix."""
    n, rows, y = ne(node, SRC0, 0), ne(node, SRC0, 1), data(node, DST)
    for row in range(first_row(rows, chunk, n_chunks), first_row(rows, chunk + 1, n_chunks)):
        x = data(node, SRC0) + row * nb(node, SRC0, 1)
        top, at = LOWEST, 0
        for block in range((n + _BLOCK - 1) // _BLOCK):
            key = largest_key(x, block * _BLOCK, min(n, (block + 1) * _BLOCK))
            if key > top:
                top, at = key, block * _BLOCK
        while at < n and order_key(take(F32, x, at)) != top:
            at += 1
        put(I32, y, row, np.int32(at))


@lowers("ARGMAX")
def _lower_argmax(low: Lowering, node: Tensor) -> None:
    assert node.src[0] is not None
    low.launch(argmax_f32, node, (), low.row_chunks(node.src[0]))
