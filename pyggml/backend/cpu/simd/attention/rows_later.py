"""Rows of keys or values that are read next: which of them a step of a loop prefetches.

    later = RowsLater(cells, n, first, share, rows, nb, lines, 2)
    later.prefetch(b, i)                                 # emitted in step i of the loop

The list of long rows is cut into parts, of which each gives a row in turn. The hardware continues
every part on its own, so more lines are on their way than a core has buffers for its prefetches.
Access: the list of cells, and no row: an address that is prefetched need not be mapped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..vector import LINE, at, const, for_range, i64, item_at, load, prefetch, prefetch_lines

Value = Any
PARTS = 4  # a power of two
_LONG = 2 * LINE  # bytes of a row from which on there are parts: short rows gain nothing by them
_STRAIGHT = 2  # lines of a row that are prefetched without a loop


def cell_later(b: Value, cells: Value, n: Value, i: Value, nb: Value) -> Value:
    """Of ``n`` listed cells the one whose row of ``nb`` bytes is prefetched as number ``i``.

    ``i`` is below ``n`` rounded up to a multiple of 16, to which the list is read.
    """
    is_long = b.icmp_signed(">=", nb, const(_LONG))
    bits = b.select(is_long, const(PARTS.bit_length() - 1), const(0))
    mask = b.select(is_long, const(PARTS - 1), const(0))
    size = b.lshr(b.add(n, mask), bits)
    place = b.add(b.mul(b.and_(i, mask), size), b.lshr(i, bits))
    return load(b, item_at(b, cells, place, 8), i64, 8)


@dataclass(frozen=True)
class RowsLater:
    """Rows that are prefetched evenly over the steps of a loop.

    Attributes:
        cells, n: the list of their cells, int64, and how many there are.
        first, share: step i prefetches rows ``first + (i * share >> 16)`` and on, up to the next
            step's, as ``cell_later`` numbers them.
        rows, nb, lines: address of the row in cell 0, bytes from a row to the next, and how many
            cache lines of a row are prefetched, at least one.
        locality: see ``prefetch``.
    """

    cells: Value
    n: Value
    first: Value
    share: Value
    rows: Value
    nb: Value
    lines: Value
    locality: int

    def prefetch(self, b: Value, i: Value) -> None:
        """Prefetch the rows of step ``i``."""
        begin, end = (b.lshr(b.mul(x, self.share), const(16)) for x in (i, b.add(i, const(1))))
        with for_range(b, b.sub(end, begin)) as k:
            number = b.add(self.first, b.add(begin, k))
            cell = cell_later(b, self.cells, self.n, number, self.nb)
            self._prefetch_row(b, item_at(b, self.rows, cell, self.nb))

    def _prefetch_row(self, b: Value, row: Value) -> None:
        last = b.sub(self.lines, const(1))
        for k in range(_STRAIGHT):  # of shorter rows the last line again
            line = b.select(b.icmp_signed("<", last, const(k)), last, const(k))
            prefetch(b, item_at(b, row, line, LINE), self.locality)
        rest = b.sub(self.lines, const(_STRAIGHT))
        prefetch_lines(b, at(b, row, _STRAIGHT * LINE), rest, self.locality)
