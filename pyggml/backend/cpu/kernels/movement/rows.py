"""GET_ROWS and SET_ROWS: rows by index, converted on the way; GET_ROWS_BACK.

Access: each row is read and written front to back. An index after the last row writes nothing and
reports an error; for SET_ROWS, a negative index is legal and writes nothing.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from .....compiler.jit import CpuKernel, inline, kernel
from .....dtype import GGMLType
from .....ops.op import ALL_FLOATS
from .....rounding import ceil_div
from .....tensor import Tensor
from ...abi import (
    BAD_INDEX,
    DST,
    SRC0,
    SRC1,
    data,
    f32_ptr,
    first_row,
    i32_ptr,
    i64_ptr,
    nb,
    ne,
    nrows,
    params_of,
    row_address,
    set_error,
)
from ...codec import DECODED, ENCODED, row_encoder
from ...codec.blocks import decode_block, decode_k_block, get_block
from ...codec.rows import Decoder, decode_columns, encode_row
from ...compile.lowering import GRAIN, CpuLowering, lowers
from ...simd.element import F16, F32, I32, load_elem, store_elem, zero_run
from ...weights.buffer import is_repacked
from ...weights.layout import K_TYPES, ROWS, block_bytes
from ..matrix.weights import decoder_of, tile_kind
from ..span import BLOCK, Parts, columns


class SetRows(NamedTuple):
    """The values of SET_ROWS."""

    encoder: int  # address of the function that encodes a row of blocks, or 0
    index_bytes: int


@cache
def get_rows_kernel(kind: int, repacked: bool = False) -> CpuKernel:
    """The kernel of a source type and layout; the result is F32, or I32 for I32.

    Plain rows of blocks take the kernel of F32 with a decoder.
    """
    blocks, result = kind in DECODED, I32 if kind == I32 else F32  # blocks: of repacked rows
    block, super_block = GGMLType(kind).block_size, kind in K_TYPES
    group_block = block_bytes(kind)

    def get_rows(node, chunk, n_chunks, scratch):
        p = params_of(node, Decoder)
        n, n_ids, n_rows = ne(node, DST, 0), ne(node, DST, 1), ne(node, SRC0, 1)
        total = nrows(node, DST)
        for r in range(first_row(total, chunk, n_chunks), first_row(total, chunk + 1, n_chunks)):
            rest = r // n_ids
            i3 = rest // ne(node, DST, 2)
            i1, i2 = r - rest * n_ids, rest - i3 * ne(node, DST, 2)
            ids = data(node, SRC1) + i2 * nb(node, SRC1, 1) + i3 * nb(node, SRC1, 2)
            row = i32_ptr(ids + i1 * nb(node, SRC1, 0))[0]
            if row < 0 or row >= n_rows:
                set_error(node, BAD_INDEX)
                continue
            x = data(node, SRC0) + row * nb(node, SRC0, 1)
            x += i2 * nb(node, SRC0, 2) + i3 * nb(node, SRC0, 3)
            y = row_address(node, DST, r)
            if repacked:
                groups = (n_rows + ROWS - 1) // ROWS
                matrix = i3 * ne(node, SRC0, 2) + i2
                x = data(node, SRC0) + (matrix * groups + row // ROWS) * (n // block * group_block)
                for i in range(n // block):
                    if super_block:
                        decode_k_block(kind, x + i * group_block, row % ROWS, y + 1024 * i)
                        continue
                    get_block(kind, x, row % ROWS, i, scratch)
                    if blocks:
                        decode_block(kind, scratch, y + 4 * block * i)
                    else:
                        store_elem(result, y, i, load_elem(kind, scratch, 0))
            elif kind == F32 and p.decoder != 0:
                decode_columns(p.decoder, x, y, n, 0)
            else:
                for i in range(n):
                    store_elem(result, y, i, load_elem(kind, x, i))

    return kernel(get_rows, f"get_rows_{GGMLType(kind).name.lower()}{'_x16' if repacked else ''}")


def _supports_get_rows(node: Tensor) -> bool:
    a = node.src[0]
    return (a.is_contiguous_rows() or is_repacked(a)) and int(a.type) in (
        *DECODED,
        *ALL_FLOATS,
        I32,
    )


@lowers("GET_ROWS", _supports_get_rows)
def _lower_get_rows(lowering: CpuLowering, node: Tensor) -> None:
    a = node.src[0]
    tiled = (a.type,) if is_repacked(a) else (*ALL_FLOATS, GGMLType.I32)
    kernel = get_rows_kernel(tile_kind(a.type, tiled), is_repacked(a))
    params = Decoder(decoder_of(a.type, tiled))
    lowering.launch(kernel, node, params, lowering.row_chunks(node), scratch=a.type.type_size)


@kernel
def get_rows_back_f32(node, chunk, n_chunks, scratch):
    """A range of columns of all rows, so that rows are added in the order of the ids."""
    n, n_rows, n_ids = ne(node, DST, 0), ne(node, DST, 1), ne(node, SRC0, 1)
    ne2, parts = ne(node, DST, 2), params_of(node, Parts).parts
    units = ne2 * ne(node, DST, 3) * parts
    for u in range(first_row(units, chunk, n_chunks), first_row(units, chunk + 1, n_chunks)):
        matrix = u // parts
        begin, end = columns(n, u - matrix * parts, parts)
        i2, i3 = matrix % ne2, matrix // ne2
        out = data(node, DST) + i2 * nb(node, DST, 2) + i3 * nb(node, DST, 3)
        for row in range(n_rows):
            zero_run(out + row * nb(node, DST, 1) + 4 * begin, end - begin)
        ids = data(node, SRC1) + i2 * nb(node, SRC1, 1) + i3 * nb(node, SRC1, 2)
        for r in range(n_ids):
            row = i32_ptr(ids + r * nb(node, SRC1, 0))[0]
            if row < 0 or row >= n_rows:
                set_error(node, BAD_INDEX)
                continue
            x = data(node, SRC0) + r * nb(node, SRC0, 1)
            x += i2 * nb(node, SRC0, 2) + i3 * nb(node, SRC0, 3)
            y = out + row * nb(node, DST, 1)
            sums = f32_ptr(y)
            for i in range(begin, end):
                store_elem(F32, y, i, sums[i] + load_elem(F32, x, i))


@lowers("GET_ROWS_BACK")
def _lower_get_rows_back(lowering: CpuLowering, node: Tensor) -> None:
    matrices = node.ne[2] * node.ne[3]
    chunks = max(1, min(node.nelements // GRAIN, 8 * lowering.n_threads))
    parts = max(1, min(ceil_div(chunks, matrices), node.ne[0] // BLOCK))
    lowering.launch(get_rows_back_f32, node, Parts(parts), min(chunks, matrices * parts))


@inline
def _index(node, address):
    if params_of(node, SetRows).index_bytes == 8:
        return i64_ptr(address)[0]
    return i32_ptr(address)[0] + 0


@cache
def set_rows_kernel(source: int, kind: int) -> CpuKernel:
    """The kernel of a source and a target type; for rows of blocks, that of F32 with an encoder."""

    def set_rows(node, chunk, n_chunks, scratch):
        p = params_of(node, SetRows)
        n, total, n_rows = ne(node, SRC0, 0), nrows(node, SRC0), ne(node, DST, 1)
        ne1, ne2 = ne(node, SRC0, 1), ne(node, SRC0, 2)
        for k in range(first_row(total, chunk, n_chunks), first_row(total, chunk + 1, n_chunks)):
            rest = k // ne2  # a token's heads lie together
            i3 = rest // ne1
            i1, i2 = rest - i3 * ne1, k - rest * ne2
            r = i1 + ne1 * (i2 + ne2 * i3)
            ids = data(node, SRC1) + i1 * nb(node, SRC1, 0)
            ids += i2 % ne(node, SRC1, 1) * nb(node, SRC1, 1)
            ids += i3 % ne(node, SRC1, 2) * nb(node, SRC1, 2)
            row = _index(node, ids)
            if row < 0:
                continue
            if row >= n_rows:
                set_error(node, BAD_INDEX)
                continue
            x = row_address(node, SRC0, r)
            y = data(node, DST) + row * nb(node, DST, 1)
            y += i2 * nb(node, DST, 2) + i3 * nb(node, DST, 3)
            if kind == F32 and p.encoder != 0:
                if source != F32:
                    for i in range(n):
                        store_elem(F32, scratch, i, load_elem(source, x, i))
                    x = scratch
                encode_row(p.encoder, x, y, n)
            else:
                for i in range(n):
                    store_elem(kind, y, i, load_elem(source, x, i))

    return kernel(
        set_rows, f"set_rows_{GGMLType(source).name.lower()}_{GGMLType(kind).name.lower()}"
    )


def _supports_set_rows(node: Tensor) -> bool:
    b, _, a = node.src
    rows = b.is_contiguous_rows() and a.is_contiguous_rows()
    return rows and int(b.type) in (F32, F16) and int(a.type) in (*ENCODED, *ALL_FLOATS)


@lowers("SET_ROWS", _supports_set_rows)
def _lower_set_rows(lowering: CpuLowering, node: Tensor) -> None:
    b, idx, _ = node.src
    blocks = node.type.is_quantized
    kernel = set_rows_kernel(int(b.type), F32 if blocks else int(node.type))
    encoder = row_encoder(int(node.type)).address if blocks else 0
    scratch = 4 * b.ne[0] if blocks and b.type is not GGMLType.F32 else 0
    lowering.launch(
        kernel, node, SetRows(encoder, idx.type.type_size), lowering.row_chunks(b), scratch=scratch
    )
