"""How element-wise kernels are laid over tensors: a thread takes one element, or four at once.

    span = span_of(node, node.src[0])
    lowering.launch(k(units=span.units, per_row=span.per_row, ...), span.grid)

Tensors of equal sizes without gaps count as one row (``flat``), so that no thread divides. Four
elements are one load of 16 bytes (8 of half precision); that needs rows whose starts and lengths
are multiples of four elements. Access: adjacent threads, adjacent elements.
"""

from typing import NamedTuple

from numba import int32, int64

from ....tensor import Tensor
from ..driver import Grid
from ..intrin import device, divide
from ..lowering import blocks

THREADS = 256


class Span(NamedTuple):
    """How a kernel goes over the elements of tensors.

    Attributes:
        flat: all elements are one row.
        quads: a thread takes four elements.
        units: threads.
        per_row: of them, those of a row.
    """

    flat: bool
    quads: bool
    units: int
    per_row: int

    @property
    def width(self) -> int:
        """Elements of a thread."""
        return 4 if self.quads else 1

    @property
    def grid(self) -> Grid:
        """Blocks of ``THREADS`` threads."""
        return blocks(self.units, THREADS)

    @property
    def suffix(self) -> str:
        """What kernels' names end with."""
        return ("_flat" if self.flat else "") + ("_x4" if self.quads else "")


def is_quads(*tensors: Tensor) -> bool:
    """Whether rows begin at multiples of four elements and have such a number of elements."""
    return all(
        t.ne[0] % 4 == 0
        and t.data % (4 * t.type.type_size) == 0
        and all(t.nb[i] % (4 * t.type.type_size) == 0 for i in (1, 2, 3) if t.ne[i] > 1)
        for t in tensors
    )


def span_of(
    node: Tensor, *sources: Tensor, by_rows: bool = False, more: tuple[Tensor, ...] = ()
) -> Span:
    """The span over a result and sources of its sizes.

    Args:
        by_rows: rows matter, so that they are not joined.
        more: sources of other sizes, of which four elements are also loaded at once.
    """
    tensors = (node, *sources)
    flat = not by_rows and all(t.is_contiguous() for t in tensors)
    if flat:
        n, rows = node.nelements, 1
        quads = n % 4 == 0 and all(t.data % (4 * t.type.type_size) == 0 for t in tensors)
    else:
        n, rows = node.ne[0], node.nrows
        quads = is_quads(*tensors, *more)
    per_row = n // 4 if quads else n
    return Span(flat, quads, per_row * rows, per_row)


def in_range(node: Tensor) -> bool:
    """Whether rows and elements can be counted in 32 bits."""
    return node.nelements < 1 << 31


@device
def indices_of(row, ne1, ne2):
    """(i1, i2, i3) of row number ``row`` of a tensor."""
    rest = divide(row, ne1)
    i3 = divide(rest, ne2)
    return int32(row - rest * ne1), int32(rest - i3 * ne2), i3


@device
def row_at(row, ne1, ne2, nb1, nb2, nb3):
    """The byte offset of row number ``row`` of a tensor."""
    i1, i2, i3 = indices_of(row, ne1, ne2)
    return i1 * nb1 + i2 * nb2 + int64(i3) * nb3


@device
def repeated_at(i1, i2, i3, ne1, ne2, ne3, nb1, nb2, nb3):
    """The byte offset of row (i1, i2, i3) of a tensor that is repeated."""
    at = int32(i1 - divide(i1, ne1) * ne1) * nb1
    at += int32(i2 - divide(i2, ne2) * ne2) * nb2
    return at + int32(i3 - divide(i3, ne3) * ne3) * nb3
