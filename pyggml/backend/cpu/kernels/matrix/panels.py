"""Products with panels, 16 columns of a matrix side by side: ``x @ panels`` by the register tile.

    pack_row(row, place, PANEL_BYTES, columns)       # in jitted code: a row of the matrix
    times_panels(traits, x, stride, rows, panels, PANEL_BYTES, n, columns, tile, out, out_stride, 0)

A panel is [n][16] floats; ``traits`` are of F32 with ``panel_tiles()``. A sum runs over the rows of
the panel in order, whatever the number of rows of x.
Access: a panel stays in L1 for all rows of x, which come from L2, once for each panel.
"""

from __future__ import annotations

from .....compiler.jit import inline
from .....dtype import GGMLType
from ...abi import f32_ptr
from ...simd.element import add_line, copy_line, copy_run
from ...simd.tile import widest_tile
from ...weights.layout import ROWS
from .weights import REG_TILE, reg_tile, tile_size

PIECE = 256  # rows of a matrix that are packed at a time
COLUMN_BYTES = 4 * ROWS  # of a row of a panel
PANEL_BYTES = COLUMN_BYTES * PIECE
TILE_BYTES = 8 * COLUMN_BYTES  # of what the widest register tile stores


def panel_tiles() -> tuple[int, ...]:
    """The functions of F32's traits for any number of rows."""
    return tuple(REG_TILE + n for n in range(1, widest_tile(int(GGMLType.F32)) + 1))


@inline
def pack_row(row, place, panel_bytes, columns):
    """Copy the floats of a row to its ``place`` in the first panel and in the next ones."""
    whole = columns // ROWS * ROWS
    for c in range(0, whole, ROWS):
        copy_line(row + 4 * c, place + c // ROWS * panel_bytes)
    copy_run(row + 4 * whole, place + whole // ROWS * panel_bytes, columns - whole)


@inline
def times_panels(
    traits, x, stride, rows, panels, panel_bytes, n, columns, tile, out, out_stride, add
):
    """``out[t][c] = sum of x[t][i] * panels[i][c] over i < n``; added to ``out`` if ``add``.

    Args:
        tile: ``TILE_BYTES`` of scratch.
    """
    for c in range(0, columns, ROWS):
        panel, some = panels + c // ROWS * panel_bytes, min(ROWS, columns - c)
        t = 0
        while t < rows:
            tokens, which = tile_size(traits, rows - t)
            reg_tile(traits, which, panel, x + t * stride, stride, tile, n, 0)
            for k in range(tokens):
                z, y = tile + COLUMN_BYTES * k, out + (t + k) * out_stride + 4 * c
                if some == ROWS:
                    if add:
                        add_line(z, y)
                    else:
                        copy_line(z, y)
                elif add:
                    for r in range(some):
                        f32_ptr(y)[r] += f32_ptr(z)[r]
                else:
                    copy_run(z, y, some)
            t += tokens
