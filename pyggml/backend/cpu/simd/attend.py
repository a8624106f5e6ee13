"""Attention's inner loops: scores and weighted values, straight from cells or from packed chunks.

    score_cells(F16, 3, q, q_stride, keys, nb, cells, n, d, scores, s_stride)    # few rows
    score_tile(4, q, q_stride, packed_keys, d, scores, s_stride)                 # 16 packed keys

A score is eight partial sums (element i goes to sum i % 8, in order), added as (0+4 + 2+6) +
(1+5 + 3+7): the one form does it across a register, the other across keys, and the bits are equal.
``cells`` is int64[n], the row of each key.
Access: rows of keys and values front to back, once for all query rows of a call.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .tile import F16, counted_loop, literals_of
from .vector import at, broadcast, f32, fma, i16, i32, i64, load, splat, store, vec, vectors

Value = Any
LANES = 8  # partial sums of a score
_VALUES = 32  # columns of values that one pass keeps in registers


def _load(b: Value, kind: int, address: Value) -> Value:
    """Eight elements as float32."""
    if kind == F16:
        return vectors().half_to_float(b, load(b, address, vec(i16, LANES)))
    return load(b, address, vec(f32, LANES))


def _total(b: Value, x: Value) -> Value:
    """The eight partial sums of a register in the order that the module promises."""
    while x.type.count > 1:
        n = x.type.count
        halves = [
            b.shuffle_vector(x, x, ir.Constant(vec(i32, n // 2), list(range(h, h + n // 2))))
            for h in (0, n // 2)
        ]
        x = b.fadd(*halves)
    return b.extract_element(x, ir.Constant(i32, 0))


def _scaled(b: Value, i: Value, factor: int | Value) -> Value:
    return b.mul(i, ir.Constant(i64, factor) if isinstance(factor, int) else factor)


@intrinsic(prefer_literal=True)
def score_cells(
    typingctx: Any, fmt: Any, rows: Any, q: Any, q_stride: Any, keys: Any, nb: Any, cells: Any,
    n: Any, d: Any, scores: Any, s_stride: Any,
) -> Any:  # fmt: skip
    """Scores of ``rows`` queries (a literal) against ``n`` keys where they lie in the cache."""
    literals = literals_of(fmt, rows)
    if literals is None:
        return None
    kind, n_rows = literals
    step = LANES * (2 if kind == F16 else 4)

    def codegen(context: Any, b: Value, sig: Any, args: Any) -> Any:
        _, _, q, q_stride, keys, nb, cells, n, d, scores, s_stride = args
        steps = b.lshr(d, ir.Constant(i64, 3))
        queries = [b.add(q, _scaled(b, q_stride, r)) for r in range(n_rows)]

        def one_key(j: Value, _: list[Value]) -> list[Value]:
            cell = load(b, b.add(cells, _scaled(b, j, 8)), i64, 8)
            key = b.add(keys, b.mul(cell, nb))

            def body(i: Value, accs: list[Value]) -> list[Value]:
                k = _load(b, kind, b.add(key, _scaled(b, i, step)))
                offset = _scaled(b, i, 4 * LANES)
                return [
                    fma(b, load(b, b.add(x, offset), vec(f32, LANES)), k, acc)
                    for x, acc in zip(queries, accs, strict=True)
                ]

            sums = counted_loop(b, steps, [splat(f32, LANES, 0.0)] * n_rows, body)
            for r, acc in enumerate(sums):
                place = b.add(b.add(scores, _scaled(b, s_stride, r)), _scaled(b, j, 4))
                store(b, _total(b, acc), place, 4)
            return []

        counted_loop(b, n, [], one_key)
        return context.get_dummy_value()

    return types.void(fmt, rows, *[types.int64] * 9), codegen


@intrinsic(prefer_literal=True)
def score_tile(
    typingctx: Any, rows: Any, q: Any, q_stride: Any, keys: Any, d: Any, scores: Any, s_stride: Any
) -> Any:
    """Scores of ``rows`` queries (a literal) against 16 packed keys, ``keys[d][16]`` float32."""
    literals = literals_of(rows)
    if literals is None:
        return None
    (n_rows,) = literals

    def codegen(context: Any, b: Value, sig: Any, args: Any) -> Any:
        _, q, q_stride, keys, d, scores, s_stride = args
        v = vectors()
        n_parts, lanes = v.parts, v.lanes
        steps = b.lshr(d, ir.Constant(i64, 3))
        queries = [b.add(q, _scaled(b, q_stride, r)) for r in range(n_rows)]

        def partial(lane: int) -> list[Value]:
            """Sum ``lane`` of every score: rows times parts."""

            def body(i: Value, accs: list[Value]) -> list[Value]:
                row = b.add(at(b, keys, 64 * lane), _scaled(b, i, 64 * LANES))
                parts = [
                    load(b, at(b, row, 4 * lanes * p), vec(f32, lanes)) for p in range(n_parts)
                ]
                offset = b.add(_scaled(b, i, 4 * LANES), ir.Constant(i64, 4 * lane))
                after = []
                for r in range(n_rows):
                    x = broadcast(b, load(b, b.add(queries[r], offset), f32), lanes)
                    after += [fma(b, x, parts[p], accs[r * n_parts + p]) for p in range(n_parts)]
                return after

            return counted_loop(b, steps, [splat(f32, lanes, 0.0)] * (n_rows * n_parts), body)

        def add(x: list[Value], y: list[Value]) -> list[Value]:
            return [b.fadd(s, t) for s, t in zip(x, y, strict=True)]

        def tree(first: int, step: int) -> list[Value]:
            """Lanes first, first + step, ...: the halves that ``_total`` adds."""
            if step == LANES:
                return partial(first)
            return add(tree(first, 2 * step), tree(first + step, 2 * step))

        for k, total in enumerate(tree(0, 1)):
            r, p = divmod(k, n_parts)
            store(b, total, at(b, b.add(scores, _scaled(b, s_stride, r)), 4 * lanes * p))
        return context.get_dummy_value()

    return types.void(rows, *[types.int64] * 6), codegen


@intrinsic(prefer_literal=True)
def weigh_cells(
    typingctx: Any, fmt: Any, rows: Any, p: Any, p_stride: Any, values: Any, nb: Any, cells: Any,
    n: Any, out: Any, out_stride: Any,
) -> Any:  # fmt: skip
    """``out[r][0:32] = sum over j < n of p[r][j] * values[cells[j]][0:32]``, in order of j."""
    literals = literals_of(fmt, rows)
    if literals is None:
        return None
    kind, n_rows = literals
    size = LANES * (2 if kind == F16 else 4)
    n_parts = _VALUES // LANES

    def codegen(context: Any, b: Value, sig: Any, args: Any) -> Any:
        _, _, p, p_stride, values, nb, cells, n, out, out_stride = args
        weights = [b.add(p, _scaled(b, p_stride, r)) for r in range(n_rows)]

        def body(j: Value, accs: list[Value]) -> list[Value]:
            cell = load(b, b.add(cells, _scaled(b, j, 8)), i64, 8)
            row = b.add(values, b.mul(cell, nb))
            parts = [_load(b, kind, at(b, row, size * i)) for i in range(n_parts)]
            after = []
            for r in range(n_rows):
                w = broadcast(b, load(b, b.add(weights[r], _scaled(b, j, 4)), f32), LANES)
                after += [fma(b, parts[i], w, accs[r * n_parts + i]) for i in range(n_parts)]
            return after

        sums = counted_loop(b, n, [splat(f32, LANES, 0.0)] * (n_rows * n_parts), body)
        for k, acc in enumerate(sums):
            r, i = divmod(k, n_parts)
            store(b, acc, at(b, b.add(out, _scaled(b, out_stride, r)), 4 * LANES * i))
        return context.get_dummy_value()

    return types.void(fmt, rows, *[types.int64] * 8), codegen
