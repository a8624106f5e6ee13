"""Encoders of IQ4_NL and IQ4_XS in jitted code; see ``quants/iq4.py``."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....dtype import GGMLType
from ....jit import inline_strict
from ....quants.block import BlockType
from ....quants.iq4 import SMALLEST, VALUES
from ..abi import f32_ptr, u8_ptr
from ..simd.element import F32, I8, load_elem
from ..simd.half import store_f16
from ..simd.lanes import stack
from ..simd.math import ONE, ZERO, abs_f32
from .blocks import put_codes, put_steps, value_limits, values_of

_VALUES = int(GGMLType.IQ4_NL)  # whose values both formats have
BLOCK, CANDIDATES = 32, 16
BLOCK_BYTES, _LANES_BYTES = 4 * BLOCK, 3 * 4 * CANDIDATES
_GROUPS, _SCALES_BYTES, _COLUMNS = 8, 32, 256
_STEP_TOP = 32
_LOWEST, _TWO, _32 = np.float32(VALUES[0]), np.float32(2), np.float32(_STEP_TOP)


@inline_strict
def code_of(v):  # type: ignore[no-untyped-def]
    """The code of the nearest value; of two that are as near the upper one."""
    limits, n = value_limits(_VALUES), 0
    for k in range(15):
        n += np.int64(v >= load_elem(F32, limits, k))
    return n


@inline_strict
def choose_codes(x, inverse, codes):  # type: ignore[no-untyped-def]
    """The codes of 32 float32 times ``inverse``, a byte each."""
    for i in range(BLOCK):
        u8_ptr(codes)[i] = code_of(f32_ptr(x)[i] * inverse)


@inline_strict
def spread_of(x, n):  # type: ignore[no-untyped-def]
    """Twice the mean square of ``n`` float32."""
    xs, total = f32_ptr(x), ZERO
    for i in range(n):
        total += xs[i] * xs[i]
    return total * (_TWO / np.float32(n))


@inline_strict
def weigh(x, weights, spread, out):  # type: ignore[no-untyped-def]
    """What errors of 32 float32 weigh; ``weights`` 0: there are none."""
    xs, total = f32_ptr(x), f32_ptr(out)
    for i in range(BLOCK):
        square = xs[i] * xs[i]
        if weights != 0:
            total[i] = f32_ptr(weights)[i] * np.sqrt(spread + square)
        else:
            total[i] = square


@inline_strict
def search(x, importance):  # type: ignore[no-untyped-def]
    """The scale of 32 float32 that fits best: all candidates at once, a lane each."""
    xs, weights = f32_ptr(x), f32_ptr(importance)
    largest, top = ZERO, ZERO
    for i in range(BLOCK):
        a = abs_f32(xs[i])
        top = xs[i] if a > largest else top
        largest = a if a > largest else largest
    if largest < SMALLEST:
        return ZERO
    lanes, values = stack(_LANES_BYTES), values_of(_VALUES)
    inverses, products = f32_ptr(lanes), f32_ptr(lanes + 4 * CANDIDATES)
    squares = f32_ptr(lanes + 8 * CANDIDATES)
    for t in range(CANDIDATES):
        inverses[t] = (_LOWEST + np.float32(t - 8)) / top
        products[t] = squares[t] = ZERO
    inverses[0] = ONE / (-top / _LOWEST)
    for i in range(BLOCK):
        v, w = xs[i], weights[i]
        for t in range(CANDIDATES):
            q = np.float32(load_elem(I8, values, code_of(inverses[t] * v)))
            products[t] += w * q * v
            squares[t] += w * q * q
    d = products[0] / squares[0] if squares[0] > ZERO else ZERO
    best = d * products[0]
    for t in range(1, CANDIDATES):
        p, s = products[t], squares[t]
        if s > ZERO and p * p > best * s:
            d = p / s
            best = d * p
    return d


def one_scale(f: BlockType) -> tuple[Any, Any]:
    """IQ4_NL."""
    kind, d_at = int(f.type), f.d[0].at // 8

    @inline_strict
    def encode_weighted(x, weights, out):  # type: ignore[no-untyped-def]
        importance, codes = stack(BLOCK_BYTES), stack(BLOCK)
        weigh(x, weights, spread_of(x, BLOCK) if weights != 0 else ZERO, importance)
        d = search(x, importance)
        store_f16(out + d_at, d)
        choose_codes(x, ONE / d if d != ZERO else ZERO, codes)
        put_codes(kind, codes, out)

    @inline_strict
    def encode(x, out):  # type: ignore[no-untyped-def]
        encode_weighted(x, 0, out)

    return encode, encode_weighted


def eight_scales(f: BlockType) -> tuple[Any, Any]:
    """IQ4_XS."""
    kind, d_at = int(f.type), f.d[0].at // 8

    @inline_strict
    def encode_weighted(x, weights, out):  # type: ignore[no-untyped-def]
        importance, found = stack(BLOCK_BYTES), stack(_SCALES_BYTES)
        codes, steps = stack(_COLUMNS), stack(_GROUPS)
        spread = spread_of(x, _COLUMNS) if weights != 0 else ZERO
        largest, top = ZERO, ZERO
        for g in range(_GROUPS):
            at = 4 * BLOCK * g
            weigh(x + at, weights + at if weights != 0 else 0, spread, importance)
            scale = search(x + at, importance)
            f32_ptr(found)[g] = scale
            top = scale if abs_f32(scale) > largest else top
            largest = max(largest, abs_f32(scale))
        d = -top / _32
        store_f16(out + d_at, d)
        inverse = ONE / d if d != ZERO else ZERO
        for g in range(_GROUPS):
            step = np.int64(min(max(np.rint(inverse * f32_ptr(found)[g]), -_32), _32 - ONE))
            u8_ptr(steps)[g] = step + _STEP_TOP
            scale = d * np.float32(step)
            inverse_of = ONE / scale if scale != ZERO else ZERO
            choose_codes(x + 4 * BLOCK * g, inverse_of, codes + BLOCK * g)
        put_steps(kind, steps, 0, out)
        put_codes(kind, codes, out)

    @inline_strict
    def encode(x, out):  # type: ignore[no-untyped-def]
        encode_weighted(x, 0, out)

    return encode, encode_weighted
