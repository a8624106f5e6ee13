"""Products of a block of 256 columns of 16 interleaved rows and int8 activations.

    dot = KDot(b, Q4_K, address, acts, prefetch_step)
    acc = dot.accumulate(b, acc, token, part)

The integer sums are exact: of sub-blocks, times their sub-scales, over the block. Then one
multiply-add a block (and one for the minima) goes to the row's float32 sum, so every tile has the
same bits. Where a code's zero is not 0, or values of a table are raised for ``vpdpbusd``, the sum
of a block starts at ``-zero * sum(scale * activations)``; in a set with a ``start``, the sum of
each sub-block at ``-zero * sum(activations)``.
Access: the block's lines front to back, in a loop over steps of 32 columns.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from llvmlite import ir

from ..layout import COLUMNS, LINE, ROWS, STEP, STEPS, layout_k, pieces
from .loop import counted_loop
from .vector import (
    Generic,
    at,
    broadcast,
    call,
    f32,
    fma,
    i8,
    i16,
    i32,
    i64,
    load,
    pointer,
    splat,
    store,
    vec,
    vectors,
)

Value = Any
# Bytes in a block of quantized activations
SUMS_32, SUMS_16, STARTS, CODES = 16, 32, 64, 128


class GroupKBlock:
    """A block of 16 interleaved rows, by the parts of a vector each that a line has."""

    def __init__(self, kind: int, address: Value) -> None:
        self.layout = layout_k(kind)
        self._address = address
        self._words_at = 2 * ROWS * self.layout.halves

    def half(self, b: Value, which: int, p: int) -> Value:
        """<lanes x float>: the scales (0) or the scales of the minima (1)."""
        v = vectors()
        x = v.load_half(b, at(b, self._address, 2 * (ROWS * which + v.lanes * p)))
        unit = self.layout.unit
        return b.fmul(x, splat(f32, v.lanes, unit)) if unit != 1 else x

    def sub_scale(self, b: Value, j: Value, p: int) -> Value:
        """Those of sub-block ``j`` in the form that ``scaled`` wants."""
        v = vectors()
        line = b.shl(b.lshr(j, ir.Constant(i64, 2)), ir.Constant(i64, 6))
        place = b.add(line, b.and_(j, ir.Constant(i64, 3)))  # its byte becomes the word's first
        place = at(b, b.add(self._address, place), self._words_at + v.width * p)
        words = load(b, place, vec(i32, v.lanes))
        if self.layout.is_shared:
            words = b.and_(words, splat(i32, v.lanes, 0x0F0F0F0F))
        extract = Generic.sub_scale if self.layout.values else type(v).sub_scale
        return extract(v, b, words, signed=self.layout.signed)

    def factor_pairs(self, b: Value, k: int, p: int) -> Value:
        """<2 lanes x i16>: what sums of activations are multiplied by, of sub-blocks j and j + 2.

        These are the sub-minima of each row, or its sub-scales; j = 0 1 4 5..
        """
        v, f = vectors(), self.layout
        line = k // 2 + (f.scale_lines if f.minimum_lines else 0)
        n = 2 * v.lanes
        x = load(b, at(b, self._address, self._words_at + LINE * line + v.width * p), vec(i16, n))
        if f.signed:
            x = x if k % 2 else b.shl(x, splat(i16, n, 8))
            return b.ashr(x, splat(i16, n, 8))
        if self.layout.is_shared:
            return b.and_(b.lshr(x, splat(i16, n, 4 + 8 * (k % 2))), splat(i16, n, 15))
        return b.lshr(x, splat(i16, n, 8)) if k % 2 else b.and_(x, splat(i16, n, 255))

    def slices(self, b: Value, step: Value) -> Callable[[int, int], Value]:
        """``codes(k, p)``: <width x i8> codes of slice k of a step, to be asked for in order."""
        v, f = vectors(), self.layout
        start = pointer(b, b.add(self._address, b.mul(step, ir.Constant(i64, LINE * f.bits))))
        loaded: dict[tuple[int, int], Value] = {}
        joined: dict[tuple[int, int], Value] = {}

        def take(line: int, p: int) -> None:
            place = at(b, start, f.codes_at + LINE * line + v.width * p)
            x = loaded[line, p] = load(b, place, vec(i8, v.width))
            for piece in pieces(f.bits):
                if piece.line == line and piece.width < f.bits:
                    y = moved(b, x, piece)
                    before = joined.get((piece.slice, p))
                    joined[piece.slice, p] = y if before is None else b.or_(before, y)

        def codes(k: int, p: int) -> Value:
            mine = [piece for piece in pieces(f.bits) if piece.slice == k]
            for piece in mine:
                if (piece.line, p) not in loaded:
                    take(piece.line, p)
            if (k, p) in joined:
                return joined[k, p]
            return moved(b, loaded[mine[0].line, p], mine[0])

        return codes


def moved(b: Value, x: Value, piece: Any) -> Value:
    """The bits of a piece where they belong in a code."""
    n, down = x.type.count, piece.at - piece.of
    if down > 0:
        x = b.lshr(x, splat(i8, n, down))
    elif down < 0:
        x = b.shl(x, splat(i8, n, -down))
    return b.and_(x, splat(i8, n, ((1 << piece.width) - 1) << piece.of))


class KDot:
    """A block times tokens; ``prefetch_step(step)`` emits what a step prefetches."""

    def __init__(
        self,
        b: Value,
        kind: int,
        address: Value,
        acts: list[Value],
        prefetch_step: Callable[[Value], None],
    ) -> None:
        self._block, self._acts = GroupKBlock(kind, address), acts
        parts = range(vectors().parts)
        self._totals = self._products(b, prefetch_step)
        self._scales = [self._block.half(b, 0, p) for p in parts]
        minima = self._block.layout.minima
        self._minima = [self._block.half(b, 1, p) for p in parts] if minima else []
        self._minimum_totals = self._sum_products(b) if minima else []
        self._d: dict[int, Value] = {}

    def accumulate(self, b: Value, acc: Value, t: int, p: int) -> Value:
        """The sum of the rows of a part with a token, with the block added."""
        if t not in self._d:
            self._d[t] = broadcast(b, load(b, self._acts[t], f32), vectors().lanes)
        d = self._d[t]
        acc = fma(b, b.fmul(self._scales[p], d), b.sitofp(self._totals[t][p], acc.type), acc)
        if not self._minima:
            return acc
        offset = b.fneg(b.fmul(self._minima[p], d))
        return fma(b, offset, b.sitofp(self._minimum_totals[t][p], acc.type), acc)

    def _products(self, b: Value, prefetch_step: Callable[[Value], None]) -> list[list[Value]]:
        """Integer sums over the block, [token][part]."""
        v, f = vectors(), self._block.layout
        n_parts, n_sums = v.parts, len(self._acts) * v.parts
        places = _places(b, n_sums) if n_sums > v.row_sums else []
        starts = [x for row in self._starts(b) for x in row]
        for start, place in zip(starts, places, strict=False):
            store(b, start, place)
        length = min(f.sub // 4, 2 * v.u5_lines if f.bits == 5 else 8)  # slices that a sum takes
        per_step = STEP // f.sub

        def step(i: Value, totals: list[Value]) -> list[Value]:
            totals = list(totals)
            prefetch_step(i)
            codes = self._block.slices(b, i)
            offset = b.mul(i, ir.Constant(i64, STEP))
            acts = [pointer(b, b.add(act, offset)) for act in self._acts]
            for first in range(0, 8, length):
                half = 4 * first // f.sub
                j = at(b, b.mul(i, ir.Constant(i64, per_step)), half)
                for parts in v.part_groups(len(acts), n_parts, v.block_sums):
                    sums = self._run(b, codes, acts, i, range(first, first + length), parts)
                    if f.scale_lines:
                        scales = [self._block.sub_scale(b, j, p) for p in parts] * len(acts)
                        scaled = b.mul if f.values else partial(v.scaled, b)
                        sums = list(map(scaled, sums, scales))
                    else:
                        sums = [v.u4_total(b, x) for x in sums]
                    numbers = [t * n_parts + p for t in range(len(acts)) for p in parts]
                    for k, y in zip(numbers, sums, strict=True):
                        if places:
                            store(b, b.add(y, load(b, places[k], y.type)), places[k])
                        else:
                            totals[k] = b.add(totals[k], y)
            return totals

        steps = ir.Constant(i64, STEPS)
        totals = counted_loop(b, steps, [] if places else starts, step)
        totals = totals or [load(b, place, starts[0].type) for place in places]
        return [totals[k : k + n_parts] for k in range(0, n_sums, n_parts)]

    def _run(
        self, b: Value, codes: Any, acts: list[Value], step: Value, slices: range, parts: range
    ) -> list[Value]:
        """Sums of products of some slices and parts, [token * parts + part]."""
        v, f = vectors(), self._block.layout
        table = tuple(x + v.raised for x in f.values)
        signed = table and not v.raised
        sums = []
        for act in self._acts:
            if signed:
                start = v.s8_zero()
            elif self._starts_narrow:
                place = b.add(act, b.mul(step, ir.Constant(i64, 8)))
                start = v.start(b, at(b, place, STARTS + slices[0]), 32 // f.zero)
            else:
                start = v.u4_zero()
            sums += [start] * len(parts)
        for k in slices:
            weights = [codes(k, p) for p in parts]
            weights = [v.look_up(b, table, x) for x in weights] if table else weights
            ready = [v.s8_prepare(b, x) for x in weights] if signed else weights
            for t, place in enumerate(acts):
                a = v.broadcast_bytes(b, at(b, place, CODES + 4 * k))
                for n, w in enumerate(ready, t * len(parts)):
                    sums[n] = (v.s8_add if signed else v.u4_add)(b, sums[n], w, a)
        return sums

    @property
    def _starts_narrow(self) -> bool:
        """Whether the sums of sub-blocks start at ``-zero * sum(activations)``."""
        f = self._block.layout
        return f.zero != 0 and f.sub < COLUMNS and vectors().start is not None

    def _starts(self, b: Value) -> list[list[Value]]:
        """The initial value of the sums over the block, [token][part]."""
        v, f = vectors(), self._block.layout
        if f.sub == COLUMNS:
            starts = []
            for act in self._acts:
                sums = load(b, at(b, act, SUMS_32), vec(i16, STEPS))
                total = call(b, "llvm.vector.reduce.add.v8i16", i16, sums)
                total = b.mul(b.sext(total, i32), ir.Constant(i32, -f.zero))
                starts.append([broadcast(b, total, v.lanes)] * v.parts)
            return starts
        zero = v.raised if f.values else f.zero
        if zero and not self._starts_narrow:
            factor = splat(i32, v.lanes, -zero)
            return [[b.mul(x, factor) for x in row] for row in self._sum_products(b)]
        return [[splat(i32, v.lanes, 0)] * v.parts for _ in self._acts]

    def _sum_products(self, b: Value) -> list[list[Value]]:
        """Integer sums of sub-minima or sub-scales times sums of activations, [token][part]."""
        v, f = vectors(), self._block.layout
        sums_at = SUMS_32 if f.sub == STEP else SUMS_16
        totals = [[splat(i32, v.lanes, 0)] * v.parts for _ in self._acts]
        for k in range(128 // f.sub):
            pairs = [self._block.factor_pairs(b, k, p) for p in range(v.parts)]
            for t, act in enumerate(self._acts):
                word = load(b, at(b, act, sums_at + 4 * k), i32)
                a = b.bitcast(broadcast(b, word, v.lanes), vec(i16, 2 * v.lanes))
                for p, x in enumerate(pairs):
                    totals[t][p] = b.add(totals[t][p], v.pair_dot(b, x, a))
        return totals


def _places(b: Value, n: int) -> list[Value]:
    """Memory for vectors that registers do not hold."""
    width = vectors().width
    with b.goto_entry_block():
        memory = b.alloca(ir.ArrayType(i8, n * width))
        memory.align = LINE
    start = b.ptrtoint(memory, i64)
    return [at(b, start, width * k) for k in range(n)]
