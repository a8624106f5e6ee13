"""Sums of rows in registers, each row times a float: the inner loops of AXPY.

    axpy_rows(Q4_0, hint, table, n_rows, values, sums, n_groups)   # in jitted code: one token
    decode_row(Q4_0, row, panel, stride, n_groups)             # a row as float32, for many tokens
    axpy_panel(mask, panel, values, sums)                      # one token, one group of columns

A group is 8 vectors of columns. Weights become float32 exactly as ``decode_block`` makes them, and
each column is one chain of multiply-adds, row after row, so both ways give the same bits.
Quantized formats have their columns in an order of their own (``place_of``), in which no column
changes its 128 bits, unless a vector can be looked up in a table of floats (AVX-512).
Access: rows front to back, 8 at a time side by side; sums stay in registers while 8 rows pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ....dtype import GGMLType
from ....jit import inline
from .element import BF16, F16, F32
from .kv_row import CODES, Codes
from .loop import counted_loop, literals_of
from .vector import (
    LINE,
    HardwareFloats,
    at,
    broadcast,
    call,
    concat,
    f32,
    fma,
    i8,
    i16,
    i32,
    i64,
    load,
    prefetch,
    splat,
    store,
    vec,
    vectors,
)  # fmt: skip

Value = Any
VECTORS = 8  # of a group
_BLOCKS = {kind: codes for kind, codes in CODES.items() if not codes.values}
TYPES = tuple(GGMLType(t) for t in (F32, F16, BF16, *_BLOCKS))
_WORD = 4  # lanes that 16 bytes of codes fill


def group_columns() -> int:
    """Columns of a group."""
    return VECTORS * vectors().lanes


def group_bytes(kind: int) -> int:
    """Bytes of a row's columns of a group."""
    return group_columns() // GGMLType(kind).block_size * GGMLType(kind).type_size


def is_ordered(kind: int) -> bool:
    """Whether the sums of a group have an order of their own."""
    return kind in _BLOCKS and vectors().float_table is None


@inline
def place_of(column, columns, ordered):  # type: ignore[no-untyped-def]
    """Where a column of a group is among its sums."""
    if ordered == 0:
        return column
    lanes = columns // VECTORS
    return column % 32 // _WORD * lanes + column // 32 * _WORD + column % _WORD


def _decoded(b: Value, kind: int, address: Value) -> Iterator[Value]:
    """The vectors of a group of a row, one by one."""
    v = vectors()
    lanes = v.lanes
    if kind == F32:
        yield from (load(b, at(b, address, 4 * lanes * k), vec(f32, lanes)) for k in range(VECTORS))
        return
    if kind in (F16, BF16):
        widen = v.load_half if kind == F16 else v.load_bfloat
        yield from (widen(b, at(b, address, 2 * lanes * k)) for k in range(VECTORS))
        return
    if v.float_table is not None:
        yield from _looked_up(b, kind, address)
        return
    size, codes = GGMLType(kind).type_size, _BLOCKS[kind]
    blocks = [at(b, address, size * k) for k in range(lanes // _WORD)]
    d = _halves(b, blocks, 0)
    if codes.bits == 8:
        zero = splat(f32, lanes, 2.0**15 + 128)
        fused = isinstance(v, HardwareFloats)  # a product by itself would be rounded
        minus = b.fmul(b.fneg(zero), d) if fused else None
        for half in range(2):
            signed = _side_by_side(b, blocks, codes.codes_at + 16 * half)
            unsigned = b.xor(signed, splat(i8, 4 * lanes, -128))
            for x in _mantissas(b, unsigned, wide=True):
                yield fma(b, x, d, minus) if fused else b.fmul(b.fsub(x, zero), d)
        return
    words = _side_by_side(b, blocks, codes.codes_at)
    if codes.low:
        offset = _halves(b, blocks, codes.low[0])
    else:
        offset = b.fmul(d, splat(f32, lanes, -(2.0**7) - codes.zero))
    for half in range(2):
        q = b.lshr(words, splat(i8, 4 * lanes, 4)) if half else words
        q = b.and_(q, splat(i8, 4 * lanes, 15))
        if codes.fifth_at >= 0:
            q = b.or_(q, _fifth_bits(b, blocks, codes, half))
        for x in _mantissas(b, q, wide=False):
            yield fma(b, b.fsub(x, splat(f32, lanes, 2.0**7)) if codes.low else x, d, offset)


def _looked_up(b: Value, kind: int, address: Value) -> Iterator[Value]:
    """The columns of each block in order: 4 bits look up one of 16 floats."""
    v = vectors()
    n, size, codes = v.lanes, GGMLType(kind).type_size, _BLOCKS[kind]
    for block in (at(b, address, size * k) for k in range(group_columns() // 32)):
        d = v.half_to_float(b, broadcast(b, load(b, block, i16), n))
        if codes.bits == 8:
            for half in range(2):
                q = load(b, at(b, block, codes.codes_at + 16 * half), vec(i8, n))
                yield b.fmul(b.sitofp(q, vec(f32, n)), d)
            continue
        tables = []
        for high in range(1 + (codes.fifth_at >= 0)):
            numbers = ir.Constant(vec(f32, n), [16 * high + i - codes.zero for i in range(n)])
            if codes.low:
                place = at(b, block, codes.low[0])
                minimum = v.half_to_float(b, broadcast(b, load(b, place, i16), n))
                tables.append(fma(b, numbers, d, minimum))
            else:
                tables.append(b.fmul(numbers, d))
        fifth = load(b, at(b, block, codes.fifth_at), i32) if codes.fifth_at >= 0 else None
        q = b.zext(load(b, at(b, block, codes.codes_at), vec(i8, n)), vec(i32, n))
        for half in range(2):
            index = b.lshr(q, splat(i32, n, 4)) if half else q
            found = [v.float_table(b, table, index) for table in tables]
            if fifth is None:
                yield found[0]
                continue
            bits = b.trunc(b.lshr(fifth, ir.Constant(i32, 16 * half)), i16)
            yield b.select(b.bitcast(bits, vec(ir.IntType(1), n)), found[1], found[0])


def _mantissas(b: Value, codes: Value, *, wide: bool) -> Iterator[Value]:
    """Bytes n as the floats 128 + n (n < 64) or, wide, 32768 + n, four of every 16 a vector.

    A byte in the mantissa of a power of two is a float without a conversion. What that adds is
    taken away, before it is scaled or with the offset: exactly, for both have few digits.
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
    """Of every 128 bits the first or second half of x and of y, in turns."""
    n, mask = x.type.count, []
    for lane in range(0, n, per_lane):
        for i in range(per_lane // 2):
            place = lane + per_lane // 2 * half + i
            mask += [place, n + place]
    return b.shuffle_vector(x, y, ir.Constant(vec(i32, n), mask))


def _fifth_bits(b: Value, blocks: list[Value], codes: Codes, half: int) -> Value:
    """The fifth bits of the columns of a half of each block, as bytes 0 or 16."""
    words = [broadcast(b, load(b, at(b, block, codes.fifth_at), i32), _WORD) for block in blocks]
    bits = concat(b, [b.bitcast(w, vec(i8, 16)) for w in words])
    n = bits.type.count
    spread = [16 * (i // 16) + 2 * half + i % 16 // 8 for i in range(n)]
    bits = b.shuffle_vector(bits, bits, ir.Constant(vec(i32, n), spread))
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
    x = vectors().half_to_float(b, x)
    lanes = [k for k in range(len(blocks)) for _ in range(_WORD)]
    return b.shuffle_vector(
        x, ir.Constant(x.type, ir.Undefined), ir.Constant(vec(i32, len(lanes)), lanes)
    )


def _loaded(b: Value, sums: Value) -> list[Value]:
    lanes = vectors().lanes
    return [load(b, at(b, sums, 4 * lanes * k), vec(f32, lanes)) for k in range(VECTORS)]


def _stored(b: Value, values: Iterable[Value], sums: Value) -> None:
    for k, value in enumerate(values):
        store(b, value, at(b, sums, 4 * vectors().lanes * k))


def _scaled(b: Value, i: Value, by: int) -> Value:
    return b.mul(i, ir.Constant(i64, by))


@intrinsic(prefer_literal=True)
def axpy_rows(
    typingctx: Any, fmt: Any, hint: Any, table: Any, n_rows: Any, values: Any, sums: Any,
    n_groups: Any,
) -> Any:  # fmt: skip
    """``sums += value * row`` for a few rows in order.

    ``table`` has their addresses, then as many of the next rows, which are prefetched with a
    ``hint`` (a literal).
    """
    literals = literals_of(fmt, hint)
    if literals is None:
        return None
    kind, locality = literals

    def codegen(context: Any, b: Value, sig: Any, args: Any) -> Any:
        _, _, table, n_rows, values, sums, n_groups = args
        lanes, size = vectors().lanes, group_bytes(kind)
        following = b.add(table, _scaled(b, n_rows, 8))

        def group(g: Value, _: list[Value]) -> list[Value]:
            offset, total = _scaled(b, g, size), b.add(sums, _scaled(b, g, 4 * group_columns()))

            def row(r: Value, accs: list[Value]) -> list[Value]:
                entry = _scaled(b, r, 8)
                later = b.add(load(b, b.add(following, entry), i64), offset)
                for line in range(0, size, LINE):
                    prefetch(b, at(b, later, line), locality)
                y = broadcast(b, load(b, b.add(values, _scaled(b, r, 4)), f32), lanes)
                w = _decoded(b, kind, b.add(load(b, b.add(table, entry), i64), offset))
                return [fma(b, y, x, acc) for x, acc in zip(w, accs, strict=True)]

            _stored(b, counted_loop(b, n_rows, _loaded(b, total), row), total)
            return []

        counted_loop(b, n_groups, [], group)
        return context.get_dummy_value()

    return types.void(fmt, hint, *[types.int64] * 5), codegen


@intrinsic(prefer_literal=True)
def decode_row(typingctx: Any, fmt: Any, row: Any, panel: Any, stride: Any, n_groups: Any) -> Any:
    """Groups of a row as float32, ``stride`` bytes apart."""
    literals = literals_of(fmt)
    if literals is None:
        return None
    (kind,) = literals

    def codegen(context: Any, b: Value, sig: Any, args: Any) -> Any:
        _, row, panel, stride, n_groups = args

        def group(g: Value, _: list[Value]) -> list[Value]:
            values = _decoded(b, kind, b.add(row, _scaled(b, g, group_bytes(kind))))
            _stored(b, values, b.add(panel, b.mul(g, stride)))
            return []

        counted_loop(b, n_groups, [], group)
        return context.get_dummy_value()

    return types.void(fmt, *[types.int64] * 4), codegen


@intrinsic
def count_bits(typingctx: Any, x: Any) -> Any:
    """The number of ones in an int64."""

    def codegen(context: Any, b: Value, sig: Any, args: Any) -> Any:
        return call(b, "llvm.ctpop.i64", i64, args[0])

    return types.int64(types.int64), codegen


@intrinsic
def axpy_panel(typingctx: Any, mask: Any, panel: Any, values: Any, sums: Any) -> Any:
    """``sums += value * panel[r]`` for the bits r of a mask, in order, each with the next value."""

    def codegen(context: Any, b: Value, sig: Any, args: Any) -> Any:
        mask, panel, values, sums = args
        lanes, zero = vectors().lanes, ir.Constant(i64, 0)
        start = b.block
        carried = [mask, values, *_loaded(b, sums)]
        head, inside, end = (b.append_basic_block(x) for x in ("head", "body", "end"))
        b.branch(head)
        b.position_at_end(head)
        phis = [b.phi(x.type) for x in carried]
        for phi, x in zip(phis, carried, strict=True):
            phi.add_incoming(x, start)
        b.cbranch(b.icmp_unsigned("!=", phis[0], zero), inside, end)
        b.position_at_end(inside)
        left, place, *accs = phis
        r = call(b, "llvm.cttz.i64", i64, left, ir.Constant(ir.IntType(1), 1))
        y = broadcast(b, load(b, place, f32), lanes)
        row = b.add(panel, _scaled(b, r, 4 * group_columns()))
        w = _loaded(b, row)
        after = [b.and_(left, b.sub(left, ir.Constant(i64, 1))), at(b, place, 4)]
        after += [fma(b, y, x, acc) for x, acc in zip(w, accs, strict=True)]
        for phi, x in zip(phis, after, strict=True):
            phi.add_incoming(x, b.block)
        b.branch(head)
        b.position_at_end(end)
        _stored(b, accs, sums)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), codegen
