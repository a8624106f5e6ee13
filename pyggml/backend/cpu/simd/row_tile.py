"""The register tile of plain rows for one token, and plain rows packed for the tile of many.

    set_row_pointers(table, base, stride, first, end)    # in jitted code: 16 rows from ``first``
    row_tiles(Q4_0, table, n_rows, x, out, n)      # rows times one token, one float each at out
    pack_rows(F16, table, n, out)                  # 16 rows as an interleaved group

A row's sum has the order of ``tile``, so all have the same bits. Access: see ``plain_rows``.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ....dtype import GGMLType
from ....jit import inline
from ..abi import i64_ptr
from ..layout import (
    ACTIVATION_BYTES,
    K_TYPES,
    Q8_BLOCK,
    QUANTIZED,
    ROWS,
    block_bytes,
    source_bytes,
)
from .kquant_dot import KDot
from .kquant_pack import RowsKBlock
from .loop import counted_loop, literals_of
from .plain_rows import (
    Columns,
    Floats,
    RowsBlock,
    addresses,
    prefetch_share,
    walk_blocks,
    walk_columns,
)
from .product import BlockDot
from .vector import LINE, at, broadcast, f32, fma, i8, i64, load, splat, store, vectors

Value = Any
TABLE_BYTES = 8 * 2 * ROWS  # addresses of a group of rows and of the next


@inline
def set_row_pointers(table, base, stride, first, end):  # type: ignore[no-untyped-def]
    """The addresses of rows from ``first`` on, of two groups; the last row again behind ``end``."""
    addresses = i64_ptr(table)
    for r in range(2 * ROWS):
        addresses[r] = base + min(first + r, end - 1) * stride


@intrinsic(prefer_literal=True)
def row_tiles(typingctx: Any, fmt: Any, table: Any, n_rows: Any, x: Any, out: Any, n: Any) -> Any:
    """``n_rows`` rows of ``n`` columns times one token: int8 blocks, or float32 for float rows.

    ``table`` has the addresses of the rows and of as many more as a multiple of 16 takes, then of
    the 16 that come next; ``out`` has room for a multiple of 16 results.
    """
    literals = literals_of(fmt)
    if literals is None:
        return None
    (kind,) = literals
    emit = _quantized_rows if kind in QUANTIZED else _float_rows
    emit = _k_rows if kind in K_TYPES else emit

    def codegen(context: Any, b: Value, sig: Any, args: Any) -> Any:
        _, table, n_rows, x, out, n = args
        unit = vectors().lanes if emit is _quantized_rows else ROWS

        def some(i: Value, _: list[Value]) -> list[Value]:
            first = b.mul(i, ir.Constant(i64, unit))
            rows = b.add(table, b.shl(first, ir.Constant(i64, 3)))
            emit(b, kind, rows, x, b.add(out, b.shl(first, ir.Constant(i64, 2))), n)
            return []

        up = b.add(n_rows, ir.Constant(i64, unit - 1))
        counted_loop(b, b.lshr(up, ir.Constant(i64, unit.bit_length() - 1)), [], some)
        return context.get_dummy_value()

    return types.void(fmt, *[types.int64] * 5), codegen


def _quantized_rows(b: Value, kind: int, table: Value, x: Value, out: Value, n: Value) -> None:
    """A vector of rows."""
    lanes = vectors().lanes

    def use(block: RowsBlock, i: Value, accs: list[Value]) -> list[Value]:
        act = b.add(x, b.mul(i, ir.Constant(i64, Q8_BLOCK)))
        return [BlockDot(b, block, [act]).accumulate(b, accs[0], 0, 0)]

    (acc,) = walk_blocks(b, kind, table, n, [splat(f32, lanes, 0.0)], use)
    store(b, acc, out)


def _k_rows(b: Value, kind: int, table: Value, x: Value, out: Value, n: Value) -> None:
    """16 rows, which are packed block by block."""
    v = vectors()
    with b.goto_entry_block():
        memory = b.alloca(ir.ArrayType(i8, block_bytes(kind)))
        memory.align = LINE
    packed = b.ptrtoint(memory, i64)
    rows = addresses(b, table, ROWS)
    size, columns = source_bytes(kind), GGMLType(kind).block_size
    n_blocks = b.lshr(n, ir.Constant(i64, columns.bit_length() - 1))
    last = b.sub(b.mul(n_blocks, ir.Constant(i64, size)), ir.Constant(i64, 1))

    def block(i: Value, accs: list[Value]) -> list[Value]:
        prefetch_share(b, at(b, table, 8 * ROWS), ROWS, i, size, last)
        offset = b.mul(i, ir.Constant(i64, size))
        for p in range(v.parts):
            some = rows[v.lanes * p : v.lanes * (p + 1)]
            RowsKBlock(b, kind, some, offset).pack(b, packed, p)
        act = b.add(x, b.mul(i, ir.Constant(i64, ACTIVATION_BYTES[columns])))
        dot = KDot(b, kind, packed, [act], lambda step: None)
        return [dot.accumulate(b, acc, 0, p) for p, acc in enumerate(accs)]

    zeros = [splat(f32, v.lanes, 0.0)] * v.parts
    for p, acc in enumerate(counted_loop(b, n_blocks, zeros, block)):
        store(b, acc, at(b, out, 4 * v.lanes * p))


def _float_rows(b: Value, kind: int, table: Value, x: Value, out: Value, n: Value) -> None:
    v = vectors()

    def use(column: list[Value], i: Value, accs: list[Value]) -> list[Value]:
        act = load(b, b.add(x, b.shl(i, ir.Constant(i64, 2))), f32)
        a = broadcast(b, act, v.lanes)
        return [fma(b, w, a, acc) for w, acc in zip(column, accs, strict=True)]

    zeros = [splat(f32, v.lanes, 0.0)] * v.parts
    for p, acc in enumerate(walk_columns(b, Floats(kind), table, n, zeros, use)):
        store(b, acc, at(b, out, 4 * v.lanes * p))


@intrinsic(prefer_literal=True)
def pack_rows(typingctx: Any, fmt: Any, table: Any, n: Any, out: Any) -> Any:
    """16 rows of ``n`` columns as one interleaved group at ``out``; ``table``: see above."""
    literals = literals_of(fmt)
    if literals is None:
        return None
    (kind,) = literals

    def codegen(context: Any, b: Value, sig: Any, args: Any) -> Any:
        _, table, n, out = args
        if GGMLType(kind) in QUANTIZED:
            for p in range(vectors().parts):
                _pack_blocks(b, kind, table, n, out, p)
            return context.get_dummy_value()
        bits = Columns(kind)

        def use(column: Value, i: Value, _: list[Value]) -> list[Value]:
            store(b, column, b.add(out, b.mul(i, ir.Constant(i64, ROWS * bits.size))))
            return []

        walk_columns(b, bits, table, n, [], use)
        return context.get_dummy_value()

    return types.void(fmt, *[types.int64] * 3), codegen


def _pack_blocks(b: Value, kind: int, table: Value, n: Value, out: Value, p: int) -> None:
    """Part ``p`` of all blocks."""

    def use(block: RowsBlock, i: Value, _: list[Value]) -> list[Value]:
        block.pack(b, b.add(out, b.mul(i, ir.Constant(i64, block_bytes(kind)))), p)
        return []

    walk_blocks(b, kind, at(b, table, 8 * vectors().lanes * p), n, [], use)
