"""Whole arrays of float32 to blocks and back, on all threads.

    blocks = CpuArrays.encode(x, GGMLType.Q4_K, imatrix, n_threads=None)
    x = CpuArrays.decode(blocks, GGMLType.Q4_K, n_threads=None)

What ``pyggml.quants`` calls for arrays that are not small. A program of one launch, so Ctrl-C stops
it, and a compute of another thread waits. Access: front to back, a block at a time.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from ....cgraph import CGraph
from ....context import Context
from ....dtype import GGMLType, row_size
from ....jit import Kernel, inline_strict, kernel
from ....quants.block import BLOCK_TYPES, Floats, row_weights
from ..abi import BAD_VALUE, DST, data, f32_ptr, first_row, int_param, set_error
from ..backend import CpuBackend
from ..lowering import Lowering
from ..pool import get_pool
from ..program import Program
from ..simd.lanes import bits, lanes_f32, mask_bits, root, store
from ..simd.math import ZERO
from ..work import WorkMemory, WorkStore
from . import CODECS, decode_block, encode_block, encode_weighted

Bytes = npt.NDArray[np.uint8]
SOURCE, COUNT, IMATRIX, ROW = range(4)  # parameters: addresses, blocks or rows, columns
_GRAIN = 16384  # elements of a chunk, about
_MAX_CHUNKS = 4096
_INFINITY = np.int32(0x7F800000)  # the bits that are all set in what is not finite


@inline_strict
def _is_finite(x, n):  # type: ignore[no-untyped-def]
    """Whether ``n`` float32, a multiple of 32, are all numbers."""
    for i in range(0, 4 * n, 128):
        if mask_bits((bits(lanes_f32(32, x + i)) & _INFINITY) == _INFINITY) != 0:
            return False
    return True


@cache
def encode_array(kind: int) -> Kernel:
    """The kernel that encodes blocks, and reports what is not finite."""
    block, size = GGMLType(kind).block_size, GGMLType(kind).type_size

    def encode(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
        total, source, out = int_param(node, COUNT), int_param(node, SOURCE), data(node, DST)
        for i in range(first_row(total, chunk, n_chunks), first_row(total, chunk + 1, n_chunks)):
            x = source + 4 * block * i
            if not _is_finite(x, block):
                set_error(node, BAD_VALUE)
                return
            encode_block(kind, x, out + size * i)

    made = kernel(encode)
    made.name = f"encode_{GGMLType(kind).name.lower()}"
    return made


@inline_strict
def _row_weights(x, imatrix, power, n, out):  # type: ignore[no-untyped-def]
    """See ``quants.block.row_weights``; of a block of the row."""
    for i in range(0, 4 * n, 32):
        v = lanes_f32(8, x + i)
        store(out + i, lanes_f32(8, imatrix + i) * root(v * v + power))


@cache
def encode_weighted_array(kind: int) -> Kernel:
    """The kernel that encodes rows with importance weights, and reports what is not finite."""
    block, size = GGMLType(kind).block_size, GGMLType(kind).type_size
    by_row = BLOCK_TYPES[GGMLType(kind)].weigh is row_weights

    def encode(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
        rows, n, imatrix = int_param(node, COUNT), int_param(node, ROW), int_param(node, IMATRIX)
        for r in range(first_row(rows, chunk, n_chunks), first_row(rows, chunk + 1, n_chunks)):
            x = int_param(node, SOURCE) + 4 * n * r
            out = data(node, DST) + n // block * size * r
            if not _is_finite(x, n):
                set_error(node, BAD_VALUE)
                return
            power = ZERO
            if by_row:
                for i in range(n):
                    power += f32_ptr(x)[i] * f32_ptr(x)[i]
                power = power / np.float32(n)
            for i in range(n // block):
                at, weights = 4 * block * i, imatrix + 4 * block * i
                if by_row:
                    _row_weights(x + at, weights, power, block, scratch)
                    weights = scratch
                encode_weighted(kind, x + at, weights, out + size * i)

    made = kernel(encode)
    made.name = f"encode_weighted_{GGMLType(kind).name.lower()}"
    return made


@cache
def decode_array(kind: int) -> Kernel:
    """The kernel that decodes blocks."""
    block, size = GGMLType(kind).block_size, GGMLType(kind).type_size

    def decode(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
        total, source, y = int_param(node, COUNT), int_param(node, SOURCE), data(node, DST)
        for i in range(first_row(total, chunk, n_chunks), first_row(total, chunk + 1, n_chunks)):
            decode_block(kind, source + size * i, y + 4 * block * i)

    made = kernel(decode)
    made.name = f"decode_{GGMLType(kind).name.lower()}"
    return made


class CpuArrays:
    """Implements ``quants.arrays.ArrayCodec``."""

    @staticmethod
    def encode(x: Floats, type: GGMLType, imatrix: Floats | None, n_threads: int | None) -> Bytes:
        """Rows [n_rows, n], n whole blocks, as bytes. Raises: Aborted, ComputeError."""
        n_rows, n = x.shape
        out = np.empty((n_rows, row_size(type, n)), np.uint8)
        source, kind = int(x.ctypes.data), int(type)
        if imatrix is None or CODECS[kind].encode_weighted is None:
            params = [source, x.size // type.block_size]
            _run(encode_array(kind), params, x.size, out, n_threads)
        else:
            params = [source, n_rows, int(imatrix.ctypes.data), n]
            _run(encode_weighted_array(kind), params, x.size, out, n_threads)
        return out

    @staticmethod
    def decode(blocks: Bytes, type: GGMLType, n_threads: int | None) -> Floats:
        """Blocks as values, flat. Raises: Aborted."""
        count = blocks.size // type.type_size
        out = np.empty(count * type.block_size, np.float32)
        params = [int(blocks.ctypes.data), count]
        _run(decode_array(int(type)), params, out.size, out, n_threads)
        return out


def _run(
    made: Kernel, params: list[int], n: int, out: npt.NDArray[np.generic], n_threads: int | None
) -> None:
    backend = CpuBackend(n_threads)
    low = Lowering(CGraph(), backend.n_threads, WorkMemory(WorkStore()))
    result = Context(no_alloc=True).new_tensor_1d(GGMLType.I8, out.nbytes)
    result.data = int(out.ctypes.data)
    chunks = max(1, min(n // _GRAIN, params[COUNT], _MAX_CHUNKS))
    low.launch(made, result, params, chunks, src=(), scratch=4 * 256)
    backend.run(Program(low, get_pool().error_slot))
