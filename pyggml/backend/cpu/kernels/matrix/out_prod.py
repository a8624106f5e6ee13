"""OUT_PROD: a matmul over rows, ``b.T @ a``, with the register tile of MUL_MAT.

A chunk is a block of 64 to 256 rows of the result times some panels of 16 columns of ``a``: 256
rows of a panel at a time are copied next to each other (quantized ones are decoded), and multiplied
while they are in cache; the sums of such pieces are added in order. A column of ``b`` must have no
gaps: those of a transposed tensor have none, others are transposed into work memory first, the
columns of 256 rows side by side.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from .....compiler.jit import CpuKernel, kernel
from .....dtype import GGMLType
from .....ops.op import ALL_FLOATS
from .....rounding import ceil_div, round_up
from .....tensor import Tensor
from ...abi import (
    DST,
    SRC0,
    SRC1,
    data,
    f32_ptr,
    first_row,
    load_f32,
    nb,
    ne,
    params_of,
)
from ...codec import DECODED
from ...codec.rows import decode_columns
from ...compile.lowering import GRAIN, CpuLowering, lowers
from ...simd.element import BF16, F16, F32, load_elem, store_elem
from ...simd.plain_rows import TABLE_BYTES, prefetch_run, set_row_pointers, transpose_rows
from ...weights.layout import ROWS
from .panels import COLUMN_BYTES, PANEL_BYTES, PIECE, TILE_BYTES, pack_row, times_panels
from .weights import decoder_of, tile_kind, tiles_for, weight_traits

_LEAST_ROWS, _MOST_ROWS = 64, 256  # of the result in a chunk: for many threads, and for few
_AHEAD = 8  # rows of ``a`` that are prefetched while one is packed
_WIDTH = 64  # columns of a chunk, where there are enough for several chunks


class OutProd(NamedTuple):
    """The values of OUT_PROD."""

    traits: int  # of F32 weights
    decoder: int  # address of the function that decodes columns of ``a``, or 0
    width: int  # columns of a chunk, a multiple of 16
    blocks: int  # of rows of the result
    x: int  # address of b's columns
    nb1: int  # bytes from one of them to the next, and between matrices
    nb2: int
    nb3: int
    piece_bytes: int  # from the elements of a column in one piece of rows to those in the next


class ColumnsTarget(NamedTuple):
    """The values of ``columns_f32``."""

    out: int  # address of the transposed matrices
    column_bytes: int  # of a column in a piece of rows


@kernel
def columns_f32(node, chunk, n_chunks, scratch):
    """Transpose the matrices of SRC1, 16 rows at a time; the last row fills up a group."""
    p, n, n2 = ne(node, SRC1, 0), ne(node, SRC1, 1), ne(node, SRC1, 2)
    v = params_of(node, ColumnsTarget)
    out, stride, parts = v.out, v.column_bytes, (n + ROWS - 1) // ROWS
    units = parts * n2 * ne(node, SRC1, 3)
    pieces = (n + PIECE - 1) // PIECE
    for u in range(first_row(units, chunk, n_chunks), first_row(units, chunk + 1, n_chunks)):
        matrix = u // parts
        first = (u - matrix * parts) * ROWS
        x = data(node, SRC1) + matrix % n2 * nb(node, SRC1, 2) + matrix // n2 * nb(node, SRC1, 3)
        y = out + (matrix * pieces + first // PIECE) * p * stride + 4 * (first % PIECE)
        if nb(node, SRC1, 0) == 4:
            set_row_pointers(scratch, x, nb(node, SRC1, 1), first, n)
            transpose_rows(scratch, p, y, stride)
        else:
            for j in range(min(ROWS, n - first)):
                row = x + (first + j) * nb(node, SRC1, 1)
                for i in range(p):
                    f32_ptr(y + i * stride)[j] = load_f32(row + i * nb(node, SRC1, 0))


@cache
def out_prod_kernel(kind: int) -> CpuKernel:
    """The kernel of ``a``'s type, F32 for rows that are decoded."""
    size = GGMLType(kind).type_size

    def out_prod(node, chunk, n_chunks, scratch):
        v = params_of(node, OutProd)
        traits, width, blocks, decoder = v.traits, v.width, v.blocks, v.decoder
        m, p, n = ne(node, DST, 0), ne(node, DST, 1), ne(node, SRC0, 1)
        n2, n3 = ne(node, DST, 2), ne(node, DST, 3)
        places, panels = (m + width - 1) // width, scratch + TILE_BYTES
        decoded = panels + width // ROWS * PANEL_BYTES
        units = places * blocks * n2 * n3
        for u in range(first_row(units, chunk, n_chunks), first_row(units, chunk + 1, n_chunks)):
            rest = u // places
            column, matrix = (u - rest * places) * width, rest // blocks
            block = rest - matrix * blocks
            i2, i3 = matrix % n2, matrix // n2
            t0, t1 = first_row(p, block, blocks), first_row(p, block + 1, blocks)
            columns = min(width, m - column)
            a = data(node, SRC0) + i2 // (n2 // ne(node, SRC0, 2)) * nb(node, SRC0, 2)
            a += i3 // (n3 // ne(node, SRC0, 3)) * nb(node, SRC0, 3)
            x = v.x + i2 * v.nb2 + i3 * v.nb3
            out = data(node, DST) + i2 * nb(node, DST, 2) + i3 * nb(node, DST, 3) + 4 * column
            for j0 in range(0, max(n, 1), PIECE):
                piece = min(PIECE, n - j0)
                for j in range(piece):
                    row = a + (j0 + j) * nb(node, SRC0, 1)
                    if decoder != 0:
                        decode_columns(decoder, row, decoded, columns, column)
                        row = decoded
                    else:
                        row += column * size
                    if kind == F32:
                        prefetch_run(row + _AHEAD * nb(node, SRC0, 1), 4 * columns)
                        pack_row(row, panels + j * COLUMN_BYTES, PANEL_BYTES, columns)
                        continue
                    for c in range(0, columns, ROWS):
                        panel = panels + c // ROWS * PANEL_BYTES + j * COLUMN_BYTES
                        for r in range(min(ROWS, columns - c)):
                            store_elem(F32, panel, r, load_elem(kind, row, c + r))
                place = x + t0 * v.nb1 + j0 // PIECE * v.piece_bytes
                rows = out + t0 * nb(node, DST, 1)
                times_panels(
                    traits, place, v.nb1, t1 - t0, panels, PANEL_BYTES, piece, columns, scratch,
                    rows, nb(node, DST, 1), j0,
                )  # fmt: skip

    return kernel(out_prod, f"out_prod_{GGMLType(kind).name.lower()}")


def _supports(node: Tensor) -> bool:
    a = node.src[0]
    return int(a.type) in (F32, F16, BF16, *DECODED) and a.is_contiguous_rows()


@lowers("OUT_PROD", _supports)
def _lower_out_prod(lowering: CpuLowering, node: Tensor) -> None:
    a, b = node.src
    work = []
    if b.nb[1] == 4:
        x, nb1, nb2, nb3, piece_bytes = b.data, b.nb[0], b.nb[2], b.nb[3], 4 * PIECE
    else:
        p, n, n2, n3 = b.ne
        nb1, pieces = 4 * min(PIECE, round_up(n, ROWS)), ceil_div(n, PIECE)
        piece_bytes = nb1 * p
        nb2 = piece_bytes * pieces
        nb3 = nb2 * n2
        columns = lowering.take(max(1, nb3 * n3))
        units = ceil_div(n, ROWS) * n2 * n3
        lowering.launch(
            columns_f32,
            node,
            ColumnsTarget(columns.address, nb1),
            max(1, min(units, b.nelements // GRAIN, 8 * lowering.n_threads)),
            src=(None, b),
            writes=columns,
            scratch=TABLE_BYTES,
        )
        work, x = [columns], columns.address
    floats = Tensor(GGMLType.F32, a.ne)  # what the tile multiplies
    wide = node.ne[0] >= 2 * _WIDTH
    width = max(_WIDTH if wide else ROWS, a.type.block_size)
    places = ceil_div(node.ne[0], width) * node.ne[2] * node.ne[3]
    least, most = (max(1, ceil_div(node.ne[1], rows)) for rows in (_MOST_ROWS, _LEAST_ROWS))
    blocks = max(least, min(most, ceil_div(4 * lowering.n_threads, places)))
    params = OutProd(
        weight_traits(lowering, floats, *tiles_for(floats, ceil_div(node.ne[1], blocks))),
        decoder_of(a.type, ALL_FLOATS), width, blocks, x, nb1, nb2, nb3, piece_bytes,
    )  # fmt: skip
    units = places * blocks
    macs = node.nelements * a.ne[1]
    chunks = max(1, min(units, macs // (1 << 17), 16 * lowering.n_threads))
    lowering.launch(
        out_prod_kernel(tile_kind(a.type, ALL_FLOATS)),
        node,
        params,
        chunks,
        work=work,
        scratch=TILE_BYTES + width // ROWS * PANEL_BYTES + 4 * width,
    )
