"""Updates of rows of a recurrent state by a token, and their products with its query.

    decayed_rows(before, after, rows, n, decay, x, u, q, y, ahead)
    exp_rows(rows, n, x, rates, y)                 # y = exp(x[i] rates)
    corrected_rows(before, after, rows, n, decay, p, x, u, q, y, ahead)
    corrected_rows_2(before, after, rows, n, decay, p, x, u, w, q, y, ahead)
    decayed_columns(before, after, keys, stride, n, decay, k, q, v, y, scale)
    decayed_columns_bonus(before, after, keys, stride, n, decay, k, q, v, y, bonus)

Rows of ``n`` float32, where ``S`` is row i before and ``S'`` after the token:

    decayed_rows        S' = decay S + x[i] u                       y[i] = S' . q
    corrected_rows      S' = decay S + (x[i] + S . p) u             y[i] = S' . q
    corrected_rows_2    S' = decay S + x[i] u + (S . p) w           y[i] = S' . q

Columns: ``n`` of them, in rows that are ``stride`` bytes apart, one for each key i:

    decayed_columns         S' = decay[i] S + k[i] v        y = scale (sum of q[i] S')
    decayed_columns_bonus   S' = decay[i] S + k[i] v        y = sum of q[i] S + bonus v

Sums over a row are taken in 16 parts, column i in part i % 16, which are added in halves; columns
after the last 16 come last. Sums over keys are in order. So the bits are those of any vectors.
Access: states front to back, twice where rows are corrected; a group of rows at a time, so that
their sums fill registers and the other rows are loaded once for all of them. The first time, what
lies ``ahead`` bytes after a row is prefetched: one token reads its states from memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from llvmlite import ir
from numba import types

from .....compiler.jit import intrinsic_from_ir
from ..isa import fma, vectors
from ..math import exp
from ..vector import (
    LINE,
    broadcast,
    broadcast_f32,
    concat,
    const,
    counted_loop,
    f32,
    for_range,
    i32,
    item_at,
    lanes_of,
    load,
    pieces,
    prefetch,
    splat,
    store,
    vec,
)

Value = Any
_SUMS = 16
_COLUMNS = 32  # whose results stay in registers over all keys
AHEAD = 2  # tokens between a prefetch and its use
_HINT = 3  # states are prefetched into all caches
_F32, _I64 = types.float32, types.int64


def _totals(b: Value, sums: list[Value]) -> Value:
    """The totals of some vectors of partial sums, a power of two of them, as one vector."""
    width = _SUMS
    while width > 1:
        half = width // 2
        lanes = range((2 if len(sums) > 1 else 1) * sums[0].type.count)
        low = [i for i in lanes if i % width < half]
        high = [i + half for i in low]
        pairs = zip(sums[::2], sums[1::2] or sums, strict=True)
        sums = [b.fadd(lanes_of(b, x, y, low), lanes_of(b, x, y, high)) for x, y in pairs]
        width = half
    return sums[0]


class _Rows:
    """A group of rows that are updated together; ``ahead``: of a prefetch, None for none."""

    def __init__(
        self, b: Value, before: Value, after: Value, n_rows: int, n: Value, ahead: Value = None
    ) -> None:
        self.b, self.n_rows, self.n, self._ahead = b, n_rows, n, ahead
        row_bytes = b.shl(n, const(2))
        self.before, self.after = (
            [item_at(b, start, r, row_bytes) for r in range(n_rows)] for start in (before, after)
        )

    def sums(self, add: Callable[[Value, int, list[Value]], list[Value]]) -> Value:
        """The sum over columns for each row, as one vector.

        Args:
            add: ``add(offset, lanes, sums)`` adds columns of every row to their sums. With 0 lanes
                it is one column of all rows, and the only sum is a vector of all rows.
        """
        b, lanes = self.b, vectors().lanes
        parts = _SUMS // lanes

        def block(i: Value, carried: list[Value]) -> list[Value]:
            start = b.shl(i, const(2 + 4))
            after = []
            for part in range(parts):
                offset = b.add(start, const(4 * lanes * part))
                after.append(add(offset, lanes, carried[part::parts]))
            return [after[part][r] for r in range(self.n_rows) for part in range(parts)]

        blocks = b.lshr(self.n, const(4))
        zeros = [splat(f32, lanes, 0.0)] * (parts * self.n_rows)
        sums = counted_loop(b, blocks, zeros, block)
        total = _totals(
            b, [concat(b, sums[r * parts : (r + 1) * parts]) for r in range(self.n_rows)]
        )
        done = b.shl(blocks, const(4))

        def column(i: Value, carried: list[Value]) -> list[Value]:
            return add(b.shl(b.add(done, i), const(2)), 0, carried)

        return counted_loop(b, b.sub(self.n, done), [total], column)[0]

    def load(self, address: Value, lanes: int) -> Value:
        """Columns of a row before the token."""
        if self._ahead is not None:
            prefetch(self.b, self.b.add(address, self._ahead), _HINT)
        return load(self.b, address, vec(f32, lanes), 4)

    def column(self, starts: list[Value], offset: Value) -> Value:
        """One column of all rows as a vector."""
        y = ir.Constant(vec(f32, self.n_rows), ir.Undefined)
        for r, start in enumerate(starts):
            y = self.b.insert_element(y, load(self.b, self.b.add(start, offset), f32), _lane(r))
        return y

    def dot(self, p: Value) -> Value:
        """``S . p`` for each row."""
        b = self.b

        def add(offset: Value, lanes: int, sums: list[Value]) -> list[Value]:
            place = b.add(p, offset)
            if not lanes:
                state = self.column(self.before, offset)
                return [fma(b, state, broadcast_f32(b, place, self.n_rows), sums[0])]
            factor = load(b, place, vec(f32, lanes), 4)
            rows = [self.load(b.add(x, offset), lanes) for x in self.before]
            return [fma(b, x, factor, total) for x, total in zip(rows, sums, strict=True)]

        return self.sums(add)

    def update(self, decay: Value, q: Value, terms: list[tuple[Value, Value]]) -> Value:
        """``S' = decay S + sum of factor * row`` and ``S' . q`` for each row.

        Args:
            decay: a scalar, the address of a row, or a list of addresses, of a row for each row.
            terms: (vector with a factor for each row, address of a row).
        """
        b, own = self.b, isinstance(decay, list)

        def add(offset: Value, lanes: int, sums: list[Value]) -> list[Value]:
            def row(address: Value) -> Value:
                place = b.add(address, offset)
                if not lanes:
                    return broadcast_f32(b, place, self.n_rows)
                return load(b, place, vec(f32, lanes), 4)

            us, query = [row(u) for _, u in terms], row(q)
            if not own:
                is_row = decay.type != f32
                shared = row(decay) if is_row else broadcast(b, decay, lanes or self.n_rows)
            if not lanes:
                by = self.column(decay, offset) if own else shared
                state = b.fmul(self.column(self.before, offset), by)
                for (factors, _), u in zip(terms, us, strict=True):
                    state = fma(b, factors, u, state)
                for r, after in enumerate(self.after):
                    store(b, b.extract_element(state, _lane(r)), b.add(after, offset), 4)
                return [fma(b, state, query, sums[0])]
            new = []
            for r in range(self.n_rows):
                before = self.load(b.add(self.before[r], offset), lanes)
                state = b.fmul(before, row(decay[r]) if own else shared)
                for (factors, _), u in zip(terms, us, strict=True):
                    state = fma(b, lanes_of(b, factors, factors, [r] * lanes), u, state)
                store(b, state, b.add(self.after[r], offset), 4)
                new.append(fma(b, state, query, sums[r]))
            return new

        return self.sums(add)


Emit = Callable[[_Rows, Value], None]  # (rows, number of the first one)


def _lane(i: int) -> ir.Constant:
    return ir.Constant(i32, i)


def _in_groups(
    b: Value, before: Value, after: Value, n_rows: Value, n: Value,
    emit: Emit, sums: int = 8, ahead: Value = None,
) -> None:  # fmt: skip
    """Emit all rows: as many together as have ``sums`` vectors of sums, the last ones alone."""
    group = max(1, vectors().lanes * sums // _SUMS)
    row_bytes = b.shl(n, const(2))
    groups = b.sdiv(n_rows, const(group))
    done = b.mul(groups, const(group))
    for size, count, start in ((group, groups, const(0)), (1, b.sub(n_rows, done), done)):
        with for_range(b, count) as i:
            first = b.add(start, b.mul(i, const(size)))
            offset = b.mul(first, row_bytes)
            rows = _Rows(b, b.add(before, offset), b.add(after, offset), size, n, ahead)
            emit(rows, first)


def _correct_and_update(
    b: Value, before: Value, after: Value, n_rows: Value, n: Value, ahead: Value,
    correct: Emit, update: Emit,
) -> None:  # fmt: skip
    """Emit the products of all rows with ``p``, then all updates: none waits for its product."""
    _in_groups(b, before, after, n_rows, n, correct, ahead=ahead)
    _in_groups(b, before, after, n_rows, n, update, 4)  # factors and rows take registers too


def _factors(rows: _Rows, x: Value, first: Value) -> Value:
    return load(rows.b, item_at(rows.b, x, first, 4), vec(f32, rows.n_rows), 4)


def _store_results(rows: _Rows, y: Value, first: Value, totals: Value) -> None:
    store(rows.b, totals, item_at(rows.b, y, first, 4), 4)


def _typed(*given: Any) -> Any:
    """The signature: addresses and counts, but ``decay`` is a float32 or an address."""
    decay = _F32 if isinstance(given[4], types.Float) else _I64
    return types.void(*(_I64,) * 4, decay, *(_I64,) * (len(given) - 5))


@intrinsic_from_ir
def exp_rows(b: Value, n_rows: Value, n: Value, x: Value, rates: Value, y: Value) -> None:
    """``y = exp(x[i] rates)`` for each row."""
    lanes = vectors().lanes
    with for_range(b, n_rows) as i:
        start = b.mul(i, b.shl(n, const(2)))
        by = load(b, item_at(b, x, i, 4), f32)
        for offset, size in pieces(b, n, (lanes, 1)):
            place = b.add(start, offset)
            rate = load(b, b.add(rates, place), vec(f32, size), 4)
            store(b, b.fmul(broadcast(b, by, size), rate), b.add(y, place), 4)
    for offset, size in pieces(b, b.mul(n, n_rows), (2 * lanes, 1)):  # one loop: its constants
        place = b.add(y, offset)  # are loaded once
        store(b, exp(b, load(b, place, vec(f32, size), 4)), place, 4)


@intrinsic_from_ir(typed=_typed)
def decayed_rows(
    b: Value, before: Value, after: Value, n_rows: Value, n: Value, decay: Value, x: Value,
    u: Value, q: Value, y: Value, ahead: Value,
) -> None:  # fmt: skip
    """``S' = decay S + x[i] u``; ``decay`` is a number, or the address of rows as many as ``S``."""

    def emit(rows: _Rows, first: Value) -> None:
        own = decay
        if decay.type != f32:
            row_bytes = b.shl(n, const(2))
            start = b.add(decay, b.mul(first, row_bytes))
            own = [item_at(b, start, r, row_bytes) for r in range(rows.n_rows)]
        totals = rows.update(own, q, [(_factors(rows, x, first), u)])
        _store_results(rows, y, first, totals)

    _in_groups(b, before, after, n_rows, n, emit, ahead=ahead)


@intrinsic_from_ir(typed=_typed)
def corrected_rows(
    b: Value, before: Value, after: Value, n_rows: Value, n: Value, decay: Value, p: Value,
    x: Value, u: Value, q: Value, y: Value, ahead: Value,
) -> None:  # fmt: skip
    """``S' = decay S + (x[i] + S . p) u``; ``decay`` is a number, or the address of a row."""

    def correct(rows: _Rows, first: Value) -> None:
        _store_results(rows, y, first, b.fadd(_factors(rows, x, first), rows.dot(p)))

    def update(rows: _Rows, first: Value) -> None:
        totals = rows.update(decay, q, [(_factors(rows, y, first), u)])
        _store_results(rows, y, first, totals)

    _correct_and_update(b, before, after, n_rows, n, ahead, correct, update)


@intrinsic_from_ir(typed=_typed)
def corrected_rows_2(
    b: Value, before: Value, after: Value, n_rows: Value, n: Value, decay: Value, p: Value,
    x: Value, u: Value, w: Value, q: Value, y: Value, ahead: Value,
) -> None:  # fmt: skip
    """``S' = decay S + x[i] u + (S . p) w``; ``decay`` is a number, or the address of a row."""

    def correct(rows: _Rows, first: Value) -> None:
        _store_results(rows, y, first, rows.dot(p))

    def update(rows: _Rows, first: Value) -> None:
        terms = [(_factors(rows, x, first), u), (_factors(rows, y, first), w)]
        _store_results(rows, y, first, rows.update(decay, q, terms))

    _correct_and_update(b, before, after, n_rows, n, ahead, correct, update)


@intrinsic_from_ir(result=_F32)
def dot_f32(b: Value, x: Value, y: Value, n: Value) -> Value:
    """The dot product of two rows."""
    return b.extract_element(_Rows(b, x, x, 1, n).dot(y), _lane(0))


def _decayed_columns(
    b: Value, before: Value, after: Value, keys: Value, stride: Value, n: Value, decay: Value,
    k: Value, q: Value, v: Value, y: Value, scale: Value = None, bonus: Value = None,
) -> None:  # fmt: skip
    def update(i: Value, offset: Value, value: Value, total: Value) -> Value:
        lanes, place = value.type.count, b.add(b.mul(i, stride), offset)
        a, x, z = (broadcast_f32(b, item_at(b, s, i, 4), lanes) for s in (decay, k, q))
        state = load(b, b.add(before, place), value.type, 4)
        updated = fma(b, x, value, b.fmul(state, a))
        store(b, updated, b.add(after, place), 4)
        return fma(b, z, updated if bonus is None else state, total)

    for offset, lanes in pieces(b, n, (_COLUMNS, 8, 1)):
        value = load(b, b.add(v, offset), vec(f32, lanes), 4)
        key = partial(lambda o, v, i, carried: [update(i, o, v, carried[0])], offset, value)
        (total,) = counted_loop(b, keys, [splat(f32, lanes, 0.0)], key)
        if bonus is not None:  # last, so that nothing waits for it
            total = fma(b, broadcast(b, bonus, lanes), value, total)
        if scale is not None:
            total = b.fmul(total, broadcast(b, scale, lanes))
        store(b, total, b.add(y, offset), 4)


@intrinsic_from_ir(args=(*(_I64,) * 10, _F32))
def decayed_columns(
    b: Value, before: Value, after: Value, keys: Value, stride: Value, n: Value, decay: Value,
    k: Value, q: Value, v: Value, y: Value, scale: Value,
) -> None:  # fmt: skip
    """``S' = decay[i] S + k[i] v``; ``y = scale (sum of q[i] S')``."""
    _decayed_columns(b, before, after, keys, stride, n, decay, k, q, v, y, scale=scale)


@intrinsic_from_ir(args=(*(_I64,) * 10, _F32))
def decayed_columns_bonus(
    b: Value, before: Value, after: Value, keys: Value, stride: Value, n: Value, decay: Value,
    k: Value, q: Value, v: Value, y: Value, bonus: Value,
) -> None:  # fmt: skip
    """``S' = decay[i] S + k[i] v``; ``y = sum of q[i] S + bonus v``."""
    _decayed_columns(b, before, after, keys, stride, n, decay, k, q, v, y, bonus=bonus)


@intrinsic_from_ir
def prefetch_ahead(b: Value, address: Value, n: Value, stride: Value) -> None:
    """Prefetch ``n`` float32 of the row that is read or written ``AHEAD`` tokens later.

    Rows of tokens lie far apart, so a block would wait for its columns of each.
    """
    start = b.add(address, b.mul(stride, const(AHEAD)))
    lines = b.add(b.lshr(n, const(4)), const(1))
    with for_range(b, lines) as line:
        prefetch(b, item_at(b, start, line, LINE), 3)
