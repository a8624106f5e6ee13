"""Decoding and packing of blocks in jitted code, emitted from the declaration of their format.

    decode_block(kind, block, y)                   # kind: a GGMLType as a literal int
    put_codes(kind, codes, block)                  # bytes 0 .. 2^bits - 1, one for each column
    unpack_block(kind, block, out)                 # of a format with a codebook, see ``layout``
    get_block(kind, group, lane, i, out)           # block i of row ``lane`` as ggml's bytes
    decode_k_block(kind, block, lane, y)           # one of 256 columns as float32

The last two read a row of an interleaved group.

Values have the bits of ``BlockType.dequantize_blocks``: a scale times a sub-scale is exact, so is
that times a code. All arguments but the kind are addresses, of any alignment.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types

from ....compiler.jit import intrinsic_from_ir
from ....dtype import GGMLType
from ....quants import BLOCK_TYPES
from ....quants.block import E4M3_UNIT, SUB, Bits, BlockType, Field, count, is_highest, places
from ....quants.codebook import Entries, levels_of
from ....quants.ternary import Digits
from ..simd.block_dot import byte_in_lines, moved, power_of_two
from ..simd.isa import load_floats, vectors, widen
from ..simd.transpose import gather_bits
from ..simd.vector import (
    F16,
    at,
    broadcast,
    concat,
    const,
    f32,
    for_range,
    i8,
    i16,
    i32,
    i64,
    item_at,
    lanes_of,
    like,
    load,
    shifted,
    splat,
    store,
    times,
    vec,
    zeroed_stack,
)
from ..weights.layout import (
    CODES_AT,
    COLUMNS,
    LINE,
    QUANTIZED,
    ROWS,
    STEP,
    STEPS,
    STEPS_AT,
    UNPACKED_BYTES,
    LayoutK,
    block_bytes,
    is_folded,
    layout_32,
    layout_k,
    padded_values,
    pieces,
)

Value = Any


@intrinsic_from_ir(literals=1)
def decode_block(b: Value, kind: int, block: Value, y: Value) -> None:
    """Store the block at ``block`` as float32 at ``y``."""
    emit_decoding(b, BLOCK_TYPES[kind], block, y)


@intrinsic_from_ir(literals=1)
def unpack_block(b: Value, kind: int, block: Value, out: Value) -> None:
    """Store a block of a format with a codebook as scale, steps and a byte for each code."""
    _unpack(b, BLOCK_TYPES[kind], block, out)


@intrinsic_from_ir(literals=1)
def put_codes(b: Value, kind: int, codes: Value, block: Value) -> None:
    """Store a byte for each column as the codes of a block; bits above the code's must be 0."""
    f = BLOCK_TYPES[kind]
    if isinstance(f.codes, Digits):
        _put_digits(b, f.codes, codes, block)
    else:
        _put(b, [(f.planes, codes)], block)


@intrinsic_from_ir(literals=1)
def put_steps(b: Value, kind: int, steps: Value, minima: Value, block: Value) -> None:
    """Store a byte for each sub-block as its integer scale, and as its minimum if it has one.

    As in C, a value that is too large for its bits changes the other bits of its byte.
    """
    f = BLOCK_TYPES[kind]
    _put(b, [(f.steps, steps), (f.minima, minima)], block)


@intrinsic_from_ir(literals=1)
def get_scales(b: Value, kind: int, block: Value, scales: Value, minima: Value) -> None:
    """Store the scales and the minima of a block's sub-blocks as float32."""
    scale, low = _scales(b, BLOCK_TYPES[kind], block)
    store(b, scale, scales)
    if low is not None:
        store(b, low, minima)


@intrinsic_from_ir(literals=1, result=types.int64)
def values_of(b: Value, kind: int) -> Value:
    """The address of the 16 int8 that a format's codes stand for."""
    f = BLOCK_TYPES[kind]
    return _constant(b, f"pyggml.values.{f.type.name}", np.asarray(padded_values(f), np.int8))


@intrinsic_from_ir(literals=1, result=types.int64)
def value_limits(b: Value, kind: int) -> Value:
    """The address of float32 limits: from limit i on, value i + 1 is nearer than value i."""
    f = BLOCK_TYPES[kind]
    values = np.array(f.values, np.float32)
    limits = (values[1:] + values[:-1]) / np.float32(2)
    return _constant(b, f"pyggml.limits.{f.type.name}", limits)


def _constant(b: Value, name: str, values: npt.NDArray[Any]) -> Value:
    """The address of constant bytes in the compiled code."""
    made = b.module.globals.get(name)
    if made is None:
        data = bytearray(values.tobytes())
        made = ir.GlobalVariable(b.module, ir.ArrayType(i8, len(data)), name)
        made.linkage, made.global_constant, made.align = "internal", True, 64
        made.initializer = ir.Constant(made.value_type, data)
    return b.ptrtoint(made, i64)


# --- decoding ---


def emit_decoding(b: Value, f: BlockType, block: Value, y: Value) -> None:
    """A block as float32 at ``y``."""
    if isinstance(f.codes, Entries):
        unpacked = zeroed_stack(b, UNPACKED_BYTES)
        _unpack(b, f, block, unpacked)
        f, block = layout_k(f.type).source, unpacked
    scale, low = _scales(b, f, block)
    planes, codes_at = f.planes, block
    if isinstance(f.codes, Digits):
        planes, codes_at = (Bits(8, 0, (f.columns,), (8,)),), zeroed_stack(b, f.columns)
        _store_digits(b, f.codes, block, codes_at)
    per_step = max(1, SUB * f.groups // f.columns)

    def of_columns(x: Value, first: int) -> Value:
        """The lanes of a vector of sub-blocks that 32 columns belong to."""
        group = first * f.groups // f.columns
        lanes = [group + i * per_step // SUB for i in range(SUB)]
        return lanes_of(b, x, x, lanes)

    for first in range(0, f.columns, SUB):
        codes = _lanes(b, planes, codes_at, first, SUB)
        if f.signed:
            value = b.sitofp(b.sext(codes, vec(i32, SUB)), vec(f32, SUB))
        else:
            value = code_numbers(b, padded_values(f), f.zero, codes)
        value = b.fmul(of_columns(scale, first), value)
        if low is not None:
            value = (b.fsub if f.minima else b.fadd)(value, of_columns(low, first))
        store(b, value, at(b, y, 4 * first))


def code_numbers(b: Value, values: tuple[int, ...], zero: int, codes: Value) -> Value:
    """The numbers of 32 codes, <32 x float>: entries of a table of 16 int8, or codes - zero."""
    if not values:
        found = b.sub(b.zext(codes, vec(i32, STEP)), splat(i32, STEP, zero))
        return b.sitofp(found, vec(f32, STEP))
    v = vectors()
    if v.width > STEP:
        parts = [v.look_up(b, values, lanes_of(b, codes, codes, range(v.width)))]
        parts = [lanes_of(b, parts[0], parts[0], range(STEP))]
    else:
        lanes = [range(first, first + v.width) for first in range(0, STEP, v.width)]
        parts = [v.look_up(b, values, lanes_of(b, codes, codes, some)) for some in lanes]
    return b.sitofp(
        parts[0] if len(parts) == 1 else lanes_of(b, *parts, range(STEP)), vec(f32, STEP)
    )


def _scales(b: Value, f: BlockType, block: Value) -> tuple[Value, Value | None]:
    """Scale and minimum of each sub-block, <groups x float>."""
    n = f.groups
    d = _scale(b, f, block)
    low = _half(b, f.low, block, n) if f.low else None
    if f.steps:
        steps = _lanes(b, f.steps, block, 0, n)
        if f.step_zero:
            steps = b.sub(steps, splat(i8, n, f.step_zero))
        is_signed = f.signed_steps or f.step_zero
        steps = (b.sext if is_signed else b.zext)(steps, vec(i32, n))
        d = b.fmul(d, b.sitofp(steps, vec(f32, n)))
    if low is not None and f.minima:
        minima = b.zext(_lanes(b, f.minima, block, 0, n), vec(i32, n))
        low = b.fmul(low, b.sitofp(minima, vec(f32, n)))
    return d, low


def _scale(b: Value, f: BlockType, block: Value) -> Value:
    """A block's scale for each sub-block, <groups x float>."""
    n = f.groups
    if f.scale == "f16":
        d = _half(b, f.d, block, n)
        return b.fmul(d, splat(f32, n, f.unit)) if f.unit != 1 else d
    if f.scale == "ue4m3":
        byte = b.zext(_lanes(b, f.d, block, 0, n), vec(i32, n))
        small = b.bitcast(b.shl(b.and_(byte, splat(i32, n, 127)), splat(i32, n, 20)), vec(f32, n))
        value = b.fmul(small, splat(f32, n, float(E4M3_UNIT)))
        is_nan = b.icmp_unsigned("==", byte, splat(i32, n, 0x7F))
        return b.select(is_nan, splat(f32, n, 0.0), value)
    bits = _element(b, f.d, block, 0)
    if f.scale == "f32":
        return broadcast(b, b.bitcast(bits, f32), n)
    return power_of_two(b, broadcast(b, b.trunc(bits, i8), n))


def _half(b: Value, field: Field, block: Value, n: int = 1) -> Value:
    bits = b.trunc(_element(b, field, block, 0), i16)
    return widen(b, F16, broadcast(b, bits, n))


def _lanes(b: Value, field: Field, block: Value, first: int, n: int) -> Value:
    """Elements ``first`` .. of a field of at most 8 bits, <n x i8>."""
    whole = [x for x in field if x.first <= first and first + n <= x.first + x.n]
    if len(whole) < len(field):
        out = ir.Constant(vec(i8, n), ir.Undefined)
        for i in range(n):
            x = b.trunc(_element(b, field, block, first + i), i8)
            out = b.insert_element(out, x, ir.Constant(i32, i))
        return out
    parts = [_plane(b, x, block, first, n) for x in field]
    out = parts[0]
    for x in parts[1:]:
        out = b.or_(out, x)
    return out


def _plane(b: Value, bits: Bits, block: Value, first: int, n: int) -> Value:
    """The contribution of some bits to elements ``first`` .., <n x i8>."""
    where = places(bits)[first - bits.first : first - bits.first + n].tolist()
    run = len(list(takewhile(lambda i: where[i] == where[0] + 8 * i, range(n))))
    runs = where[::run]
    if bits.width == 1 and where == list(range(where[0], where[0] + n)) and where[0] % 8 == 0:
        word = load(b, at(b, block, where[0] // 8), ir.IntType(n))
        x = b.zext(b.bitcast(word, vec(ir.IntType(1), n)), vec(i8, n))
    elif run > 1 and where == [p + 8 * i for p in runs for i in range(run)]:
        x = concat(b, [load(b, at(b, block, p // 8), vec(i8, run)) for p in runs])
        down = [p % 8 for p in runs for _ in range(run)]
        x = b.lshr(x, ir.Constant(vec(i8, n), down)) if any(down) else x
        if min(down) + bits.width < 8:
            x = b.and_(x, splat(i8, n, (1 << bits.width) - 1))
    else:
        x = ir.Constant(vec(i8, n), ir.Undefined)
        for i in range(n):
            y = b.trunc(_bits(b, bits, block, first + i), i8)
            x = b.insert_element(x, y, ir.Constant(i32, i))
    return shifted(b, x, bits.shift)


def _element(b: Value, field: Field, block: Value, i: int) -> Value:
    """Element ``i`` of a field, an i32."""
    out = None
    for bits in field:
        if i in bits.elements:
            x = _bits(b, bits, block, i)
            x = shifted(b, x, bits.shift)
            out = x if out is None else b.or_(out, x)
    return out


def _bits(b: Value, bits: Bits, block: Value, i: int) -> Value:
    """The value of some bits of element ``i``, an i32."""
    where = int(places(bits)[i - bits.first])
    place, down = at(b, block, where // 8), where % 8
    n_bytes = (down + bits.width + 7) // 8
    x = load(b, place, ir.IntType(8 * n_bytes))
    x = b.zext(x, i32) if n_bytes < 4 else x
    x = shifted(b, x, -down)
    whole = down + bits.width == 8 * n_bytes
    return x if whole else b.and_(x, ir.Constant(i32, (1 << bits.width) - 1))


def _store_digits(b: Value, digits: Digits, block: Value, out: Value) -> None:
    """Digits of base 3 as a byte each."""
    done = 0
    for first, n, n_digits in digits.parts:
        x = load(b, at(b, block, first), vec(i8, n))
        for k in range(n_digits):
            moved = b.zext(b.mul(x, splat(i8, n, 3**k)), vec(i16, n))
            digit = b.lshr(b.mul(moved, splat(i16, n, 3)), splat(i16, n, 8))
            store(b, b.trunc(digit, vec(i8, n)), at(b, out, done))
            done += n


def _unpack(b: Value, f: BlockType, block: Value, out: Value) -> None:
    """Scale, steps, and a byte for each code: a level with its sign above."""
    codes = f.codes
    assert isinstance(codes, Entries)
    store(b, b.trunc(_element(b, f.d, block, 0), i16), out)
    steps = _lanes(b, f.steps, block, 0, f.groups)
    one = splat(i8, f.groups, 1)
    store(b, b.or_(b.shl(steps, one), one), at(b, out, STEPS_AT))
    n = codes.entry_columns
    levels = _constant(b, f"pyggml.levels.{f.type.name}", levels_of(f.type))
    masks = ir.Constant(vec(i8, n), [1 << j for j in range(n)])
    sign = splat(i8, n, codes.levels)
    for i in range(count(codes.entries)):
        if n * i % 8 == 0:
            signs = _signs(b, codes, block, n * i // 8)
        else:
            signs = b.lshr(signs, ir.Constant(i32, n))
        entry = b.zext(_element(b, codes.entries, block, i), i64)
        level = load(b, b.add(levels, b.mul(entry, ir.Constant(i64, n))), vec(i8, n))
        minus = b.and_(broadcast(b, b.trunc(signs, i8), n), masks)
        minus = b.icmp_unsigned("!=", minus, splat(i8, n, 0))
        code = b.or_(level, b.select(minus, sign, splat(i8, n, 0)))
        store(b, code, at(b, out, CODES_AT + n * i))


def _signs(b: Value, codes: Entries, block: Value, i: int) -> Value:
    """The signs of eight columns, the low bits of an i32."""
    x = _element(b, codes.signs, block, i)
    if codes.sign_bits == 1:
        return b.mul(x, ir.Constant(i32, 255))
    if codes.sign_bits == 7:
        odd = x
        for by in (4, 2, 1):
            odd = b.xor(odd, b.lshr(odd, ir.Constant(i32, by)))
        odd = b.and_(odd, ir.Constant(i32, 1))
        x = b.or_(x, b.shl(odd, ir.Constant(i32, 7)))
    return x


# --- rows of an interleaved group ---


@intrinsic_from_ir(literals=1)
def get_block(b: Value, kind: int, group: Value, lane: Value, i: Value, out: Value) -> None:
    """Store block ``i`` of row ``lane`` as ggml's bytes (one value for F16, BF16 and F32).

    Of formats with blocks of up to 32 columns.
    """
    block = item_at(b, group, i, block_bytes(kind))

    def copy(offset: int, size: int, target: int, gathered: bool = False) -> None:
        """``size`` bytes of the row."""
        place = item_at(b, at(b, block, offset), lane, size)
        x = load(b, place, ir.IntType(8 * size))
        if gathered:
            x = b.bitcast(gather_bits(b, b.bitcast(x, vec(i32, 1))), i32)
        store(b, x, at(b, out, target))

    if kind not in QUANTIZED:
        copy(0, GGMLType(kind).type_size, 0)
        return None
    layout = layout_32(kind)
    copy(0, layout.scale_bytes, layout.f.d[0].byte)
    for bits in layout.f.low:
        copy(ROWS * layout.scale_bytes, 2, bits.byte)
    for plane in layout.planes:
        for k in range(plane.width):
            place = layout.plane_at(plane) + LINE * k
            copy(place, 4, plane.byte + 4 * k, gathered=not is_folded(plane))


@intrinsic_from_ir(literals=1)
def decode_k_block(b: Value, kind: int, block: Value, lane: Value, y: Value) -> None:
    """Store row ``lane`` of an interleaved block as 256 float32."""
    f = layout_k(kind)
    row = item_at(b, block, lane, 4)
    words_at = at(b, row, 2 * ROWS * f.halves)
    lines_of = [words_at, at(b, words_at, LINE * f.scale_lines if f.minimum_lines else 0)]
    first_half = item_at(b, block, lane, 2)
    halves = [_scale_k(b, f, at(b, first_half, 2 * ROWS * k)) for k in range(f.halves)]

    def factors(i: Value, which: int) -> Value:
        def byte(j: Value) -> Value:
            x = load(b, b.add(lines_of[which], byte_in_lines(b, j)), i8)
            if not f.is_shared:
                return x
            return shifted(b, x, -4) if which else b.and_(x, like(x, 15))

        return _factors(b, f, halves[which], i, byte)

    with for_range(b, const(STEPS)) as i:
        lines = item_at(b, at(b, row, f.codes_at), i, LINE * f.bits)
        loaded = [load(b, at(b, lines, LINE * j), vec(i8, 4)) for j in range(f.bits)]
        slices = [splat(i8, 4, 0)] * 8
        for piece in pieces(f.bits):
            x = moved(b, loaded[piece.line], piece)
            slices[piece.slice] = b.or_(slices[piece.slice], x)
        codes = ir.Constant(vec(i32, 8), ir.Undefined)
        for k, four in enumerate(slices):
            codes = b.insert_element(codes, b.bitcast(four, i32), ir.Constant(i32, k))
        scale = factors(i, 0)
        codes = b.bitcast(codes, vec(i8, STEP))
        value = b.fmul(scale, code_numbers(b, f.values, f.zero, codes))
        value = b.fsub(value, factors(i, 1)) if f.minima else value
        store(b, value, item_at(b, y, i, 4 * STEP))


def _scale_k(b: Value, f: LayoutK, place: Value) -> Value:
    """A half float of a block, in the format's unit."""
    value = b.extract_element(load_floats(b, F16, place, 1), ir.Constant(i32, 0))
    return b.fmul(value, ir.Constant(f32, f.unit)) if f.unit != 1 else value


def _factors(b: Value, f: LayoutK, d: Value, i: Value, byte: Callable[[Value], Value]) -> Value:
    """<32 x float>: ``d`` times the bytes of the sub-blocks of step ``i``, where there are any."""
    if f.sub == COLUMNS:
        return broadcast(b, d, STEP)
    n = STEP // f.sub
    found = []
    for k in range(n):
        x = byte(at(b, times(b, i, n), k))
        x = b.sitofp(x, f32) if f.signed else b.uitofp(x, f32)
        found.append(broadcast(b, b.fmul(d, x), f.sub))
    return found[0] if n == 1 else lanes_of(b, *found, range(STEP))


# --- packing ---


class _Part(NamedTuple):
    """The contribution of an element to a byte of a block: ``(x >> down & mask) << up``."""

    source: int
    element: int
    down: int
    up: int
    mask: int


def _put(b: Value, sources: list[tuple[Field, Value]], block: Value) -> None:
    """Store the bytes of fields, whose values are a byte each at their addresses."""
    parts: dict[int, list[_Part]] = {}
    for k, (field, values) in enumerate(sources):
        for bits in field:
            where = places(bits).tolist()
            n = bits.n
            if bits.width == 1 and n >= 8 and where == list(range(where[0], where[0] + n)):
                x = load(b, at(b, values, bits.first), vec(i8, n))
                x = b.lshr(x, splat(i8, n, bits.shift))
                mask = b.bitcast(b.trunc(x, vec(ir.IntType(1), n)), ir.IntType(n))
                store(b, mask, at(b, block, where[0] // 8))
                continue
            mask = 255 if is_highest(field, bits) else (1 << bits.width) - 1
            for i, p in enumerate(where):
                part = _Part(k, bits.first + i, bits.shift, p % 8, mask)
                parts.setdefault(p // 8, []).append(part)
    done = -1
    for byte in sorted(parts):
        if byte <= done:
            continue
        n = 1
        while n < SUB and parts.get(byte + n) == [
            p._replace(element=p.element + n) for p in parts[byte]
        ]:
            n += 1
        n = 1 << n.bit_length() - 1
        out = None
        for p in parts[byte]:
            x = load(b, at(b, sources[p.source][1], p.element), vec(i8, n))
            x = shifted(b, x, -p.down)
            x = b.and_(x, like(x, p.mask)) if p.mask < 255 else x
            x = shifted(b, x, p.up)
            out = x if out is None else b.or_(out, x)
        store(b, out, at(b, block, byte))
        done = byte + n - 1


def _put_digits(b: Value, digits: Digits, codes: Value, block: Value) -> None:
    """Codes 0, 1 and 2 as digits of base 3."""
    done = 0
    for first, n, n_digits in digits.parts:
        q = splat(i16, n, 0)
        for k in range(5):
            q = b.mul(q, splat(i16, n, 3))
            if k < n_digits:
                code = load(b, at(b, codes, done + n * k), vec(i8, n))
                q = b.add(q, b.zext(code, vec(i16, n)))
        q = b.add(b.mul(q, splat(i16, n, 256)), splat(i16, n, 242))
        q = b.udiv(q, splat(i16, n, 243))
        store(b, b.trunc(q, vec(i8, n)), at(b, block, first))
        done += n * n_digits
