"""How element-wise kernels are split into chunks: by rows, and inside rows every 32 elements.

    parts, chunks = split(lowering, node, 1024)         # in a lowering
    for u in range(first_row(nrows(node, DST) * parts, chunk, n_chunks), ...):
        row = u // parts
        begin, end = columns(ne(node, DST, 0), u - row * parts, parts)

Many rows are split between rows, a few long ones (a token's activations) also inside.
"""

from __future__ import annotations

from typing import NamedTuple

from ....compiler.jit import inline
from ....rounding import ceil_div
from ....tensor import Tensor
from ..abi import data, nb, ne
from ..compile.lowering import CpuLowering

BLOCK = 32  # columns of a quantized block, which is never cut


class Parts(NamedTuple):
    """The values of an element-wise kernel without others."""

    parts: int  # of each row


def split(lowering: CpuLowering, node: Tensor, grain: int) -> tuple[int, int]:
    """(parts of each row, chunks) for chunks of about ``grain`` elements or more."""
    chunks = max(1, min(node.nelements // grain, 8 * lowering.n_threads))
    parts = max(1, min(ceil_div(chunks, node.nrows), node.ne[0] // BLOCK))
    return parts, min(chunks, node.nrows * parts)


@inline
def columns(n, part, parts):
    """(first, end) of part ``part`` of ``parts`` of a row of ``n`` elements."""
    end = n if part + 1 == parts else n * (part + 1) // parts & -BLOCK
    return n * part // parts & -BLOCK, end


@inline
def repeated_row(node, like, tensor, row):
    """Address of the row of ``tensor``, which repeats over ``like``, at row ``row`` of that."""
    ne1, ne2 = ne(node, like, 1), ne(node, like, 2)
    rest = row // ne1
    i3 = rest // ne2
    i1, i2 = row - rest * ne1, rest - i3 * ne2
    return (
        data(node, tensor)
        + i1 % ne(node, tensor, 1) * nb(node, tensor, 1)
        + i2 % ne(node, tensor, 2) * nb(node, tensor, 2)
        + i3 % ne(node, tensor, 3) * nb(node, tensor, 3)
    )
