"""Activations as int8 in blocks of 32: what quantized weights are multiplied with.

    quantize_row(x, out, n)                        # in jitted code: n float32 -> n / 32 blocks
    low.quantized(x, add_quantize)                 # in a lowering: made once, where x is computed

A block is 40 bytes: float32 d, float32 s, 32 x int8 q, with d = max|x| / 127, q = round(x / d)
(ties to even) and s = d * sum(q); d and s are then rounded to half floats, as in ggml's Q8_1. The
bits are the same wherever the code is compiled into. NaN or inf in a block makes d NaN or inf.
Access: reads and writes front to back, 32 values at a time in vector registers.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ....dtype import GGMLType
from ....jit import Kernel, inline_strict, kernel
from ....tensor import Tensor
from ..abi import SRC0, first_row, int_param, ne, nrows, row_address
from ..layout import Q8_BLOCK
from ..lowering import Launch, Lowering, byte_range
from ..simd.element import F32, put, take
from ..simd.vector import at, broadcast, call, f32, i8, i32, load, splat, store, vec, vectors
from ..work import WorkRange

BLOCK = 32
_MAGIC = 1.5 * 2.0**23  # adding it leaves the nearest integer in the low bits
_MAGIC_BITS = 0x4B400000
_SMALLEST = 2.0**-120  # a maximum below it has no reciprocal: the codes are 0
_GRAIN = 4096  # elements of a chunk, about


@intrinsic
def _quantize_block(typingctx: Any, x: Any, out: Any) -> Any:
    """32 floats at ``x`` as one block at ``out``; branch-free."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        source, target = args
        lanes = vec(i32, BLOCK)
        values = load(b, source, vec(f32, BLOCK), 4)
        # As integers, magnitudes order like floats and NaN comes last.
        magnitudes = b.and_(b.bitcast(values, lanes), splat(i32, BLOCK, 0x7FFFFFFF))
        largest = b.bitcast(call(b, f"llvm.vector.reduce.smax.v{BLOCK}i32", i32, magnitudes), f32)
        limit = ir.Constant(f32, 127.0)
        d = b.fdiv(largest, limit)
        usable = b.fcmp_ordered(">=", largest, ir.Constant(f32, _SMALLEST))
        inverse = b.select(usable, b.fdiv(limit, largest), ir.Constant(f32, 0.0))
        scaled = b.fmul(values, broadcast(b, inverse, BLOCK))
        codes = b.bitcast(b.fadd(scaled, splat(f32, BLOCK, _MAGIC)), lanes)
        total = call(b, f"llvm.vector.reduce.add.v{BLOCK}i32", i32, codes)
        total = b.sub(total, ir.Constant(i32, (BLOCK * _MAGIC_BITS) & 0xFFFFFFFF))
        v = vectors()
        store(b, v.round_to_half(b, d), target, 4)
        store(b, v.round_to_half(b, b.fmul(d, b.sitofp(total, f32))), at(b, target, 4), 4)
        store(b, b.trunc(codes, vec(i8, BLOCK)), at(b, target, 8), 4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@inline_strict
def quantize_row(x, out, n):  # type: ignore[no-untyped-def]
    """``n`` (a multiple of 32) float32 at address ``x`` as blocks at ``out``."""
    for i in range(n // BLOCK):
        _quantize_block(x + 4 * BLOCK * i, out + Q8_BLOCK * i)


@kernel
def quantize_q8(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
    """Rows of a float32 tensor; a chunk is a range of blocks, counted over all rows."""
    blocks = ne(node, SRC0, 0) // BLOCK
    total = nrows(node, SRC0) * blocks
    out = int_param(node, 0)
    first, end = first_row(total, chunk, n_chunks), first_row(total, chunk + 1, n_chunks)
    while first < end:
        row = first // blocks
        column = first - row * blocks
        n = min(blocks - column, end - first)
        x = row_address(node, SRC0, row) + 4 * BLOCK * column
        quantize_row(x, out + Q8_BLOCK * first, BLOCK * n)
        first += n


@cache
def quantize_half_kernel(kind: int) -> Kernel:
    """``quantize_q8`` of half-float rows, widened a block at a time in scratch."""

    def quantize_half(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
        blocks = ne(node, SRC0, 0) // BLOCK
        total = nrows(node, SRC0) * blocks
        out = int_param(node, 0)
        for i in range(first_row(total, chunk, n_chunks), first_row(total, chunk + 1, n_chunks)):
            row = i // blocks
            x = row_address(node, SRC0, row)
            first = BLOCK * (i - row * blocks)
            for j in range(BLOCK):
                put(F32, scratch, j, take(kind, x, first + j))
            quantize_row(scratch, out + Q8_BLOCK * i, BLOCK)

    made = kernel(quantize_half)
    made.name = f"quantize_q8_{GGMLType(kind).name.lower()}"
    return made


def add_quantize(low: Lowering, x: Tensor, out: WorkRange) -> None:
    """Launch the quantization of ``x`` (F32, F16 or BF16, rows without gaps) into ``out``."""
    launch = Launch(
        quantize_q8 if x.type is GGMLType.F32 else quantize_half_kernel(int(x.type)),
        x,
        [out.address],
        max(1, min(x.nelements // _GRAIN, 8 * low.n_threads)),
        x,
        (x,),
        [byte_range(x)],
        [out.use(len(low.launches))],
    )
    low.scratch_bytes = max(low.scratch_bytes, 4 * BLOCK)
    low.launches.append(launch)
