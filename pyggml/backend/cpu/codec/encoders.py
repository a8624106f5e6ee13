"""Encoders of blocks and of rows in jitted code.

    encode, encode_weighted = centred(Q4_0)        # (x, out) and (x, weights, out)
    encode_block(kind, x, out)                     # in jitted code; kind: a GGMLType as a literal
    row_encoder(kind).address                      # from ``codec``, where all are registered

Each is the twin of a NumPy encoder of ``quants``, with the same float32 operations in the same
order, so the bytes are ggml's. It is made for any format whose declaration names that encoder,
whatever the number of bits. ``encode_weighted`` is None where importance weights change nothing. A
kernel contains the code of one format only.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cache, partial
from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic

from ....compiler.jit import CpuKernel, inline_strict, named_kernel
from ....dtype import GGMLType
from ....quants import BLOCK_TYPES
from ....quants.binary import encode_signs
from ....quants.block import BlockType
from ....quants.blocks_32 import encode_centred, encode_from_minimum, encode_rounded
from ....quants.fp4 import encode_e4m3, encode_exponents
from ....quants.iq4 import SMALLEST as SMALLEST_IQ4
from ....quants.iq4 import VALUES, encode_nl, encode_xs
from ....quants.k_quants import (
    Q3_STEP_TOP,
    SUMS_AT,
    ScaleMin,
    encode_q3_k,
    encode_q6_k,
    encode_q8_k,
)
from ....quants.search import TINY, weighted_search
from ....quants.ternary import encode_ternary
from ..abi import bits_f32, f32_bits, f32_ptr, i32_ptr, u8_ptr
from ..simd.element import F32, I8, I16, load_elem, store_elem, store_f16
from ..simd.lanes import (
    absolute,
    clamp,
    first_set,
    lanes_f32,
    max_lane,
    min_lane,
    select,
    sign_extend,
    spread,
    sqrt,
    stack,
    store,
    sum_lanes,
    to_bytes,
    to_float,
    truncate,
)
from ..simd.math import HALF, INF, ONE, SMALLEST, ZERO, abs_f32
from ..weights.layout import COLUMNS
from . import ENCODED
from .blocks import get_scales, put_codes, put_steps, value_limits, values_of
from .search import (
    affine,
    coordinate_descent,
    first_largest,
    fit_positive,
    nearest,
    nearest_int,
    recoder,
    side_by_side,
    spread_weights,
    symmetric,
)

BLOCK = 32
_BYTES = 4 * BLOCK
_127, _128 = np.float32(127), np.float32(128)
_LEAST = -(1 << 30)
_ROW_BYTES = 4 * COLUMNS
# Of IQ4_NL and IQ4_XS
_VALUES = int(GGMLType.IQ4_NL)  # both have its values
_CANDIDATES, _LANES_BYTES = 16, 3 * 4 * 16  # scales that are tried
_SCALES, _SCALES_BYTES = 8, 32
_STEP_TOP = 32
_LOWEST, _TWO, _32 = np.float32(VALUES[0]), np.float32(2), np.float32(_STEP_TOP)
# Of Q3_K and Q6_K
_GROUP = _GROUPS = 16
_STEPS_BYTES = 4 * _GROUPS
# Of MXFP4: the last seven are the midpoints of neighbouring values
_UP = np.float32(2.0**23)
_LOG2_E = np.float32(1.442695)
_A, _B, _C, _D = np.float32(0.5), np.float32(1.5), np.float32(2.5), np.float32(3.5)
_E, _F, _G = np.float32(5), np.float32(7), np.float32(10)
# Of NVFP4: E4M3 is subnormal below the first; from the second on its largest number is taken
_E4M3_NORMAL, _E4M3_TOP = np.float32(2.0**-6), np.float32(256)
_6, _7, _512 = np.float32(6), np.float32(7), np.float32(512)


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
    reach, fit = np.float32(top), affine(1, BLOCK, weighted_search(top))

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


# --- K-quants: see ``quants/k_quants.py`` ---


def scale_min_encoders(f: BlockType) -> tuple[Any, Any]:
    """Scales and minima for each sub-block: Q2_K, Q4_K and Q5_K."""
    method = f.encode
    assert isinstance(method, ScaleMin)
    kind, groups, plain, top = int(f.type), f.groups, method.plain, method.top
    k, by_size = COLUMNS // groups, plain.absolute
    row, steps_bytes = 4 * groups, 2 * groups
    fits_bytes, scales_bytes = 4 * row, 2 * row
    d_at, low_at = f.d[0].byte, f.low[0].byte
    cap = top if method.caps else 255
    reach, size, factor = np.float32(top), np.float32(k), np.float32(method.spread)
    fit, fit_weighted = affine(groups, k, plain), affine(groups, k, method.weighted)
    recode, transpose = recoder(k, 0, plain.top), side_by_side(groups, k)

    @inline_strict
    def by_largest(x, codes):
        """The step with which the largest value has the code ``top``; stores the codes."""
        high = ZERO
        for j in range(groups):
            high = f32_ptr(x)[j] if f32_ptr(x)[j] > high else high
        inverse = reach / high if high > ZERO else ZERO
        for j in range(groups):
            code = nearest_int(inverse * f32_ptr(x)[j])
            i32_ptr(codes)[j] = code if by_size else min(code & 255, top)
        return high / reach

    @inline_strict
    def keep(fits, scale, low, inverse, base):
        store(fits, scale)
        store(fits + row, spread(groups, ZERO) - low)
        store(fits + 2 * row, inverse)
        store(fits + 3 * row, base)

    @inline_strict
    def finish(x, fits, scales, out):
        steps, codes, floats = stack(steps_bytes), stack(COLUMNS), stack(scales_bytes)
        for j in range(2 * groups):
            u8_ptr(steps)[j] = i32_ptr(scales)[j] & 255
        put_steps(kind, steps, steps + groups, out)
        get_scales(kind, out, floats, floats + row)
        inverses, bases = f32_ptr(fits + 2 * row), f32_ptr(fits + 3 * row)
        for j in range(groups):
            step = f32_ptr(floats)[j]
            plus = f32_ptr(floats + row)[j] if step != ZERO else -bases[j]
            recode(x + 4 * k * j, plus, step, inverses[j], codes + k * j)
        put_codes(kind, codes, out)

    @inline_strict
    def encode(x, out):
        transposed, weights, tried = stack(_ROW_BYTES), stack(_ROW_BYTES), stack(_ROW_BYTES)
        fits, scales = stack(fits_bytes), stack(scales_bytes)
        transpose(x, transposed)
        mean = spread(groups, ZERO)
        if not by_size:
            power = spread(groups, ZERO)
            for i in range(k):
                v = lanes_f32(groups, transposed + row * i)
                power = power + v * v
            mean = sqrt(power / size)
        for i in range(k):
            v = absolute(lanes_f32(groups, transposed + row * i))
            store(weights + row * i, v if by_size else mean + v)
        scale, low, inverse, base = fit(transposed, weights, tried)
        keep(fits, scale, low, inverse, base)
        store_f16(out + d_at, by_largest(fits, scales))
        store_f16(out + low_at, by_largest(fits + row, scales + row))
        finish(x, fits, scales, out)

    @inline_strict
    def encode_weighted(x, imatrix, out):
        transposed, weights, tried = stack(_ROW_BYTES), stack(_ROW_BYTES), stack(_ROW_BYTES)
        fits, scales, sums = stack(fits_bytes), stack(scales_bytes), stack(row)
        spread_weights(x, imatrix, factor, tried)
        transpose(x, transposed)
        transpose(tried, weights)
        scale, low, inverse, base = fit_weighted(transposed, weights, tried)
        keep(fits, scale, low, inverse, base)
        ordered = spread(groups, ZERO)
        for i in range(k):
            ordered = ordered + lanes_f32(groups, weights + row * i)
        store(sums, ordered)
        store_f16(out + d_at, fit_positive(fits, sums, groups, top, scales))
        store_f16(out + low_at, fit_positive(fits + row, sums, groups, top, scales + row))
        for j in range(2 * groups):
            i32_ptr(scales)[j] = min(i32_ptr(scales)[j], cap)
        finish(x, fits, scales, out)

    return encode, encode_weighted


def _group_recoder(f: BlockType) -> Any:
    """``recode(x, scales, inverses, codes)``: 16 groups' codes, a byte each, of a symmetric format.

    A group with stored scale 0 keeps the search's codes, ``nearest(inverse * x)``.
    """
    recode = recoder(_GROUP, -f.zero, f.zero - 1)

    @inline_strict
    def recode_groups(x, scales, inverses, codes):
        for j in range(_GROUPS):
            at, inverse = _GROUP * j, f32_ptr(inverses)[j]
            step = f32_ptr(scales)[j]
            recode(x + 4 * at, ZERO, step, inverse, codes + at)
            if step == ZERO and inverse == ZERO:  # a group of zeros has codes 0
                for i in range(_GROUP):
                    u8_ptr(codes)[at + i] = 0

    return recode_groups


def q3_k(f: BlockType) -> tuple[Any, Any]:
    """Q3_K: sub-blocks of 16 with signed scales of 6 bits."""
    kind, top, d_at = int(f.type), f.zero, f.d[0].byte
    fit, transpose = coordinate_descent(_GROUPS, _GROUP, top), side_by_side(_GROUPS, _GROUP)
    fit_weighted, fit_scales = symmetric(_GROUP, top), symmetric(_GROUPS, Q3_STEP_TOP)
    recode, recode_groups = recoder(_GROUP, -top, top - 1), _group_recoder(f)
    reach = np.float32(Q3_STEP_TOP)

    @inline_strict
    def encode(x, out):
        transposed, tried, codes = stack(_ROW_BYTES), stack(_ROW_BYTES), stack(COLUMNS)
        fits, steps, scales = stack(_STEPS_BYTES), stack(_GROUPS), stack(_STEPS_BYTES)
        transpose(x, transposed)
        store(fits, fit(transposed, tried))
        largest = first_largest(fits, _GROUPS)
        inverse = -reach / largest
        for j in range(_GROUPS):
            code = np.int32(np.int8(nearest_int(inverse * f32_ptr(fits)[j])))
            code = min(max(code, -Q3_STEP_TOP), Q3_STEP_TOP - 1) + Q3_STEP_TOP
            u8_ptr(steps)[j] = code if largest != ZERO else 0
        put_steps(kind, steps, 0, out)
        store_f16(out + d_at, ONE / inverse if largest != ZERO else ZERO)
        get_scales(kind, out, scales, 0)
        for j in range(_GROUPS):
            step = f32_ptr(scales)[j]
            if step != ZERO:
                recode(x + 4 * _GROUP * j, ZERO, step, ZERO, codes + _GROUP * j)
            else:
                for i in range(_GROUP):
                    u8_ptr(codes)[_GROUP * j + i] = np.int32(f32_ptr(tried)[_GROUPS * i + j])
        put_codes(kind, codes, out)

    @inline_strict
    def encode_weighted(x, imatrix, out):
        weights, codes, steps = stack(_ROW_BYTES), stack(COLUMNS), stack(_GROUPS)
        fits, inverses = stack(_STEPS_BYTES), stack(_STEPS_BYTES)
        sums, scales = stack(_STEPS_BYTES), stack(_STEPS_BYTES)
        spread_weights(x, imatrix, np.float32(2), weights)
        for j in range(_GROUPS):
            at = 4 * _GROUP * j
            f32_ptr(fits)[j], f32_ptr(inverses)[j] = fit_weighted(x + at, weights + at)
            ordered = ZERO
            for i in range(_GROUP):
                ordered += f32_ptr(weights + at)[i]
            f32_ptr(sums)[j] = ordered
        d, inverse = fit_scales(fits, sums)
        for j in range(_GROUPS):
            code = nearest_int(inverse * f32_ptr(fits)[j])
            code = min(max(code, -Q3_STEP_TOP), Q3_STEP_TOP - 1) + Q3_STEP_TOP
            u8_ptr(steps)[j] = code if inverse != ZERO else 0
        put_steps(kind, steps, 0, out)
        store_f16(out + d_at, d)
        get_scales(kind, out, scales, 0)
        recode_groups(x, scales, inverses, codes)
        put_codes(kind, codes, out)

    return encode, encode_weighted


def q6_k(f: BlockType) -> tuple[Any, Any]:
    """Q6_K: sub-blocks of 16 with int8 scales."""
    kind, top, d_at, size = int(f.type), f.zero, f.d[0].byte, f.type.type_size
    fit, recode_groups = symmetric(_GROUP, top), _group_recoder(f)

    @inline_strict
    def encode(x, out):
        weights = stack(_ROW_BYTES)
        for i in range(0, _ROW_BYTES, 32):
            v = lanes_f32(8, x + i)
            store(weights + i, v * v)
        encode_weighted(x, weights, out)

    @inline_strict
    def encode_weighted(x, weights, out):
        fits, inverses, scales = stack(_STEPS_BYTES), stack(_STEPS_BYTES), stack(_STEPS_BYTES)
        steps, codes = stack(_GROUPS), stack(COLUMNS)
        for j in range(_GROUPS):
            at = 4 * _GROUP * j
            f32_ptr(fits)[j], f32_ptr(inverses)[j] = fit(x + at, weights + at)
        largest = first_largest(fits, _GROUPS)
        if abs_f32(largest) < TINY:
            for i in range(size):
                u8_ptr(out)[i] = 0
            return
        inverse = -_128 / largest
        store_f16(out + d_at, ONE / inverse)
        for j in range(_GROUPS):
            u8_ptr(steps)[j] = min(nearest_int(inverse * f32_ptr(fits)[j]), 127) & 255
        put_steps(kind, steps, 0, out)
        get_scales(kind, out, scales, 0)
        recode_groups(x, scales, inverses, codes)
        put_codes(kind, codes, out)

    return encode, encode_weighted


def q8_k(f: BlockType) -> tuple[Any, Any]:
    """Q8_K: the largest magnitude becomes code -127. Weights change nothing."""
    codes_at = f.planes[0].byte

    @inline_strict
    def encode(x, out):
        largest = first_largest(x, COLUMNS)
        inverse = -_127 / largest if largest != ZERO else ZERO
        store_elem(F32, out, 0, ONE / inverse if largest != ZERO else ZERO)
        for j in range(16):
            codes = to_bytes(clamp(nearest(lanes_f32(16, x + 64 * j) * inverse), _LEAST, 127))
            store(out + codes_at + 16 * j, codes)
            store_elem(I16, out + SUMS_AT, j, np.int16(sum_lanes(sign_extend(codes))))

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
        codes, steps = stack(COLUMNS), stack(_SCALES)
        spread = spread_of(x, COLUMNS) if weights != 0 else ZERO
        largest, top = ZERO, ZERO
        for g in range(_SCALES):
            at = 4 * BLOCK * g
            error_weights(x + at, weights + at if weights != 0 else 0, spread, importance)
            scale = fit_scale(x + at, importance)
            f32_ptr(found)[g] = scale
            top = scale if abs_f32(scale) > largest else top
            largest = max(largest, abs_f32(scale))
        d = -top / _32
        store_f16(out + d_at, d)
        inverse = ONE / d if d != ZERO else ZERO
        for g in range(_SCALES):
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


# --- MXFP4 and NVFP4: see ``quants/fp4.py`` ---


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
def _fp4_code(v, d):
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
            u8_ptr(codes)[i] = _fp4_code(xs[i], d)
        put_codes(kind, codes, out)

    return encode, None


@inline_strict
def _e4m3(x):
    """The byte of a positive E4M3 number that is nearest to ``x`` >= 0, halves up."""
    if x < _E4M3_NORMAL:
        return np.int64(min(x * _512 + HALF, _7))
    if x >= _E4M3_TOP:
        return 126
    bits = np.int64(f32_bits(x))
    code = (bits >> 20) + (bits >> 19 & 1) - (127 - 7 << 3)
    return code if code < 15 << 3 else 126


def e4m3(f: BlockType) -> tuple[Any, Any]:
    """Scales of groups that are a sixth of their largest magnitudes. Weights change nothing."""
    kind, d_at, columns, groups = int(f.type), f.d[0].byte, f.columns, f.groups
    size, scales_bytes = columns // groups, 4 * groups

    @inline_strict
    def encode(x, out):
        xs, codes, scales = f32_ptr(x), stack(columns), stack(scales_bytes)
        for g in range(groups):
            top = ZERO
            for i in range(size * g, size * (g + 1)):
                a = abs_f32(xs[i])
                top = a if a > top else top
            u8_ptr(out)[d_at + g] = _e4m3(top / _6)
        get_scales(kind, out, scales, 0)
        for i in range(columns):
            d = f32_ptr(scales)[i // size]
            u8_ptr(codes)[i] = _fp4_code(xs[i], d) if d > ZERO else 0
        put_codes(kind, codes, out)

    return encode, None


# --- Q1_0: see ``quants/binary.py`` ---


def signs(f: BlockType) -> tuple[Any, Any]:
    """Signs and the mean magnitude. Weights change nothing."""
    kind, d_at, columns = int(f.type), f.d[0].byte, f.columns

    @inline_strict
    def encode(x, out):
        xs, codes, total = f32_ptr(x), stack(columns), ZERO
        for i in range(columns):
            total += abs_f32(xs[i])
            u8_ptr(codes)[i] = np.int64(xs[i] >= ZERO)
        store_f16(out + d_at, total / np.float32(columns))
        put_codes(kind, codes, out)

    return encode, None


# --- TQ1_0, TQ2_0 and Q2_0: see ``quants/ternary.py`` ---


def ternary(f: BlockType) -> tuple[Any, Any]:
    """Codes 0, 1 and 2 of -d, 0 and d, the largest magnitude. Weights change nothing."""
    kind, d_at, columns = int(f.type), f.d[0].byte, f.columns

    @inline_strict
    def encode(x, out):
        xs, codes, d = f32_ptr(x), stack(columns), ZERO
        for i in range(columns):
            a = abs_f32(xs[i])
            d = a if a > d else d
        store_f16(out + d_at, d)
        inverse = ONE / d
        inverse = inverse if inverse < INF else ZERO
        for i in range(columns):
            v = xs[i] * inverse  # halves go away from zero
            u8_ptr(codes)[i] = 1 + np.int64(v >= HALF) - np.int64(v <= -HALF)
        put_codes(kind, codes, out)

    return encode, None


# --- blocks and rows of any format ---

# Makers of ``encode(x, out)`` and ``encode(x, weights, out)``, or None if importance weights change
# nothing; by the encoder of the declaration, or its class.
_TWINS: dict[Hashable, Callable[[BlockType], tuple[Any, Any]]] = {
    encode_centred: centred,
    encode_from_minimum: from_minimum,
    encode_rounded: rounded,
    ScaleMin: scale_min_encoders,
    encode_q3_k: q3_k,
    encode_q6_k: q6_k,
    encode_q8_k: q8_k,
    encode_nl: one_scale,
    encode_xs: eight_scales,
    encode_exponents: exponents,
    encode_e4m3: e4m3,
    encode_signs: signs,
    encode_ternary: ternary,
}


def _twin(f: BlockType) -> Callable[[BlockType], tuple[Any, Any]] | None:
    return _TWINS.get(type(f.encode)) or _TWINS.get(f.encode)


@cache
def encoders(kind: int) -> tuple[Any, Any]:
    """The jitted encoders of a type of ``ENCODED``: without and with importance weights."""
    f = BLOCK_TYPES[GGMLType(kind)]
    make = _twin(f)
    assert make is not None
    return make(f)


def _encoder(which: int, kind: Any, n: int) -> Any:
    """Typing and code of a call of a format's encoder with ``n`` addresses."""
    if not isinstance(kind, types.IntegerLiteral):
        return None
    function = encoders(kind.literal_value)[which]
    addresses = (types.int64,) * n

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        callee = context.typing_context.resolve_value_type(function)
        call = callee.get_call_type(context.typing_context, addresses, {})
        emit = context.get_function(callee, call)
        context.add_linking_libs(getattr(emit, "libs", ()))
        emit(b, args[1:])
        return context.get_dummy_value()

    return types.void(kind, *addresses), codegen


@intrinsic(prefer_literal=True)
def encode_block(typingctx: Any, kind: Any, x: Any, out: Any) -> Any:
    """Store float32 at ``x`` as one block at ``out``."""
    return _encoder(0, kind, 2)


@intrinsic(prefer_literal=True)
def encode_block_weighted(typingctx: Any, kind: Any, x: Any, weights: Any, out: Any) -> Any:
    """``encode_block`` with importance weights, float32 as many as values."""
    return _encoder(1, kind, 3)


@cache
def _row_encoder(kind: int, weighted: bool) -> CpuKernel | None:
    block, size = GGMLType(kind).block_size, GGMLType(kind).type_size

    def encode(x, row, n, unused):
        for i in range(n // block):
            encode_block(kind, x + 4 * block * i, row + size * i)

    def encode_weighted_rows(x, row, n, weights):
        for i in range(n // block):
            at = 4 * block * i
            encode_block_weighted(kind, x + at, weights + at, row + size * i)

    if weighted and encoders(kind)[1] is None:
        return None
    return named_kernel(encode_weighted_rows if weighted else encode, GGMLType(kind).name)


ENCODED.update(
    {int(type): partial(_row_encoder, int(type)) for type, f in BLOCK_TYPES.items() if _twin(f)}
)
