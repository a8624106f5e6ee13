"""Sums of rows in registers, each row times a float: the inner loops of AXPY.

    axpy_rows(Q4_0, hint, 4, table, n_rows, values, sums, stride, n_groups)   # a few tokens
    decode_row(Q4_0, row, panel, stride, n_groups)             # a row as float32, for many tokens
    axpy_panel(mask, panel, values, sums)                      # one token, one group of columns

A group is 8 vectors of columns. Weights become float32 with the bits of ``decode_block``, and each
column is one chain of multiply-adds, row after row, so all ways give the same bits.
Sums of quantized formats are in another order than the columns (``place_of``), so that decoding
moves nothing across 128-bit lanes; with a table of floats (AVX-512) they are in order.
Access: rows side by side, front to back; the sums of a group of columns stay in registers while
the rows pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from llvmlite import ir
from numba import types

from ....compiler.jit import inline, intrinsic_from_ir
from ....dtype import GGMLType
from ....rounding import ceil_div
from .isa import fma, load_floats, vectors, widen
from .kv_row import BLOCKS
from .vector import (
    BF16,
    F16,
    F32,
    LINE,
    HardwareFloats,
    at,
    broadcast,
    broadcast_f32,
    call,
    concat,
    const,
    counted_loop,
    f32,
    for_range,
    i8,
    i16,
    i32,
    i64,
    item_at,
    lanes_of,
    load,
    prefetch_lines,
    splat,
    store,
    times,
    vec,
    when,
    while_loop,
)

Value = Any
VECTORS = 8  # of a group
_BLOCKS = {kind: layout for kind, layout in BLOCKS.items() if not layout.values}
TYPES = tuple(GGMLType(t) for t in (F32, F16, BF16, *_BLOCKS))
_WORD = 4  # lanes that 16 bytes of codes fill


def group_columns() -> int:
    """Columns of a group."""
    return VECTORS * vectors().lanes


def group_bytes(kind: int) -> int:
    """Bytes of a row's columns of a group."""
    return group_columns() // GGMLType(kind).block_size * GGMLType(kind).type_size


def is_ordered(kind: int) -> bool:
    """Whether the sums of a group are in the order of ``place_of``."""
    return kind in _BLOCKS and vectors().float_table is None


@inline
def place_of(column, columns, ordered):
    """The place of a column of a group among its sums."""
    if ordered == 0:
        return column
    lanes = columns // VECTORS
    return column % 32 // _WORD * lanes + column // 32 * _WORD + column % _WORD


def _decoded(b: Value, kind: int, address: Value) -> Iterator[Value]:
    """Yield the vectors of a group of a row as float32."""
    v = vectors()
    lanes = v.lanes
    if kind not in _BLOCKS:
        size = GGMLType(kind).type_size * lanes
        yield from (load_floats(b, kind, at(b, address, size * k), lanes) for k in range(VECTORS))
        return
    if v.float_table is not None:
        yield from _looked_up(b, kind, address)
        return
    size, layout = GGMLType(kind).type_size, _BLOCKS[kind]
    f, codes_at = layout.f, layout.main.byte
    blocks = [at(b, address, size * k) for k in range(lanes // _WORD)]
    d = _halves(b, blocks, f.d[0].byte)
    if layout.main.width == 8:
        zero = splat(f32, lanes, 2.0**15 + 128)
        fused = isinstance(v, HardwareFloats)  # else the product would be rounded
        minus = b.fmul(b.fneg(zero), d) if fused else None
        for half in range(2):
            signed = _side_by_side(b, blocks, codes_at + 16 * half)
            unsigned = b.xor(signed, splat(i8, 4 * lanes, -128))
            for x in _mantissas(b, unsigned, wide=True):
                yield fma(b, x, d, minus) if fused else b.fmul(b.fsub(x, zero), d)
        return
    words = _side_by_side(b, blocks, codes_at)
    if f.low:
        offset = _halves(b, blocks, f.low[0].byte)
    else:
        offset = b.fmul(d, splat(f32, lanes, -(2.0**7) - f.zero))
    for half in range(2):
        q = b.lshr(words, splat(i8, 4 * lanes, 4)) if half else words
        q = b.and_(q, splat(i8, 4 * lanes, 15))
        for fifth_bits in layout.upper:
            q = b.or_(q, _fifth_bits(b, blocks, fifth_bits.byte, half))
        for x in _mantissas(b, q, wide=False):
            yield fma(b, b.fsub(x, splat(f32, lanes, 2.0**7)) if f.low else x, d, offset)


def _looked_up(b: Value, kind: int, address: Value) -> Iterator[Value]:
    """Yield the columns of each block in order: 4 bits look up one of 16 floats."""
    v = vectors()
    n, size, layout = v.lanes, GGMLType(kind).type_size, _BLOCKS[kind]
    f, codes_at = layout.f, layout.main.byte
    for block in (at(b, address, size * k) for k in range(group_columns() // 32)):
        d, *minimum = (
            widen(b, F16, broadcast(b, load(b, at(b, block, bits.byte), i16), n))
            for bits in (*f.d, *f.low)
        )
        if layout.main.width == 8:
            for half in range(2):
                q = load(b, at(b, block, codes_at + 16 * half), vec(i8, n))
                yield b.fmul(b.sitofp(q, vec(f32, n)), d)
            continue
        tables = []
        for high in range(1 + len(layout.upper)):
            numbers = ir.Constant(vec(f32, n), [16 * high + i - f.zero for i in range(n)])
            tables.append(fma(b, numbers, d, *minimum) if minimum else b.fmul(numbers, d))
        fifths = [load(b, at(b, block, bits.byte), i32) for bits in layout.upper]
        q = b.zext(load(b, at(b, block, codes_at), vec(i8, n)), vec(i32, n))
        for half in range(2):
            index = b.lshr(q, splat(i32, n, 4)) if half else q
            found, *raised = [v.float_table(b, table, index) for table in tables]
            for fifth, x in zip(fifths, raised, strict=True):
                bits = b.trunc(b.lshr(fifth, ir.Constant(i32, 16 * half)), i16)
                found = b.select(b.bitcast(bits, vec(ir.IntType(1), n)), x, found)
            yield found


def _mantissas(b: Value, codes: Value, *, wide: bool) -> Iterator[Value]:
    """Yield bytes n as the floats 128 + n (n < 64) or, wide, 32768 + n, four of every 16 a vector.

    A byte in the mantissa of a power of two is a float without a conversion. The power of two is
    subtracted before the float is scaled, or with the offset; both are exact.
    """
    n = codes.type.count
    zero, high = splat(i8, n, 0), splat(i8, n, 0x43)
    exponent, zeros = splat(i16, n // 2, 0x4700), splat(i16, n // 2, 0)
    for half in range(2):
        pair = (zero, codes) if wide else (codes, high)
        x = b.bitcast(_interleaved(b, *pair, 16, half), vec(i16, n // 2))
        for quarter in range(2):
            pair = (x, exponent) if wide else (zeros, x)
            yield b.bitcast(_interleaved(b, *pair, 8, quarter), vec(f32, n // 4))


def _interleaved(b: Value, x: Value, y: Value, per_lane: int, half: int) -> Value:
    """Interleave the first or second halves of every 128 bits of x and y."""
    n, mask = x.type.count, []
    for lane in range(0, n, per_lane):
        for i in range(per_lane // 2):
            place = lane + per_lane // 2 * half + i
            mask += [place, n + place]
    return lanes_of(b, x, y, mask)


def _fifth_bits(b: Value, blocks: list[Value], byte: int, half: int) -> Value:
    """The fifth bits of the columns of a half of each block, as bytes 0 or 16."""
    words = [broadcast(b, load(b, at(b, block, byte), i32), _WORD) for block in blocks]
    bits = concat(b, [b.bitcast(w, vec(i8, 16)) for w in words])
    n = bits.type.count
    spread = [16 * (i // 16) + 2 * half + i % 16 // 8 for i in range(n)]
    bits = lanes_of(b, bits, bits, spread)
    mask = ir.Constant(vec(i8, n), [1 << i % 8 for i in range(n)])
    found = b.icmp_unsigned("!=", b.and_(bits, mask), splat(i8, n, 0))
    return b.select(found, splat(i8, n, 16), splat(i8, n, 0))


def _side_by_side(b: Value, blocks: list[Value], offset: int) -> Value:
    """16 bytes of each block."""
    return concat(b, [load(b, at(b, block, offset), vec(i8, 16)) for block in blocks])


def _halves(b: Value, blocks: list[Value], offset: int) -> Value:
    """A half float of each block, in the lanes of its words."""
    x = ir.Constant(vec(i16, len(blocks)), ir.Undefined)
    for k, block in enumerate(blocks):
        x = b.insert_element(x, load(b, at(b, block, offset), i16), ir.Constant(i32, k))
    x = widen(b, F16, x)
    return lanes_of(b, x, x, (k for k in range(len(blocks)) for _ in range(_WORD)))


def _loaded(b: Value, sums: Value) -> list[Value]:
    lanes = vectors().lanes
    return [load(b, at(b, sums, 4 * lanes * k), vec(f32, lanes)) for k in range(VECTORS)]


def _stored(b: Value, values: Iterable[Value], sums: Value) -> None:
    for k, value in enumerate(values):
        store(b, value, at(b, sums, 4 * vectors().lanes * k))


@intrinsic_from_ir(literals=3)
def axpy_rows(
    b: Value, kind: int, locality: int, n_tokens: int, table: Value, n_rows: Value, values: Value,
    sums: Value, stride: Value, n_groups: Value,
) -> None:  # fmt: skip
    """``sums[t] += values[r][t] * row[r]`` for rows in order and a few tokens.

    A row is decoded once and added to the sums of each token whose value is not 0; of a single
    token, no value is. ``table`` has the rows' addresses, then as many of the next rows, which are
    prefetched with LLVM's locality ``locality``. The sums of tokens are ``stride`` bytes apart. A
    group of columns is added in as many passes as its sums need to fit registers.
    """
    lanes, size = vectors().lanes, group_bytes(kind)
    fitting = (16 if vectors().width == 64 else 8) // n_tokens
    some = min(VECTORS, 1 << (fitting.bit_length() - 1))  # vectors of a pass
    following = item_at(b, table, n_rows, 8)
    with for_range(b, n_groups) as g:
        offset, total = times(b, g, size), item_at(b, sums, g, 4 * group_columns())
        for first in range(0, VECTORS, some):
            places = [
                at(b, item_at(b, total, t, stride), 4 * lanes * (first + k))
                for t in range(n_tokens)
                for k in range(some)
            ]

            def row(r: Value, accs: list[Value], first: int = first) -> list[Value]:
                entry = times(b, r, 8)
                if first == 0:
                    later = b.add(load(b, b.add(following, entry), i64), offset)
                    prefetch_lines(b, later, ceil_div(size, LINE), locality)
                address = b.add(load(b, b.add(table, entry), i64), offset)
                w = [*islice(_decoded(b, kind, address), first, first + some)]
                after: list[Value] = []
                for t in range(n_tokens):
                    place = at(b, item_at(b, values, r, 4 * n_tokens), 4 * t)
                    mine = accs[some * t : some * (t + 1)]

                    def add(accs: list[Value], place: Value = place) -> list[Value]:
                        y = broadcast_f32(b, place, lanes)
                        return [fma(b, y, x, acc) for x, acc in zip(w, accs, strict=True)]

                    if n_tokens > 1:
                        y = load(b, place, f32)
                        taken = b.fcmp_unordered("!=", y, ir.Constant(f32, 0.0))
                        after += when(b, taken, mine, add)
                    else:
                        after += add(mine)
                return after

            accs = [load(b, place, vec(f32, lanes)) for place in places]
            for place, acc in zip(places, counted_loop(b, n_rows, accs, row), strict=True):
                store(b, acc, place)


@intrinsic_from_ir(literals=1)
def decode_row(
    b: Value, kind: int, row: Value, panel: Value, stride: Value, n_groups: Value,
) -> None:  # fmt: skip
    """Groups of a row as float32, ``stride`` bytes apart."""
    with for_range(b, n_groups) as g:
        values = _decoded(b, kind, item_at(b, row, g, group_bytes(kind)))
        _stored(b, values, item_at(b, panel, g, stride))


@intrinsic_from_ir(result=types.int64)
def count_bits(b: Value, x: Value) -> Value:
    """The number of ones in an int64."""
    return call(b, "llvm.ctpop.i64", i64, x)


@intrinsic_from_ir
def axpy_panel(b: Value, mask: Value, panel: Value, values: Value, sums: Value) -> None:
    """``sums += value * panel[r]`` for the bits r of a mask, in order, each with the next value."""
    lanes = vectors().lanes

    def going(carried: list[Value]) -> Value:
        return b.icmp_unsigned("!=", carried[0], const(0))

    def row(carried: list[Value]) -> list[Value]:
        left, place, *accs = carried
        r = call(b, "llvm.cttz.i64", i64, left, ir.Constant(ir.IntType(1), 1))
        y = broadcast_f32(b, place, lanes)
        w = _loaded(b, item_at(b, panel, r, 4 * group_columns()))
        after = [b.and_(left, b.sub(left, const(1))), at(b, place, 4)]
        return after + [fma(b, y, x, acc) for x, acc in zip(w, accs, strict=True)]

    _, _, *accs = while_loop(b, [mask, values, *_loaded(b, sums)], going, row)
    _stored(b, accs, sums)
