"""Whole arrays of float32 to blocks and back, on all threads.

    blocks = CpuArrays.encode(x, GGMLType.Q4_K, imatrix, n_threads=None)
    x = CpuArrays.decode(blocks, GGMLType.Q4_K, n_threads=None)

``pyggml.quants`` calls it for large arrays. A program of one launch, so Ctrl-C stops it, and the
compute of another thread waits. Access: front to back, a block at a time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .... import host
from ....cgraph import CGraph
from ....compiler.jit import CpuKernel, inline_strict, kernel
from ....context import Context
from ....dtype import GGMLType, row_size
from ....quants import BLOCK_TYPES
from ....quants.block import Bytes, Floats, row_weights
from ....quants.reference import reference_quantize
from ..abi import BAD_VALUE, DST, data, f32_ptr, first_row, params_of, set_error
from ..atomics import call_address
from ..compile.lowering import CpuLowering
from ..compile.program import PhaseTable
from ..compile.work import WorkMemory, WorkStore
from ..run.pool import get_pool
from ..selftest import ensure_isa
from ..simd.lanes import bits, lanes_f32, mask_bits, sqrt, store
from ..simd.math import ZERO
from . import ENCODED, row_encoder
from .rows import decode_columns, encode_row, row_decoder

_GRAIN = 16384  # elements of a chunk, about
_MAX_CHUNKS = 4096
_INFINITY = np.int32(0x7F800000)  # bits that are all set in infinity and NaN


class Rows(NamedTuple):
    """The values of a kernel that converts rows."""

    source: int  # address
    count: int
    row: int  # values of a row
    row_bytes: int
    codec: int  # address of the format's encoder or decoder
    imatrix: int = 0  # address of importance weights
    by_row: int = 0  # whether they are those of ``row_weights``


@inline_strict
def _is_finite(x, n):
    """Whether ``n`` float32, a multiple of 32, are all numbers."""
    for i in range(0, 4 * n, 128):
        if mask_bits((bits(lanes_f32(32, x + i)) & _INFINITY) == _INFINITY) != 0:
            return False
    return True


@kernel
def encode_rows(node, chunk, n_chunks, scratch):
    """Encode rows; reports values that are not finite."""
    p = params_of(node, Rows)
    rows, n, row_bytes = p.count, p.row, p.row_bytes
    for r in range(first_row(rows, chunk, n_chunks), first_row(rows, chunk + 1, n_chunks)):
        x = p.source + 4 * n * r
        if not _is_finite(x, n):
            set_error(node, BAD_VALUE)
            return
        encode_row(p.codec, x, data(node, DST) + row_bytes * r, n)


@kernel
def encode_weighted_rows(node, chunk, n_chunks, scratch):
    """``encode_rows`` with importance weights; see ``quants.block.row_weights`` for the sums."""
    p = params_of(node, Rows)
    rows, n, row_bytes = p.count, p.row, p.row_bytes
    imatrix = p.imatrix
    for r in range(first_row(rows, chunk, n_chunks), first_row(rows, chunk + 1, n_chunks)):
        x = p.source + 4 * n * r
        if not _is_finite(x, n):
            set_error(node, BAD_VALUE)
            return
        weights = imatrix
        if p.by_row != 0:
            power = ZERO
            for i in range(n):
                power += f32_ptr(x)[i] * f32_ptr(x)[i]
            power = power / np.float32(n)
            for i in range(0, 4 * n, 32):
                v = lanes_f32(8, x + i)
                store(scratch + i, lanes_f32(8, imatrix + i) * sqrt(v * v + power))
            weights = scratch
        call_address(p.codec, (x, data(node, DST) + row_bytes * r, n, weights))


@kernel
def decode_to_array(node, chunk, n_chunks, scratch):
    """Decode rows."""
    p = params_of(node, Rows)
    rows, n, row_bytes = p.count, p.row, p.row_bytes
    for r in range(first_row(rows, chunk, n_chunks), first_row(rows, chunk + 1, n_chunks)):
        x = p.source + row_bytes * r
        decode_columns(p.codec, x, data(node, DST) + 4 * n * r, n, 0)


class CpuArrays:
    """Implements ``quants.arrays.ArrayCodec``."""

    @staticmethod
    def encode(x: Floats, type: GGMLType, imatrix: Floats | None, n_threads: int | None) -> Bytes:
        """Rows [n_rows, n], n whole blocks, as bytes. Raises: Aborted, ComputeError."""
        if int(type) not in ENCODED:
            return reference_quantize(x, type, imatrix)
        out = np.empty((len(x), row_size(type, x.shape[1])), np.uint8)
        weighted = None if imatrix is None else row_encoder(int(type), weighted=True)
        if weighted is None:
            _ArrayRows(x, out, x.size, type).run(encode_rows, row_encoder(int(type)), n_threads)
        else:
            extra = (int(imatrix.ctypes.data), int(BLOCK_TYPES[type].weigh is row_weights))
            rows = _ArrayRows(x, out, x.size, type, x.shape[1])
            rows.run(encode_weighted_rows, weighted, n_threads, extra)
        return out

    @staticmethod
    def decode(blocks: Bytes, type: GGMLType, n_threads: int | None) -> Floats:
        """Blocks as values, flat. Raises: Aborted."""
        n = blocks.size // type.type_size * type.block_size
        out = np.empty(n, np.float32)
        _ArrayRows(blocks, out, n, type).run(decode_to_array, row_decoder(int(type)), n_threads)
        return out


@dataclass
class _ArrayRows:
    """A conversion of ``n`` values in rows of ``length``; 0: rows of any length."""

    source: npt.NDArray[Any]
    out: npt.NDArray[Any]
    n: int
    type: GGMLType
    length: int = 0

    def run(
        self, made: CpuKernel, codec: CpuKernel, n_threads: int | None, extra: tuple[int, ...] = ()
    ) -> None:
        """Compute on the pool."""
        ensure_isa()
        n_threads = host.default_threads() if n_threads is None else max(1, n_threads)
        length = self.length or math.gcd(self.n, _GRAIN)
        rows = self.n // length
        result = Context(no_alloc=True).new_tensor_1d(GGMLType.I8, self.out.nbytes)
        result.data = int(self.out.ctypes.data)
        chunks = max(1, min(self.n // _GRAIN, rows, _MAX_CHUNKS))
        lowering = CpuLowering(CGraph(), n_threads, WorkMemory(WorkStore()))
        source, row_bytes = int(self.source.ctypes.data), row_size(self.type, length)
        params = Rows(source, rows, length, row_bytes, codec.address, *extra)
        lowering.launch(made, result, params, chunks, src=(), scratch=4 * length)
        pool = get_pool()
        pool.run(PhaseTable(lowering, pool.error_slot))
