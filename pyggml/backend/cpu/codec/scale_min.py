"""Scales and minima of six bits for each 32 of 256 values: what Q4_K and Q5_K share."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....jit import inline_strict
from ....quants.affine import AffineSearch
from ..abi import f32_ptr, i32_ptr
from ..simd.half import load_f16, store_f16
from ..simd.lanes import lanes_f32, magnitude, root, spread, stack, store
from ..simd.math import ZERO
from .affine import affine
from .rounding import nearest_int
from .superblock import put_scale_min, recoder, scale_min, side_by_side, spread_weights
from .symmetric import fit_positive

GROUP, GROUPS, TOP = 32, 8, 63
BYTES = 4 * GROUP * GROUPS
_ROW = 4 * GROUPS
FITS, SCALES = 4 * _ROW, 2 * _ROW
_GROUP, _TOP = np.float32(GROUP), np.float32(TOP)
_turn = side_by_side(GROUPS, GROUP)


@inline_strict
def _by_largest(x, codes):  # type: ignore[no-untyped-def]
    """A step that makes the largest of eight values 63, and their codes."""
    high = ZERO
    for j in range(GROUPS):
        high = f32_ptr(x)[j] if f32_ptr(x)[j] > high else high
    inverse = _TOP / high if high > ZERO else ZERO
    for j in range(GROUPS):
        i32_ptr(codes)[j] = min(nearest_int(inverse * f32_ptr(x)[j]) & 255, TOP)
    return high / _TOP


@inline_strict
def _ordered_sums(x):  # type: ignore[no-untyped-def]
    total = spread(GROUPS, ZERO)
    for i in range(GROUP):
        total = total + lanes_f32(GROUPS, x + _ROW * i)
    return total


def choosers(plain: AffineSearch, weighted: AffineSearch) -> tuple[Any, Any]:
    """``choose(x, codes, out)`` and ``choose_weighted(x, weights, codes, out)``.

    Of 256 float32 at ``x`` they write d, dmin and scales at ``out`` and 256 codes, a byte each.
    """
    fit, fit_weighted = affine(GROUPS, GROUP, plain), affine(GROUPS, GROUP, weighted)
    recode = recoder(GROUP, 0, plain.top)
    cap = TOP if plain.top == 31 else 255  # ggml caps Q5_K's and not Q4_K's

    @inline_strict
    def finish(x, fits, scales, codes, out):  # type: ignore[no-untyped-def]
        d, dmin = load_f16(out), load_f16(out + 2)
        for j in range(GROUPS):
            q = i32_ptr(scales)
            put_scale_min(out + 4, j, q[j], q[GROUPS + j])
        inverses, bases = f32_ptr(fits + 2 * _ROW), f32_ptr(fits + 3 * _ROW)
        for j in range(GROUPS):
            scale, low = scale_min(out + 4, j)
            step = d * np.float32(scale)
            plus = dmin * np.float32(low) if step != ZERO else -bases[j]
            recode(x + 4 * GROUP * j, plus, step, inverses[j], codes + GROUP * j)

    @inline_strict
    def keep(fits, scale, low, inverse, base):  # type: ignore[no-untyped-def]
        store(fits, scale)
        store(fits + _ROW, spread(GROUPS, ZERO) - low)
        store(fits + 2 * _ROW, inverse)
        store(fits + 3 * _ROW, base)

    @inline_strict
    def choose(x, codes, out):  # type: ignore[no-untyped-def]
        turned, weights, tried = stack(BYTES), stack(BYTES), stack(BYTES)
        fits, scales = stack(FITS), stack(SCALES)
        _turn(x, turned)
        power = spread(GROUPS, ZERO)
        for i in range(GROUP):
            v = lanes_f32(GROUPS, turned + _ROW * i)
            power = power + v * v
        mean = root(power / _GROUP)
        for i in range(GROUP):
            store(weights + _ROW * i, mean + magnitude(lanes_f32(GROUPS, turned + _ROW * i)))
        scale, low, inverse, base = fit(turned, weights, tried)
        keep(fits, scale, low, inverse, base)
        store_f16(out, _by_largest(fits, scales))
        store_f16(out + 2, _by_largest(fits + _ROW, scales + _ROW))
        finish(x, fits, scales, codes, out)

    @inline_strict
    def choose_weighted(x, imatrix, codes, out):  # type: ignore[no-untyped-def]
        turned, weights, tried = stack(BYTES), stack(BYTES), stack(BYTES)
        fits, scales, sums = stack(FITS), stack(SCALES), stack(_ROW)
        spread_weights(x, imatrix, np.float32(2), tried)
        _turn(x, turned)
        _turn(tried, weights)
        scale, low, inverse, base = fit_weighted(turned, weights, tried)
        keep(fits, scale, low, inverse, base)
        store(sums, _ordered_sums(weights))
        store_f16(out, fit_positive(fits, sums, GROUPS, TOP, scales))
        store_f16(out + 2, fit_positive(fits + _ROW, sums, GROUPS, TOP, scales + _ROW))
        for j in range(2 * GROUPS):
            i32_ptr(scales)[j] = min(i32_ptr(scales)[j], cap)
        finish(x, fits, scales, codes, out)

    return choose, choose_weighted


@inline_strict
def step_of(block, j):  # type: ignore[no-untyped-def]
    """(scale, minimum) of sub-block ``j`` of a block."""
    scale, low = scale_min(block + 4, j)
    return load_f16(block) * np.float32(scale), load_f16(block + 2) * np.float32(low)
