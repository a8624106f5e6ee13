"""Activations quantized to int8 in blocks of 32 or 256, for quantized weights; widened; or split.

    quantize_row(x, out, n)                        # in jitted code: n float32 -> n / 32 blocks
    quantize_super_row(x, out, n)                  # n / 256 blocks
    low.quantized(x, 32, add_quantize)             # in a lowering: made once, where x is computed
    widened(lowering, x)                                # F16 or BF16 as float32, for float weights
    split(lowering, x)                             # as parts of bfloat16, for a matrix unit

A block has as many columns as those of the weights, d = max|x| / 127 and codes q = round(x / d),
ties to even. A NaN or inf in a block makes d NaN or inf.

A block of 32 has the values of ggml's Q8_1: d, and s = d * sum(q), are rounded to half floats.

    byte 0   int32    -8 * sum(q): initial value of the integer sums for formats with a zero point
                      or an offset of 128
         4   float32  d
         8   int8     32 codes
        40   float32  s, for formats with a minimum

A block of 256 has the values of ggml's Q8_K, with d in float32, and sums for ``KDot``:

    byte 0   float32  d
        16   int16    sums of 32 columns          (each four in the order 0 2 1 3)
        32   int16    sums of 16 columns          (each four in the order 0 2 1 3)
        64   int16    for 16 columns, -32 times the sums of columns 4k, 4k + 1 and of 4k + 2, 4k + 3
       128   int8     256 codes

The bits are the same in every kernel that inlines this code.
Access: reads and writes front to back, 32 values at a time in vector registers.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from llvmlite import ir

from ....compiler.jit import CpuKernel, inline_strict, intrinsic_from_ir, kernel
from ....dtype import GGMLType
from ....tensor import Tensor
from ..abi import SRC0, first_row, ne, nrows, params_of, row_address
from ..compile.lowering import ANY_CHUNKS, CpuLowering
from ..compile.work import WorkRange
from ..simd.block_dot import CODES_32, CODES_256, EIGHT_OFF, SCALE, STARTS, SUM, SUMS_16, SUMS_32
from ..simd.element import F32, load_elem, store_elem
from ..simd.isa import vectors
from ..simd.matrix_unit import SPARE_TOKENS, split_row, split_row_bytes
from ..simd.vector import (
    at,
    broadcast,
    call,
    counted_loop,
    f32,
    i8,
    i16,
    i32,
    i64,
    load,
    splat,
    store,
    vec,
)
from ..weights.layout import ACTIVATION_BYTES, Q8_BLOCK, Q8K_BLOCK

BLOCK = 32
_MAGIC = 1.5 * 2.0**23  # adding it leaves the nearest integer in the low bits
_MAGIC_BITS = 0x4B400000
_SMALLEST = 2.0**-120  # of a smaller maximum the reciprocal overflows: codes are 0
_GRAIN = 4096  # elements of a chunk, about


def _magnitudes(b: Any, values: Any) -> Any:
    """The magnitudes' bits: they order like the floats, and NaN comes last."""
    return b.and_(b.bitcast(values, vec(i32, BLOCK)), splat(i32, BLOCK, 0x7FFFFFFF))


def _largest(b: Any, magnitudes: Any) -> Any:
    return b.bitcast(call(b, f"llvm.vector.reduce.smax.v{BLOCK}i32", i32, magnitudes), f32)


def _inverse(b: Any, largest: Any) -> Any:
    """127 / largest, or 0 if that is not finite."""
    usable = b.fcmp_ordered(">=", largest, ir.Constant(f32, _SMALLEST))
    return b.select(usable, b.fdiv(ir.Constant(f32, 127.0), largest), ir.Constant(f32, 0.0))


def _codes(b: Any, values: Any, inverse: Any) -> Any:
    """The nearest integers plus ``_MAGIC_BITS``, <32 x i32>."""
    scaled = b.fmul(values, broadcast(b, inverse, BLOCK))
    return b.bitcast(b.fadd(scaled, splat(f32, BLOCK, _MAGIC)), vec(i32, BLOCK))


@intrinsic_from_ir
def _scale_32(b: Any, source: Any, target: Any) -> None:
    """Store the scale of 32 floats, not rounded yet, and its inverse in the block at ``target``."""
    largest = _largest(b, _magnitudes(b, load(b, source, vec(f32, BLOCK), 4)))
    store(b, b.fdiv(largest, ir.Constant(f32, 127.0)), at(b, target, SCALE), 4)
    store(b, _inverse(b, largest), at(b, target, SUM), 4)


@intrinsic_from_ir
def _encode_32(b: Any, source: Any, target: Any) -> None:
    """32 floats at ``source`` as one block at ``target``, which has their scale; branch-free."""
    values = load(b, source, vec(f32, BLOCK), 4)
    d, inverse = (load(b, at(b, target, offset), f32, 4) for offset in (SCALE, SUM))
    codes = b.trunc(_codes(b, values, inverse), vec(i8, BLOCK))
    wide = b.sext(codes, vec(i32, BLOCK))  # the codes as stored, also of NaN
    total = call(b, f"llvm.vector.reduce.add.v{BLOCK}i32", i32, wide)
    v = vectors()
    store(b, b.mul(total, ir.Constant(i32, -8)), at(b, target, EIGHT_OFF), 4)
    store(b, v.round_to_half(b, d), at(b, target, SCALE), 4)
    store(b, v.round_to_half(b, b.fmul(d, b.sitofp(total, f32))), at(b, target, SUM), 4)
    store(b, codes, at(b, target, CODES_32), 4)


@intrinsic_from_ir
def _quantize_256(b: Any, source: Any, target: Any) -> None:
    """256 floats at ``source`` as one block at ``target``."""

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
        store(b, codes, b.add(at(b, target, CODES_256), b.mul(i, ir.Constant(i64, BLOCK))), 4)
        _store_sums(b, b.sext(codes, vec(i32, BLOCK)), target, i)
        return []

    counted_loop(b, count, [], encode)


def _store_sums(b: Any, codes: Any, target: Any, i: Any) -> None:
    """Store the sums of part ``i`` of a block of 256, 32 columns, in its head at ``target``."""

    def store_sum(value: Any, offset: int, index: Any) -> None:
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
        store_sum(start, STARTS, b.add(b.shl(i, const(2)), const(k)))
    halves = [b.add(sums[0], sums[1]), b.add(sums[2], sums[3])]
    low, middle = b.and_(i, const(1)), b.and_(b.lshr(i, const(1)), const(1))
    place = b.or_(b.shl(b.lshr(i, const(1)), const(2)), low)
    store_sum(halves[0], SUMS_16, place)
    store_sum(halves[1], SUMS_16, b.add(place, const(2)))
    place = b.or_(b.or_(b.and_(i, const(4)), b.shl(low, const(1))), middle)
    store_sum(b.add(*halves), SUMS_32, place)


@inline_strict
def quantize_blocks(x, x_stride, out, out_stride, n):
    """``n`` times 32 float32 as blocks; the strides, in bytes, are from one to the next.

    Two loops: in one, a CPU would wait for a block's scale before it gets to the next blocks.
    """
    for i in range(n):
        _scale_32(x + i * x_stride, out + i * out_stride)
    for i in range(n):
        _encode_32(x + i * x_stride, out + i * out_stride)


@inline_strict
def quantize_row(x, out, n):
    """``n`` (a multiple of 32) float32 at address ``x`` as blocks at ``out``."""
    quantize_blocks(x, 4 * BLOCK, out, Q8_BLOCK, n // BLOCK)


@inline_strict
def quantize_super_row(x, out, n):
    """``n`` (a multiple of 256) float32 at address ``x`` as blocks at ``out``."""
    for i in range(n // 256):
        _quantize_256(x + 1024 * i, out + Q8K_BLOCK * i)


class Converted(NamedTuple):
    """The values of a kernel that quantizes or widens activations."""

    out: int  # address of the result


@cache
def quantize_kernel(kind: int, columns: int) -> CpuKernel:
    """Rows of floats; a chunk is a range of blocks, counted over all rows.

    Half floats are widened a block at a time in scratch.
    """
    block_bytes = ACTIVATION_BYTES[columns]

    def quantize(node, chunk, n_chunks, scratch):
        blocks = ne(node, SRC0, 0) // columns
        total = nrows(node, SRC0) * blocks
        out = params_of(node, Converted).out
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
                    store_elem(F32, scratch, j, load_elem(kind, x, columns * i + j))
                x = scratch
            if columns == BLOCK:
                quantize_row(x, out + block_bytes * first, columns * n)
            else:
                quantize_super_row(x, out + block_bytes * first, columns * n)
            first += n

    return kernel(quantize, f"quantize_{columns}_{GGMLType(kind).name.lower()}")


def add_quantize(lowering: CpuLowering, x: Tensor, columns: int, out: WorkRange) -> None:
    """Launch the quantization of ``x`` (F32, F16 or BF16, rows without gaps) into ``out``."""
    lowering.launch(
        quantize_kernel(int(x.type), columns),
        x,
        Converted(out.address),
        min(x.nelements // _GRAIN, 8 * lowering.n_threads),
        src=(x,),
        writes=out,
        scratch=4 * columns,
        replicate=ANY_CHUNKS,
    )


@cache
def widen_kernel(kind: int) -> CpuKernel:
    """The kernel of a half-float type."""

    def widen(node, chunk, n_chunks, scratch):
        n, total = ne(node, SRC0, 0), nrows(node, SRC0)
        for row in range(first_row(total, chunk, n_chunks), first_row(total, chunk + 1, n_chunks)):
            x, y = row_address(node, SRC0, row), params_of(node, Converted).out + 4 * n * row
            for i in range(n):
                store_elem(F32, y, i, load_elem(kind, x, i))

    return kernel(widen, f"widen_{GGMLType(kind).name.lower()}")


def widened(lowering: CpuLowering, x: Tensor) -> WorkRange:
    """``x`` (F16 or BF16, rows without gaps) as float32 without gaps, made once."""
    key = ("widened", x)
    known = lowering.known(key, x)
    if known is not None:
        return known
    out, made = lowering.take(4 * x.nelements), widen_kernel(int(x.type))
    lowering.launch(made, x, Converted(out.address), lowering.row_chunks(x), src=(x,), writes=out)
    return lowering.remember(key, out)


class SplitRows(NamedTuple):
    """The values of a kernel that splits activations."""

    out: int  # address of the result
    row_bytes: int


@cache
def split_kernel(kind: int) -> CpuKernel:
    """The kernel of a type of float."""

    def split(node, chunk, n_chunks, scratch):
        n, total, p = ne(node, SRC0, 0), nrows(node, SRC0), params_of(node, SplitRows)
        for row in range(first_row(total, chunk, n_chunks), first_row(total, chunk + 1, n_chunks)):
            split_row(kind, row_address(node, SRC0, row), n, p.out + row * p.row_bytes)

    return kernel(split, f"split_{GGMLType(kind).name.lower()}")


def split(lowering: CpuLowering, x: Tensor) -> tuple[WorkRange, int]:
    """``x`` (floats, rows without gaps) in the parts that a matrix unit multiplies, made once.

    Returns:
        The memory, and the bytes of a row.
    """
    key, row_bytes = ("split", x), split_row_bytes(x.ne[0])
    known = lowering.known(key, x)
    if known is not None:
        return known, row_bytes
    out = lowering.take(row_bytes * (x.nrows + SPARE_TOKENS))
    lowering.launch(
        split_kernel(int(x.type)),
        x,
        SplitRows(out.address, row_bytes),
        lowering.row_chunks(x),
        src=(x,),
        writes=out,
        replicate=ANY_CHUNKS,
    )
    return lowering.remember(key, out), row_bytes
