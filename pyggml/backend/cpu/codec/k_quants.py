"""Encoders of the K-quants in jitted code; see ``quants/k_quants.py``."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....jit import inline_strict
from ....quants.block import BlockType
from ....quants.k_quants import Q3_STEP_TOP, SUMS_AT, ScaleMin
from ....quants.search import TINY
from ..abi import f32_ptr, i32_ptr, u8_ptr
from ..layout import COLUMNS
from ..simd.element import F32, I16, store_elem
from ..simd.half import store_f16
from ..simd.lanes import (
    clamp,
    lanes_f32,
    magnitude,
    narrow,
    root,
    signed,
    spread,
    stack,
    store,
    total,
)
from ..simd.math import ONE, ZERO, abs_f32
from .blocks import get_scales, put_codes, put_steps
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

_BYTES = 4 * COLUMNS
_GROUP = _GROUPS = 16  # of Q3_K and Q6_K
_STEPS_BYTES = 4 * _GROUPS
_127, _128 = np.float32(127), np.float32(128)
_LEAST = -(1 << 30)


def scale_min_encoders(f: BlockType) -> tuple[Any, Any]:
    """Scales and minima for each sub-block: Q2_K, Q4_K and Q5_K."""
    method = f.encode
    assert isinstance(method, ScaleMin)
    kind, groups, plain, top = int(f.type), f.groups, method.plain, method.top
    k, by_size = COLUMNS // groups, plain.absolute
    row, steps_bytes = 4 * groups, 2 * groups
    fits_bytes, scales_bytes = 4 * row, 2 * row
    d_at, low_at = f.d[0].at // 8, f.low[0].at // 8
    cap = top if method.caps else 255
    reach, size, factor = np.float32(top), np.float32(k), np.float32(method.spread)
    fit, fit_weighted = affine(groups, k, plain), affine(groups, k, method.weighted)
    recode, transpose = recoder(k, 0, plain.top), side_by_side(groups, k)

    @inline_strict
    def by_largest(x, codes):  # type: ignore[no-untyped-def]
        """A step that makes the largest value the top, and the codes."""
        high = ZERO
        for j in range(groups):
            high = f32_ptr(x)[j] if f32_ptr(x)[j] > high else high
        inverse = reach / high if high > ZERO else ZERO
        for j in range(groups):
            code = nearest_int(inverse * f32_ptr(x)[j])
            i32_ptr(codes)[j] = code if by_size else min(code & 255, top)
        return high / reach

    @inline_strict
    def keep(fits, scale, low, inverse, base):  # type: ignore[no-untyped-def]
        store(fits, scale)
        store(fits + row, spread(groups, ZERO) - low)
        store(fits + 2 * row, inverse)
        store(fits + 3 * row, base)

    @inline_strict
    def finish(x, fits, scales, out):  # type: ignore[no-untyped-def]
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
    def encode(x, out):  # type: ignore[no-untyped-def]
        turned, weights, tried = stack(_BYTES), stack(_BYTES), stack(_BYTES)
        fits, scales = stack(fits_bytes), stack(scales_bytes)
        transpose(x, turned)
        mean = spread(groups, ZERO)
        if not by_size:
            power = spread(groups, ZERO)
            for i in range(k):
                v = lanes_f32(groups, turned + row * i)
                power = power + v * v
            mean = root(power / size)
        for i in range(k):
            v = magnitude(lanes_f32(groups, turned + row * i))
            store(weights + row * i, v if by_size else mean + v)
        scale, low, inverse, base = fit(turned, weights, tried)
        keep(fits, scale, low, inverse, base)
        store_f16(out + d_at, by_largest(fits, scales))
        store_f16(out + low_at, by_largest(fits + row, scales + row))
        finish(x, fits, scales, out)

    @inline_strict
    def encode_weighted(x, imatrix, out):  # type: ignore[no-untyped-def]
        turned, weights, tried = stack(_BYTES), stack(_BYTES), stack(_BYTES)
        fits, scales, sums = stack(fits_bytes), stack(scales_bytes), stack(row)
        spread_weights(x, imatrix, factor, tried)
        transpose(x, turned)
        transpose(tried, weights)
        scale, low, inverse, base = fit_weighted(turned, weights, tried)
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


def q3_k(f: BlockType) -> tuple[Any, Any]:
    """Q3_K: sub-blocks of 16 with signed scales of 6 bits."""
    kind, top, d_at = int(f.type), f.zero, f.d[0].at // 8
    fit, transpose = coordinate_descent(_GROUPS, _GROUP, top), side_by_side(_GROUPS, _GROUP)
    fit_weighted, fit_scales = symmetric(_GROUP, top), symmetric(_GROUPS, Q3_STEP_TOP)
    recode, reach = recoder(_GROUP, -top, top - 1), np.float32(Q3_STEP_TOP)

    @inline_strict
    def encode(x, out):  # type: ignore[no-untyped-def]
        turned, tried, codes = stack(_BYTES), stack(_BYTES), stack(COLUMNS)
        fits, steps, scales = stack(_STEPS_BYTES), stack(_GROUPS), stack(_STEPS_BYTES)
        transpose(x, turned)
        store(fits, fit(turned, tried))
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
    def encode_weighted(x, imatrix, out):  # type: ignore[no-untyped-def]
        weights, codes, steps = stack(_BYTES), stack(COLUMNS), stack(_GROUPS)
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

    @inline_strict
    def recode_groups(x, scales, inverses, codes):  # type: ignore[no-untyped-def]
        for j in range(_GROUPS):
            at, inverse = _GROUP * j, f32_ptr(inverses)[j]
            step = f32_ptr(scales)[j]
            recode(x + 4 * at, ZERO, step, inverse, codes + at)
            if step == ZERO and inverse == ZERO:  # a group of zeros has codes 0
                for i in range(_GROUP):
                    u8_ptr(codes)[at + i] = 0

    return encode, encode_weighted


def q6_k(f: BlockType) -> tuple[Any, Any]:
    """Q6_K: sub-blocks of 16 with int8 scales."""
    kind, top, d_at, size = int(f.type), f.zero, f.d[0].at // 8, f.type.type_size
    fit, recode = symmetric(_GROUP, top), recoder(_GROUP, -top, top - 1)

    @inline_strict
    def encode(x, out):  # type: ignore[no-untyped-def]
        weights = stack(_BYTES)
        for i in range(0, _BYTES, 32):
            v = lanes_f32(8, x + i)
            store(weights + i, v * v)
        encode_weighted(x, weights, out)

    @inline_strict
    def encode_weighted(x, weights, out):  # type: ignore[no-untyped-def]
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
        for j in range(_GROUPS):
            at, best = _GROUP * j, f32_ptr(inverses)[j]
            step = f32_ptr(scales)[j]
            recode(x + 4 * at, ZERO, step, best, codes + at)
            if step == ZERO and best == ZERO:  # a group of zeros has codes 0
                for i in range(_GROUP):
                    u8_ptr(codes)[at + i] = 0
        put_codes(kind, codes, out)

    return encode, encode_weighted


def q8_k(f: BlockType) -> tuple[Any, Any]:
    """Q8_K: the largest magnitude becomes code -127. Weights change nothing."""
    codes_at = f.planes[0].at // 8

    @inline_strict
    def encode(x, out):  # type: ignore[no-untyped-def]
        largest = first_largest(x, COLUMNS)
        inverse = -_127 / largest if largest != ZERO else ZERO
        store_elem(F32, out, 0, ONE / inverse if largest != ZERO else ZERO)
        for j in range(16):
            codes = narrow(clamp(nearest(lanes_f32(16, x + 64 * j) * inverse), _LEAST, 127))
            store(out + codes_at + 16 * j, codes)
            store_elem(I16, out + SUMS_AT, j, np.int16(total(signed(codes))))

    return encode, None
