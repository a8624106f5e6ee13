"""CPY, CONT, DUP: copies of any strides and shapes, converting between types.

A chunk is a range of elements in order, copied in runs that end where a row of the source or of
the result ends. Runs without gaps vectorise (or become memcpy); transposed tensors take a scalar
loop. Quantized blocks are converted through float32 in thread scratch and have the bytes of ggml's
reference.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from .....compiler.jit import CpuKernel, inline, kernel
from .....dtype import GGMLType
from .....ops.op import ALL_FLOATS
from .....tensor import Tensor
from ...abi import DST, SRC0, data, f32_ptr, first_row, nb, ne, params_of, row_address
from ...codec import DECODED, ENCODED, row_encoder
from ...codec.rows import decode_columns, encode_row, row_decoder
from ...compile.lowering import GRAIN, CpuLowering, lowers
from ...simd.element import F32, I8, I16, I32, I64, load_elem, store_elem

RAW = {1: I8, 2: I16, 4: I32, 8: I64}  # copies of one type move bits


class CpyArgs(NamedTuple):
    """The values of a copy."""

    flat: int  # no gaps on either side
    elements: int
    coder: int = 0  # address of the function that encodes or decodes blocks
    block: int = 0  # elements of a block, and its bytes
    block_bytes: int = 0


@inline
def _place(node, tensor, e, size):
    """(address, stride in bytes, elements left in the row) of element ``e``."""
    p = params_of(node, CpyArgs)
    if p.flat != 0:
        return data(node, tensor) + e * size, size, p.elements - e
    n = ne(node, tensor, 0)
    row = e // n
    i = e - row * n
    stride = nb(node, tensor, 0)
    return row_address(node, tensor, row) + i * stride, stride, n - i


@cache
def copy_kernel(source: int, kind: int) -> CpuKernel:
    """The kernel that copies elements of type ``source`` into type ``kind``."""
    size_x, size_y = GGMLType(source).type_size, GGMLType(kind).type_size

    def copy(node, chunk, n_chunks, scratch):
        total = params_of(node, CpyArgs).elements
        e, end = first_row(total, chunk, n_chunks), first_row(total, chunk + 1, n_chunks)
        while e < end:
            x, dx, left_x = _place(node, SRC0, e, size_x)
            y, dy, left_y = _place(node, DST, e, size_y)
            n = min(end - e, left_x, left_y)
            if dx == size_x and dy == size_y:
                for i in range(n):
                    store_elem(kind, y, i, load_elem(source, x, i))
            else:
                for i in range(n):
                    store_elem(kind, y + i * dy, 0, load_elem(source, x + i * dx, 0))
            e += n

    return kernel(copy, f"copy_{GGMLType(source).name.lower()}_{GGMLType(kind).name.lower()}")


@cache
def encode_kernel(source: int) -> CpuKernel:
    """The kernel that copies floats into blocks; the result's rows have no gaps."""
    size = GGMLType(source).type_size

    def encode(node, chunk, n_chunks, scratch):
        p = params_of(node, CpyArgs)
        block, block_bytes = p.block, p.block_bytes
        total = p.elements // block
        row_blocks = ne(node, DST, 0) // block
        for b in range(first_row(total, chunk, n_chunks), first_row(total, chunk + 1, n_chunks)):
            done = 0
            while done < block:
                x, dx, left = _place(node, SRC0, b * block + done, size)
                n = min(block - done, left)
                for i in range(n):
                    store_elem(F32, scratch, done + i, load_elem(source, x + i * dx, 0))
                done += n
            row = b // row_blocks
            y = row_address(node, DST, row) + (b - row * row_blocks) * block_bytes
            encode_row(p.coder, scratch, y, block)

    return kernel(encode, f"copy_{GGMLType(source).name.lower()}_blocks")


@cache
def decode_kernel(kind: int) -> CpuKernel:
    """The kernel that copies blocks into floats; the source's rows have no gaps."""
    size = GGMLType(kind).type_size

    def decode(node, chunk, n_chunks, scratch):
        p = params_of(node, CpyArgs)
        block, block_bytes = p.block, p.block_bytes
        total = p.elements // block
        row_blocks = ne(node, SRC0, 0) // block
        for b in range(first_row(total, chunk, n_chunks), first_row(total, chunk + 1, n_chunks)):
            row = b // row_blocks
            x = row_address(node, SRC0, row) + (b - row * row_blocks) * block_bytes
            decode_columns(p.coder, x, scratch, block, 0)
            done = 0
            while done < block:
                y, dy, left = _place(node, DST, b * block + done, size)
                n = min(block - done, left)
                for i in range(n):
                    store_elem(kind, y + i * dy, 0, f32_ptr(scratch)[done + i])
                done += n

    return kernel(decode, f"copy_blocks_{GGMLType(kind).name.lower()}")


def _kernel(source: GGMLType, kind: GGMLType) -> CpuKernel | None:
    """The kernel of a pair of types, None where there is none."""
    if source == kind and not kind.is_quantized and kind.type_size in RAW:
        raw = RAW[kind.type_size]
        return copy_kernel(raw, raw)
    if int(source) in ALL_FLOATS and int(kind) in ENCODED:
        return encode_kernel(int(source))
    if int(source) in DECODED and int(kind) in ALL_FLOATS:
        return decode_kernel(int(kind))
    if {source, kind} <= {*ALL_FLOATS} or {source, kind} == {F32, I32}:
        return copy_kernel(int(source), int(kind))
    return None


def _supports(node: Tensor) -> bool:
    x = node.src[0]
    rows = all(t.is_contiguous_rows() for t in (x, node) if t.type.is_quantized)
    return rows and _kernel(x.type, node.type) is not None


def _lower(lowering: CpuLowering, node: Tensor) -> None:
    x = node.src[0]
    kernel = _kernel(x.type, node.type)
    quantized = x.type.is_quantized or node.type.is_quantized
    flat = not quantized and x.is_contiguous() and node.is_contiguous()
    chunks = max(1, min(node.nelements // GRAIN, 8 * lowering.n_threads))
    params = CpyArgs(flat, node.nelements)
    blocks = x.type if x.type.is_quantized else node.type
    if quantized:
        coder = row_decoder if x.type.is_quantized else row_encoder
        address = coder(int(blocks)).address
        params = CpyArgs(flat, node.nelements, address, blocks.block_size, blocks.type_size)
    lowering.launch(kernel, node, params, chunks, src=(x,), scratch=4 * blocks.block_size)


for _op in ("CPY", "CONT", "DUP"):
    lowers(_op, _supports)(_lower)
