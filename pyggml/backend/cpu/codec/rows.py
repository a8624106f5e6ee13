"""Rows of blocks to float32, as functions that kernels call by address.

    decode = row_decoder(kind).address             # in a lowering: a parameter of the node
    decode_columns(decode, row, y, n, first)       # in a kernel: columns first .. first + n

A kernel that takes the address of a decoder or encoder need not be compiled for each format. The
encoders are in ``encoders``.
Access: front to back, a block at a time.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from ....compiler.jit import CpuKernel, inline, named_kernel
from ....dtype import GGMLType
from ..abi import f32_ptr
from ..atomics import call_address
from ..simd.element import F32, store_elem
from ..simd.lanes import stack
from ..weights.layout import UNPACKED_BYTES
from .blocks import decode_block, unpack_block

BLOCK_BYTES = 4 * 256  # of the largest block as float32


@cache
def row_decoder(kind: int) -> CpuKernel:
    """The decoder of a format: (row, y, n, first), see ``decode_columns``."""
    block, size = GGMLType(kind).block_size, GGMLType(kind).type_size

    def decode(row, y, n, first):
        part = stack(BLOCK_BYTES)
        column, end = first, first + n
        while column < end:
            start = column // block * block
            stop = min(start + block, end)
            whole = stop - column == block
            out = y + 4 * (column - first)
            decode_block(kind, row + column // block * size, out if whole else part)
            if not whole:
                for i in range(stop - column):
                    store_elem(F32, out, i, f32_ptr(part)[column - start + i])
            column = stop

    return named_kernel(decode, GGMLType(kind).name)


@cache
def row_unpacker(kind: int) -> CpuKernel:
    """Unpacks the blocks of a row of a format with a codebook: (row, blocks, n, 0)."""
    size = GGMLType(kind).type_size

    def unpack_row(row, blocks, n, unused):
        for i in range(n // 256):
            unpack_block(kind, row + size * i, blocks + UNPACKED_BYTES * i)

    return named_kernel(unpack_row, GGMLType(kind).name)


class Decoder(NamedTuple):
    """The values of a kernel that decodes rows."""

    decoder: int  # address of the function that decodes a row of blocks, or 0


@inline
def decode_columns(decoder, row, y, n, first):
    """``n`` columns of a row of blocks from column ``first`` on, as float32 at ``y``."""
    call_address(decoder, (row, y, n, first))


@inline
def encode_row(encoder, x, row, n):
    """``n`` float32 at ``x``, whole blocks, as blocks at ``row``."""
    call_address(encoder, (x, row, n, 0))
