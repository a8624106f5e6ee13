"""The searches for scales and codes in jitted code; see ``quants/search.py``.

    fit = affine(8, 32, SEARCH)                    # 8 groups of 32 values, side by side
    scale, low, inverse, base = fit(x, w, codes)   # lanes

Groups, or candidate spacings, are lanes: the sums of each lane are in order, and the lanes are
computed at the same time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ....compiler.jit import inline_strict
from ....quants.search import TINY, AffineSearch
from ..abi import f32_bits, f32_ptr, i32_ptr
from ..simd.lanes import (
    absolute,
    bits,
    clamp,
    lanes_f32,
    lanes_strided,
    mask_bits,
    select,
    spread,
    sqrt,
    stack,
    store,
    to_bytes,
    to_float,
)
from ..simd.math import MAGIC, ONE, ZERO, abs_f32
from ..weights.layout import COLUMNS

_LOW, _BIAS = np.int32(0x7FFFFF), np.int32(0x400000)
_TENTH = np.float32(0.1)
_SPACINGS = 19  # that are tried, from -9 to 9 tenths of a code more
_LANES = 8


@inline_strict
def nearest(v):
    """The nearest integers of lanes, ties to even; beyond 2^22 undefined, but as in C."""
    return (bits(v + MAGIC) & _LOW) - _BIAS


@inline_strict
def nearest_int(v):
    """``nearest`` of one float32."""
    return (f32_bits(v + MAGIC) & _LOW) - _BIAS


def side_by_side(groups: int, k: int) -> Any:
    """``transpose(x, out)``: ``groups`` groups of ``k`` float32 -> value 0 of all groups, ..."""

    @inline_strict
    def transpose(x, out):
        for i in range(k):
            store(out + 4 * groups * i, lanes_strided(groups, x + 4 * i, 4 * k))

    return transpose


@inline_strict
def spread_weights(x, imatrix, factor, out):
    """256 weights of a search: column weight * sqrt(factor * mean square + x^2)."""
    power = ZERO
    for i in range(COLUMNS):
        v = f32_ptr(x)[i]
        power += v * v
    power = factor * power / np.float32(COLUMNS)
    for i in range(0, 4 * COLUMNS, 32):
        v = lanes_f32(8, x + i)
        store(out + i, lanes_f32(8, imatrix + i) * sqrt(v * v + power))


def recoder(k: int, low: int, high: int) -> Any:
    """``recode(x, plus, d, inverse, out)``: a sub-block's codes as ``k`` bytes, less ``low``.

    nearest((x + plus) / d); or, where ``d`` is 0, the search's: nearest(inverse * (x + plus)).
    """

    @inline_strict
    def recode(x, plus, d, inverse, out):
        v = lanes_f32(k, x) + plus
        v = v / d if d != ZERO else v * inverse
        store(out, to_bytes(clamp(nearest(v), low, high) - low))

    return recode


def affine(groups: int, k: int, search: AffineSearch) -> Any:
    """The search for ``groups`` groups of ``k`` values.

    ``fit(x, w, codes)``: addresses of values and weights, value i of all groups side by side, and
    of as much memory for codes. The result's lanes are scale and minimum, and by ``inverse`` and
    ``base`` the best codes, ``clamp(nearest(inverse * (x - base)))``.
    """
    top, steps, is_absolute = search.top, search.steps, search.absolute
    start, stride, reach = np.float32(search.start), np.float32(search.stride), np.float32(top)
    step_bytes = 4 * groups

    @inline_strict
    def error(x, w, codes, scale, low):
        total = spread(groups, ZERO)
        for i in range(k):
            at = step_bytes * i
            diff = scale * lanes_f32(groups, codes + at) + low - lanes_f32(groups, x + at)
            diff = absolute(diff) if is_absolute else diff * diff
            total = total + lanes_f32(groups, w + at) * diff
        return total

    @inline_strict
    def fit(x, w, codes):
        low = lanes_f32(groups, x)
        high = low
        sum_w = lanes_f32(groups, w)
        sum_x = sum_w * low
        for i in range(1, k):
            v, weight = lanes_f32(groups, x + step_bytes * i), lanes_f32(groups, w + step_bytes * i)
            low = select(v < low, v, low)
            high = select(v > high, v, high)
            sum_w = sum_w + weight
            sum_x = sum_x + weight * v
        zero = spread(groups, ZERO)
        low = select(low > ZERO, zero, low)
        flat = high == low
        inverse, base = reach / (high - low), low
        scale = ONE / inverse
        for i in range(k):
            v = inverse * (lanes_f32(groups, x + step_bytes * i) - low)
            store(codes + step_bytes * i, to_float(clamp(nearest(v), 0, top)))
        best = error(x, w, codes, scale, low)
        for step in range(steps + 1):
            # ``low`` is the best so far, ``high`` stays: as in ggml
            tried = (start + stride * np.float32(step) + reach) / (high - low)
            sum_l, sum_l2, sum_xl = zero, zero, zero
            for i in range(k):
                v = lanes_f32(groups, x + step_bytes * i)
                q = to_float(clamp(nearest(tried * (v - low)), 0, top))
                store(codes + step_bytes * i, q)
                weighted = lanes_f32(groups, w + step_bytes * i) * q
                sum_l = sum_l + weighted
                sum_l2 = sum_l2 + weighted * q
                sum_xl = sum_xl + weighted * v
            det = sum_w * sum_l2 - sum_l * sum_l
            new_scale = (sum_w * sum_xl - sum_x * sum_l) / det
            new_low = (sum_l2 * sum_x - sum_l * sum_xl) / det
            above = new_low > ZERO
            new_scale = select(above, sum_xl / sum_l2, new_scale)
            new_low = select(above, zero, new_low)
            wrong = error(x, w, codes, new_scale, new_low)
            better = (det > ZERO) & (wrong < best)
            best = select(better, wrong, best)
            inverse, base = select(better, tried, inverse), select(better, low, base)
            scale, low = select(better, new_scale, scale), select(better, new_low, low)
        return select(flat, zero, scale), low, select(flat, zero, inverse), base

    return fit


@inline_strict
def first_largest(x, k):
    """The element of largest magnitude of ``k`` with its sign, the first of equal ones."""
    xs = f32_ptr(x)
    top, out = ZERO, ZERO
    for i in range(k):
        a = abs_f32(xs[i])
        out = xs[i] if a > top else out
        top = a if a > top else top
    return out


def symmetric(k: int, top: int) -> Any:
    """The search over groups of ``k`` values with codes from -top to top - 1.

    ``scale, inverse = fit(x, w)``: addresses of a group's values and weights; the best codes are
    ``clamp(nearest(inverse * x))``, and for a group of zeros both are 0. The spacings that are
    tried are lanes, computed at the same time, each with its sums in order.
    """
    reach = np.float32(top)

    @inline_strict
    def sums(x, w, inverses, at, sum_lx, sum_l2):
        inverse = lanes_f32(_LANES, inverses + at)
        lx = l2 = spread(_LANES, ZERO)
        for i in range(k):
            v, weight = f32_ptr(x)[i], f32_ptr(w)[i]
            q = to_float(clamp(nearest(inverse * v), -top, top - 1))
            lx = lx + q * (weight * v)
            l2 = l2 + q * weight * q
        store(sum_lx + at, lx)
        store(sum_l2 + at, l2)

    @inline_strict
    def fit(x, w):
        largest = first_largest(x, k)
        if abs_f32(largest) < TINY:
            return ZERO, ZERO
        inverses, sum_lx, sum_l2 = stack(96), stack(96), stack(96)
        for i in range(24):
            f32_ptr(inverses)[i] = -(reach + _TENTH * np.float32(i - 9)) / largest
        f32_ptr(inverses)[9] = -reach / largest
        for part in range(3):
            sums(x, w, inverses, 32 * part, sum_lx, sum_l2)
        lx, l2 = f32_ptr(sum_lx)[9], f32_ptr(sum_l2)[9]
        scale, chosen = lx / l2 if l2 != ZERO else ZERO, 9
        best = scale * lx
        for i in range(_SPACINGS):
            lx, l2 = f32_ptr(sum_lx)[i], f32_ptr(sum_l2)[i]
            if i != 9 and l2 > ZERO and lx * lx > best * l2:
                scale, chosen = lx / l2, i
                best = scale * lx
        return scale, f32_ptr(inverses)[chosen]

    return fit


def coordinate_descent(groups: int, k: int, top: int) -> Any:
    """The search that changes one code at a time, weighted by squares.

    ``scale = fit(x, codes)``: value i of all groups side by side at ``x``; the codes, less
    ``-top``, as float32 in the same order at ``codes``; lanes of scales.
    """
    step_bytes = 4 * groups
    reach = np.float32(top)

    @inline_strict
    def sweep(x, codes, sum_lx, sum_l2):
        changed = 0
        for i in range(k):
            v, q = lanes_f32(groups, x + step_bytes * i), lanes_f32(groups, codes + step_bytes * i)
            w = v * v
            wx = w * v
            lx, l2 = sum_lx - wx * q, sum_l2 - w * q * q
            new = to_float(clamp(nearest(v * l2 / lx), -top, top - 1))
            better = (lx > ZERO) & (new != q)
            lx, l2 = lx + wx * new, l2 + w * new * new
            better = better & (l2 > ZERO) & (lx * lx * sum_l2 > sum_lx * sum_lx * l2)
            changed |= mask_bits(better)
            store(codes + step_bytes * i, select(better, new, q))
            sum_lx, sum_l2 = select(better, lx, sum_lx), select(better, l2, sum_l2)
        return sum_lx, sum_l2, changed

    @inline_strict
    def fit(x, codes):
        largest = spread(groups, ZERO)
        for i in range(k):
            v = lanes_f32(groups, x + step_bytes * i)
            largest = select(absolute(v) > absolute(largest), v, largest)
        inverse = -reach / largest
        sum_lx = sum_l2 = spread(groups, ZERO)
        for i in range(k):
            v = lanes_f32(groups, x + step_bytes * i)
            q = to_float(clamp(nearest(inverse * v), -top, top - 1))
            store(codes + step_bytes * i, q)
            w = v * v
            sum_lx, sum_l2 = sum_lx + w * v * q, sum_l2 + w * q * q
        for _ in range(5):
            sum_lx, sum_l2, changed = sweep(x, codes, sum_lx, sum_l2)
            if changed == 0:
                break
        zero = spread(groups, ZERO)
        empty = absolute(largest) < TINY
        for i in range(k):
            q = lanes_f32(groups, codes + step_bytes * i)
            store(codes + step_bytes * i, select(empty, zero, q + reach))
        return select(empty, zero, select(sum_l2 > ZERO, sum_lx / sum_l2, zero))

    return fit


@inline_strict
def fit_positive(x, w, k, top, codes):
    """The scale of ``k`` values from 0 up; int32 codes, as C's bytes hold them, at ``codes``."""
    xs, ws, q = f32_ptr(x), f32_ptr(w), i32_ptr(codes)
    high = ZERO
    for i in range(k):
        high = xs[i] if xs[i] > high else high
        q[i] = 0
    if high < TINY:
        return ZERO
    reach = np.float32(top)
    inverse = reach / high
    best = _spacing_error(xs, ws, k, inverse, 255)
    for i in range(-4, 5):
        tried = (_TENTH * np.float32(i) + reach) / high
        error = _spacing_error(xs, ws, k, tried, top)
        if i != 0 and error < best:
            best, inverse = error, tried
    sum_lx = sum_l2 = ZERO
    for i in range(k):
        code = min(nearest_int(inverse * xs[i]), top)
        sum_lx += ws[i] * xs[i] * np.float32(code)
        sum_l2 += ws[i] * np.float32(code) * np.float32(code)
        q[i] = code & 255
    for _ in range(5):
        changed = False
        for i in range(k):
            old = np.float32(q[i])
            wx = ws[i] * xs[i]
            lx, l2 = sum_lx - wx * old, sum_l2 - ws[i] * old * old
            if lx > ZERO and l2 > ZERO:
                code = min(nearest_int(xs[i] * l2 / lx), top)
                if code != q[i]:
                    new = np.float32(code)
                    lx, l2 = lx + wx * new, l2 + ws[i] * new * new
                    if lx * lx * sum_l2 > sum_lx * sum_lx * l2:
                        q[i], sum_lx, sum_l2, changed = code & 255, lx, l2, True
        if not changed:
            break
    return sum_lx / sum_l2 if sum_l2 > ZERO else ZERO


@inline_strict
def _spacing_error(xs, ws, k, inverse, top):
    """The weighted error of codes up to ``top``; with 255 codes wrap as bytes."""
    scale = ONE / inverse
    error = ZERO
    for i in range(k):
        code = nearest_int(inverse * xs[i])
        code = code & 255 if top == 255 else min(code, top)
        diff = xs[i] - scale * np.float32(code)
        error += ws[i] * diff * diff
    return error
