"""Encoders in jitted code, but those of the K-quants (``k_quants``).

    encode, encode_weighted = centred(Q4_0)        # (x, out) and (x, weights, out)

Each is the twin of a NumPy encoder of ``quants`` and made for any format whose declaration names
that encoder, whatever the number of bits. ``encode_weighted`` is None where importance weights
change nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ....dtype import GGMLType
from ....jit import inline_strict
from ....quants.block import BlockType
from ....quants.blocks_32 import weighted_search
from ....quants.iq4 import SMALLEST as SMALLEST_IQ4
from ....quants.iq4 import VALUES
from ..abi import bits_f32, f32_bits, f32_ptr, u8_ptr
from ..layout import COLUMNS
from ..simd.element import F32, I8, load_elem, store_f16
from ..simd.lanes import (
    absolute,
    clamp,
    first_set,
    lanes_f32,
    max_lane,
    min_lane,
    select,
    stack,
    store,
    to_bytes,
    to_float,
    truncate,
)
from ..simd.math import HALF, INF, ONE, SMALLEST, ZERO, abs_f32
from .blocks import put_codes, put_steps, value_limits, values_of
from .search import affine, nearest, symmetric

BLOCK = 32
_BYTES = 4 * BLOCK
_127 = np.float32(127)
# Of IQ4_NL and IQ4_XS
_VALUES = int(GGMLType.IQ4_NL)  # both have its values
_CANDIDATES, _LANES_BYTES = 16, 3 * 4 * 16  # scales that are tried
_GROUPS, _SCALES_BYTES = 8, 32
_STEP_TOP = 32
_LOWEST, _TWO, _32 = np.float32(VALUES[0]), np.float32(2), np.float32(_STEP_TOP)
# Of MXFP4: the last seven are the midpoints of neighbouring values
_UP = np.float32(2.0**23)
_LOG2_E = np.float32(1.442695)
_A, _B, _C, _D = np.float32(0.5), np.float32(1.5), np.float32(2.5), np.float32(3.5)
_E, _F, _G = np.float32(5), np.float32(7), np.float32(10)


# --- blocks of 32 codes, centred or from a minimum: see ``quants/blocks_32.py`` ---


def centred(f: BlockType) -> tuple[Any, Any]:
    """The largest magnitude becomes code 0, zero is in the middle."""
    kind, middle, d_at = int(f.type), f.zero, f.d[0].byte
    top, zero, fit = 2 * middle - 1, np.float32(middle), symmetric(BLOCK, middle)

    @inline_strict
    def encode(x, out):
        codes = stack(BLOCK)
        size = absolute(lanes_f32(BLOCK, x))
        largest = max_lane(size)
        largest = f32_ptr(x)[first_set(size == largest)] if largest > ZERO else ZERO
        d = largest / -zero
        store_f16(out + d_at, d)
        inverse, plus = ONE / d if d != ZERO else ZERO, zero + HALF
        if abs_f32(inverse) == INF:  # C converts the infinite codes to 0
            inverse, plus = ZERO, ZERO
        q = clamp(truncate(lanes_f32(BLOCK, x) * inverse + plus), 0, top)
        store(codes, to_bytes(q))
        put_codes(kind, codes, out)

    @inline_strict
    def encode_weighted(x, weights, out):
        codes = stack(BLOCK)
        d, inverse = fit(x, weights)
        store_f16(out + d_at, d)
        shift = middle if inverse != ZERO else 0  # a block of zeros has codes 0
        q = clamp(nearest(lanes_f32(BLOCK, x) * inverse), -middle, middle - 1) + shift
        store(codes, to_bytes(q))
        put_codes(kind, codes, out)

    return encode, encode_weighted


def from_minimum(f: BlockType) -> tuple[Any, Any]:
    """The minimum becomes code 0, the maximum the largest."""
    kind, d_at, low_at = int(f.type), f.d[0].byte, f.low[0].byte
    top = (1 << f.bits) - 1
    reach, fit = np.float32(top), affine(1, BLOCK, weighted_search(f.bits))

    @inline_strict
    def encode(x, out):
        codes = stack(BLOCK)
        v = lanes_f32(BLOCK, x)
        # The first of equal ones: -0 and 0 are equal, and ggml keeps the first one's sign
        minimum = f32_ptr(x)[first_set(v == min_lane(v))]
        maximum = f32_ptr(x)[first_set(v == max_lane(v))]
        d = (maximum - minimum) / reach
        store_f16(out + d_at, d)
        store_f16(out + low_at, minimum)
        inverse = ONE / d if d != ZERO else ZERO
        inverse = inverse if inverse < INF else ZERO
        store(codes, to_bytes(clamp(truncate((v - minimum) * inverse + HALF), 0, top)))
        put_codes(kind, codes, out)

    @inline_strict
    def encode_weighted(x, weights, out):
        tried, fits, codes = stack(_BYTES), stack(16), stack(BLOCK)
        scale, minimum, inverse, base = fit(x, weights, tried)
        store(fits, scale)
        store(fits + 4, minimum)
        store(fits + 8, inverse)
        store(fits + 12, base)
        store_f16(out + d_at, f32_ptr(fits)[0])
        store_f16(out + low_at, f32_ptr(fits)[1])
        inverse, base = f32_ptr(fits)[2], f32_ptr(fits)[3]
        store(codes, to_bytes(clamp(nearest((lanes_f32(BLOCK, x) - base) * inverse), 0, top)))
        put_codes(kind, codes, out)

    return encode, encode_weighted


def rounded(f: BlockType) -> tuple[Any, Any]:
    """Q8_0: int8, rounded with half away from zero. Weights change nothing."""
    kind, d_at = int(f.type), f.d[0].byte

    @inline_strict
    def encode(x, out):
        codes = stack(BLOCK)
        v = lanes_f32(BLOCK, x)
        d = max_lane(absolute(v)) / _127
        inverse = ONE / d if d != ZERO else ZERO
        inverse = inverse if inverse < INF else ZERO  # as C's conversion of infinities
        store_f16(out + d_at, d)
        v = v * inverse
        whole = truncate(v)
        rest = v - to_float(whole)  # half goes away from zero
        away = select(rest >= HALF, whole + 1, select(rest <= -HALF, whole - 1, whole))
        store(codes, to_bytes(away))
        put_codes(kind, codes, out)

    return encode, None


# --- IQ4_NL and IQ4_XS: see ``quants/iq4.py`` ---


@inline_strict
def code_of(v):
    """The code of the nearest value; of two that are as near the upper one."""
    limits, n = value_limits(_VALUES), 0
    for k in range(15):
        n += np.int64(v >= load_elem(F32, limits, k))
    return n


@inline_strict
def choose_codes(x, inverse, codes):
    """Store the codes of 32 float32 times ``inverse``, a byte each."""
    for i in range(BLOCK):
        u8_ptr(codes)[i] = code_of(f32_ptr(x)[i] * inverse)


@inline_strict
def spread_of(x, n):
    """Twice the mean square of ``n`` float32."""
    xs, total = f32_ptr(x), ZERO
    for i in range(n):
        total += xs[i] * xs[i]
    return total * (_TWO / np.float32(n))


@inline_strict
def error_weights(x, weights, spread, out):
    """Store the weights of the errors of 32 float32; ``weights`` 0: no importance weights."""
    xs, total = f32_ptr(x), f32_ptr(out)
    for i in range(BLOCK):
        square = xs[i] * xs[i]
        if weights != 0:
            total[i] = f32_ptr(weights)[i] * np.sqrt(spread + square)
        else:
            total[i] = square


@inline_strict
def fit_scale(x, importance):
    """The best scale of 32 float32; each candidate is a lane."""
    xs, weights = f32_ptr(x), f32_ptr(importance)
    largest, top = ZERO, ZERO
    for i in range(BLOCK):
        a = abs_f32(xs[i])
        top = xs[i] if a > largest else top
        largest = a if a > largest else largest
    if largest < SMALLEST_IQ4:
        return ZERO
    lanes, values = stack(_LANES_BYTES), values_of(_VALUES)
    inverses, products = f32_ptr(lanes), f32_ptr(lanes + 4 * _CANDIDATES)
    squares = f32_ptr(lanes + 8 * _CANDIDATES)
    for t in range(_CANDIDATES):
        inverses[t] = (_LOWEST + np.float32(t - 8)) / top
        products[t] = squares[t] = ZERO
    inverses[0] = ONE / (-top / _LOWEST)
    for i in range(BLOCK):
        v, w = xs[i], weights[i]
        for t in range(_CANDIDATES):
            q = np.float32(load_elem(I8, values, code_of(inverses[t] * v)))
            products[t] += w * q * v
            squares[t] += w * q * q
    d = products[0] / squares[0] if squares[0] > ZERO else ZERO
    best = d * products[0]
    for t in range(1, _CANDIDATES):
        p, s = products[t], squares[t]
        if s > ZERO and p * p > best * s:
            d = p / s
            best = d * p
    return d


def one_scale(f: BlockType) -> tuple[Any, Any]:
    """IQ4_NL."""
    kind, d_at = int(f.type), f.d[0].byte

    @inline_strict
    def encode_weighted(x, weights, out):
        importance, codes = stack(_BYTES), stack(BLOCK)
        error_weights(x, weights, spread_of(x, BLOCK) if weights != 0 else ZERO, importance)
        d = fit_scale(x, importance)
        store_f16(out + d_at, d)
        choose_codes(x, ONE / d if d != ZERO else ZERO, codes)
        put_codes(kind, codes, out)

    @inline_strict
    def encode(x, out):
        encode_weighted(x, 0, out)

    return encode, encode_weighted


def eight_scales(f: BlockType) -> tuple[Any, Any]:
    """IQ4_XS."""
    kind, d_at = int(f.type), f.d[0].byte

    @inline_strict
    def encode_weighted(x, weights, out):
        importance, found = stack(_BYTES), stack(_SCALES_BYTES)
        codes, steps = stack(COLUMNS), stack(_GROUPS)
        spread = spread_of(x, COLUMNS) if weights != 0 else ZERO
        largest, top = ZERO, ZERO
        for g in range(_GROUPS):
            at = 4 * BLOCK * g
            error_weights(x + at, weights + at if weights != 0 else 0, spread, importance)
            scale = fit_scale(x + at, importance)
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
    def encode(x, out):
        encode_weighted(x, 0, out)

    return encode, encode_weighted


# --- MXFP4: see ``quants/mxfp4.py`` ---


@inline_strict
def _power_of_two(e):
    """2^(e - 128)."""
    return bits_f32(np.int32(0x200000 << e if e < 2 else (e - 1) << 23))


@inline_strict
def _exponent(v):
    """``floor(log2f(v))`` of a positive number; ``log2f`` is rounded to the nearest float32.

    So 2^n * (1 - m * 2^-24) has exponent n if 1.44 m * 2^-24 is less than half a unit in the last
    place of n.
    """
    tiny = v < SMALLEST
    bits = np.int64(f32_bits(v * _UP if tiny else v))
    n = (bits >> 23) - (126 + 23 if tiny else 126)  # the next power of two
    m = (1 << 23) - (bits & 0x7FFFFF)
    size, unit = n - 1 if n > 0 else -n, 1
    while 2 * unit <= size:
        unit *= 2
    up = size > 0 and _LOG2_E * np.float32(m) < np.float32(unit)
    return n if up else n - 1


@inline_strict
def _mxfp4_code(v, d):
    """The code of the nearest value; of two that are as near the smaller one."""
    a = abs_f32(v)
    n = np.int64(a > _A * d) + np.int64(a > _B * d) + np.int64(a > _C * d) + np.int64(a > _D * d)
    n += np.int64(a > _E * d) + np.int64(a > _F * d) + np.int64(a > _G * d)
    return n + 8 if v < ZERO and n != 0 else n


def exponents(f: BlockType) -> tuple[Any, Any]:
    """A power of two below the largest magnitude. Weights change nothing."""
    kind, e_at = int(f.type), f.d[0].byte

    @inline_strict
    def encode(x, out):
        xs, codes, top = f32_ptr(x), stack(BLOCK), ZERO
        for i in range(BLOCK):
            a = abs_f32(xs[i])
            top = a if a > top else top
        e = _exponent(top) + 125 & 255 if top > ZERO else 0
        d = _power_of_two(e)
        u8_ptr(out)[e_at] = e
        for i in range(BLOCK):
            u8_ptr(codes)[i] = _mxfp4_code(xs[i], d)
        put_codes(kind, codes, out)

    return encode, None


# --- TQ1_0 and TQ2_0: see ``quants/ternary.py`` ---


def ternary(f: BlockType) -> tuple[Any, Any]:
    """Codes 0, 1 and 2 of -d, 0 and d, the largest magnitude. Weights change nothing."""
    kind, d_at = int(f.type), f.d[0].byte

    @inline_strict
    def encode(x, out):
        xs, codes, d = f32_ptr(x), stack(COLUMNS), ZERO
        for i in range(COLUMNS):
            a = abs_f32(xs[i])
            d = a if a > d else d
        store_f16(out + d_at, d)
        inverse = ONE / d
        inverse = inverse if inverse < INF else ZERO
        for i in range(COLUMNS):
            v = xs[i] * inverse  # halves go away from zero
            u8_ptr(codes)[i] = 1 + np.int64(v >= HALF) - np.int64(v <= -HALF)
        put_codes(kind, codes, out)

    return encode, None
