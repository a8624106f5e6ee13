"""Activations as int8 in blocks of 32 or 256: what quantized weights are multiplied with.

    quantize_row(x, out, n)                        # in jitted code: n float32 -> n / 32 blocks
    quantize_super_row(x, out, n)                  # n / 256 blocks
    low.quantized(x, 32, add_quantize)             # in a lowering: made once, where x is computed

A block has as many columns as those of the weights, d = max|x| / 127 and codes q = round(x / d),
ties to even. One of 32 has the values of ggml's Q8_1, d and s = d * sum(q) rounded to half floats,
in 44 bytes: at 0 -8 * sum(q) (int32), where integer sums start whose weights have a zero in the
middle or are raised, at 4 d (float32), at 8 the codes, at 40 s (float32) for minima. One of 256 has
the values of Q8_K, d in float32, and sums (int16) for ``kquant_dot``: 384 bytes with d, at 16
the sums of 32 columns and at 32 those of 16 columns (each four in the order 0 2 1 3), at 64 for 16
columns -32 times the sums of columns 4k, 4k + 1 and of 4k + 2, 4k + 3, at 128 the codes. The bits
are the same wherever the code is compiled into. NaN or inf in a block makes d NaN or inf.
Access: reads and writes front to back, 32 values at a time in vector registers.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ....dtype import GGMLType
from ....jit import Kernel, inline_strict, kernel
from ....tensor import Tensor
from ..abi import SRC0, first_row, ne, nrows, params_of, row_address
from ..layout import ACTIVATION_BYTES, Q8_BLOCK, Q8K_BLOCK
from ..lowering import ALWAYS, Lowering
from ..simd.element import F32, put, take
from ..simd.kquant_dot import CODES, STARTS, SUMS_16, SUMS_32
from ..simd.loop import counted_loop
from ..simd.product import CODES as CODES_32
from ..simd.product import EIGHT_OFF, SCALE, SUM
from ..simd.vector import (
    at,
    broadcast,
    call,
    f32,
    i8,
    i16,
    i32,
    i64,
    load,
    splat,
    store,
    vec,
    vectors,
)
from ..work import WorkRange

BLOCK = 32
_MAGIC = 1.5 * 2.0**23  # adding it leaves the nearest integer in the low bits
_MAGIC_BITS = 0x4B400000
_SMALLEST = 2.0**-120  # a maximum below it has no reciprocal: the codes are 0
_GRAIN = 4096  # elements of a chunk, about


def _magnitudes(b: Any, values: Any) -> Any:
    """As integers they order like floats, and NaN comes last."""
    return b.and_(b.bitcast(values, vec(i32, BLOCK)), splat(i32, BLOCK, 0x7FFFFFFF))


def _largest(b: Any, magnitudes: Any) -> Any:
    return b.bitcast(call(b, f"llvm.vector.reduce.smax.v{BLOCK}i32", i32, magnitudes), f32)


def _inverse(b: Any, largest: Any) -> Any:
    """127 / largest, or 0 where that says nothing."""
    usable = b.fcmp_ordered(">=", largest, ir.Constant(f32, _SMALLEST))
    return b.select(usable, b.fdiv(ir.Constant(f32, 127.0), largest), ir.Constant(f32, 0.0))


def _codes(b: Any, values: Any, inverse: Any) -> Any:
    """<32 x i32>: the nearest integers, with ``_MAGIC_BITS`` too much."""
    scaled = b.fmul(values, broadcast(b, inverse, BLOCK))
    return b.bitcast(b.fadd(scaled, splat(f32, BLOCK, _MAGIC)), vec(i32, BLOCK))


@intrinsic
def _quantize_32(typingctx: Any, x: Any, out: Any) -> Any:
    """32 floats at ``x`` as one block at ``out``; branch-free."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        source, target = args
        values = load(b, source, vec(f32, BLOCK), 4)
        largest = _largest(b, _magnitudes(b, values))
        d = b.fdiv(largest, ir.Constant(f32, 127.0))
        codes = b.trunc(_codes(b, values, _inverse(b, largest)), vec(i8, BLOCK))
        wide = b.sext(codes, vec(i32, BLOCK))  # what is stored, NaN or not
        total = call(b, f"llvm.vector.reduce.add.v{BLOCK}i32", i32, wide)
        v = vectors()
        store(b, b.mul(total, ir.Constant(i32, -8)), at(b, target, EIGHT_OFF), 4)
        store(b, v.round_to_half(b, d), at(b, target, SCALE), 4)
        store(b, v.round_to_half(b, b.fmul(d, b.sitofp(total, f32))), at(b, target, SUM), 4)
        store(b, codes, at(b, target, CODES_32), 4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def _quantize_256(typingctx: Any, x: Any, out: Any) -> Any:
    """256 floats at ``x`` as one block at ``out``."""

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        source, target = args

        def values(i: Any) -> Any:
            return load(b, b.add(source, b.shl(i, ir.Constant(i64, 7))), vec(f32, BLOCK), 4)

        def maximum(i: Any, carried: Any) -> Any:
            x = _magnitudes(b, values(i))
            return [b.select(b.icmp_signed(">", x, carried[0]), x, carried[0])]

        count = ir.Constant(i64, 256 // BLOCK)
        (magnitudes,) = counted_loop(b, count, [splat(i32, BLOCK, 0)], maximum)
        largest = _largest(b, magnitudes)
        inverse = _inverse(b, largest)
        zero, one = ir.Constant(f32, 0.0), ir.Constant(f32, 1.0)
        d = b.fdiv(one, b.fdiv(ir.Constant(f32, 127.0), largest))
        tiny = b.fcmp_ordered("<", largest, ir.Constant(f32, _SMALLEST))
        store(b, b.select(tiny, zero, d), target, 4)

        def encode(i: Any, _: Any) -> Any:
            codes = b.sub(_codes(b, values(i), inverse), splat(i32, BLOCK, _MAGIC_BITS))
            codes = b.trunc(codes, vec(i8, BLOCK))
            store(b, codes, b.add(at(b, target, CODES), b.mul(i, ir.Constant(i64, BLOCK))), 4)
            _store_sums(b, b.sext(codes, vec(i32, BLOCK)), target, i)
            return []

        counted_loop(b, count, [], encode)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


def _store_sums(b: Any, codes: Any, target: Any, i: Any) -> None:
    """The sums of 32 columns, the ``i``-th of a block of 256, in its head at ``target``."""

    def put(value: Any, offset: int, index: Any) -> None:
        place = b.add(at(b, target, offset), b.shl(index, ir.Constant(i64, 1)))
        store(b, b.trunc(value, i16), place)

    def const(value: int) -> Any:
        return ir.Constant(i64, value)

    sums = []
    for first in (0, 2, 16, 18):  # pairs of columns 4k and 4k + 2 of both halves
        lanes = [first + 4 * k + j for k in range(4) for j in range(2)]
        pairs = b.shuffle_vector(codes, codes, ir.Constant(vec(i32, 8), lanes))
        sums.append(call(b, "llvm.vector.reduce.add.v8i32", i32, pairs))
    for k, pair in enumerate(sums):
        start = b.mul(pair, ir.Constant(i32, -32))
        put(start, STARTS, b.add(b.shl(i, const(2)), const(k)))
    halves = [b.add(sums[0], sums[1]), b.add(sums[2], sums[3])]
    low, middle = b.and_(i, const(1)), b.and_(b.lshr(i, const(1)), const(1))
    place = b.or_(b.shl(b.lshr(i, const(1)), const(2)), low)
    put(halves[0], SUMS_16, place)
    put(halves[1], SUMS_16, b.add(place, const(2)))
    place = b.or_(b.or_(b.and_(i, const(4)), b.shl(low, const(1))), middle)
    put(b.add(*halves), SUMS_32, place)


@inline_strict
def quantize_row(x, out, n):  # type: ignore[no-untyped-def]
    """``n`` (a multiple of 32) float32 at address ``x`` as blocks at ``out``."""
    for i in range(n // BLOCK):
        _quantize_32(x + 4 * BLOCK * i, out + Q8_BLOCK * i)


@inline_strict
def quantize_super_row(x, out, n):  # type: ignore[no-untyped-def]
    """``n`` (a multiple of 256) float32 at address ``x`` as blocks at ``out``."""
    for i in range(n // 256):
        _quantize_256(x + 1024 * i, out + Q8K_BLOCK * i)


class Quantize(NamedTuple):
    """The values of a kernel that quantizes activations."""

    out: int  # address of the blocks


@cache
def quantize_kernel(kind: int, columns: int) -> Kernel:
    """Rows of floats; a chunk is a range of blocks, counted over all rows.

    Half floats are widened a block at a time in scratch.
    """
    block_bytes = ACTIVATION_BYTES[columns]

    def quantize(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
        blocks = ne(node, SRC0, 0) // columns
        total = nrows(node, SRC0) * blocks
        out = params_of(node, Quantize).out
        first, end = first_row(total, chunk, n_chunks), first_row(total, chunk + 1, n_chunks)
        while first < end:
            row = first // blocks
            i = first - row * blocks
            x = row_address(node, SRC0, row)
            if kind == F32:
                n = min(blocks - i, end - first)
                x += 4 * columns * i
            else:
                n = 1
                for j in range(columns):
                    put(F32, scratch, j, take(kind, x, columns * i + j))
                x = scratch
            if columns == BLOCK:
                quantize_row(x, out + block_bytes * first, columns * n)
            else:
                quantize_super_row(x, out + block_bytes * first, columns * n)
            first += n

    made = kernel(quantize)
    made.name = f"quantize_{columns}_{GGMLType(kind).name.lower()}"
    return made


def add_quantize(low: Lowering, x: Tensor, columns: int, out: WorkRange) -> None:
    """Launch the quantization of ``x`` (F32, F16 or BF16, rows without gaps) into ``out``."""
    low.launch(
        quantize_kernel(int(x.type), columns),
        x,
        Quantize(out.address),
        min(x.nelements // _GRAIN, 8 * low.n_threads),
        src=(x,),
        writes=out,
        scratch=4 * columns,
        replicate=ALWAYS,
    )
