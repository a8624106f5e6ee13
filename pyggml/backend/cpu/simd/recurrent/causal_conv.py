"""A causal convolution of channels that lie side by side.

    transpose_taps(weights, n, width, out)         # [n][width] -> [width][n]
    convolve(rows, weights, n, width, y)           # y = sum of weights[j] rows[j] over the taps

``rows`` are the addresses of ``width`` rows of float32; sums over taps are in order.
Access: all rows at once, front to back; 32 sums stay in registers.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from .....compiler.jit import intrinsic_from_ir
from ..isa import fma, vectors
from ..transpose import words_of
from ..vector import (
    const,
    counted_loop,
    f32,
    for_range,
    i64,
    item_at,
    load,
    pieces,
    splat,
    store,
    vec,
    when,
)

Value = Any
_USUAL = 4  # taps of almost every model


@intrinsic_from_ir
def transpose_taps(b: Value, weights: Value, n: Value, width: Value, out: Value) -> None:
    """Put the weights of a tap side by side."""
    is_usual = b.icmp_signed("==", width, const(_USUAL))
    row_bytes, lanes = b.shl(n, const(2)), vectors().lanes

    def usual(carried: list[Value]) -> list[Value]:
        whole = b.sdiv(n, const(lanes))
        with for_range(b, whole) as i:
            first = b.mul(i, const(lanes))
            start = item_at(b, weights, first, 4 * _USUAL)
            rows = [b.add(start, const(4 * _USUAL * r)) for r in range(lanes)]
            for j, words in enumerate(words_of(b, rows, const(0))):
                store(b, words, item_at(b, item_at(b, out, j, row_bytes), first, 4), 4)
        return [b.mul(whole, const(lanes))]

    (done,) = when(b, is_usual, [const(0)], usual)
    with for_range(b, width) as j, for_range(b, b.sub(n, done)) as i:
        channel = b.add(done, i)
        place = b.add(b.mul(channel, width), j)
        weight = load(b, item_at(b, weights, place, 4), f32)
        store(b, weight, item_at(b, item_at(b, out, j, row_bytes), channel, 4), 4)


@intrinsic_from_ir
def convolve(b: Value, rows: Value, weights: Value, n: Value, width: Value, y: Value) -> None:
    """The sum over taps for each channel."""

    def add(offset: Value, lanes: int, j: Value, carried: list[Value]) -> list[Value]:
        row = load(b, item_at(b, rows, j, 8), i64)
        x = load(b, b.add(row, offset), vec(f32, lanes), 4)
        weight = item_at(b, weights, j, b.shl(n, const(2)))
        return [fma(b, x, load(b, b.add(weight, offset), vec(f32, lanes), 4), carried[0])]

    for offset, lanes in pieces(b, n, (32, 8, 1)):
        zero = splat(f32, lanes, 0.0)
        (total,) = counted_loop(b, width, [zero], partial(add, offset, lanes))
        store(b, total, b.add(y, offset), 4)
