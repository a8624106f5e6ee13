"""Q2_K in jitted code; see ``quants/q2_k.py``."""

from __future__ import annotations

import numpy as np

from ....jit import inline_strict
from ....quants.q2_k import GROUP, GROUPS, SEARCH, TOP, WEIGHTED
from ..abi import f32_ptr, i32_ptr, u8_ptr
from ..simd.half import load_f16, store_f16
from ..simd.lanes import floats, integers, lanes_f32, lanes_u8, magnitude, spread, stack, store
from ..simd.math import ZERO
from .affine import affine
from .rounding import nearest_int
from .superblock import SUPERBLOCK, pack_pairs, recoder, side_by_side, spread_weights
from .symmetric import fit_positive

QS, D = 16, 80  # where codes and scales stand in a block
_BYTES, _ROW = 4 * GROUP * GROUPS, 4 * GROUPS
_FITS, _SCALES = 4 * _ROW, 2 * _ROW
_TOP = np.float32(TOP)
_fit, _fit_weighted = affine(GROUPS, GROUP, SEARCH), affine(GROUPS, GROUP, WEIGHTED)
_turn, _recode = side_by_side(GROUPS, GROUP), recoder(GROUP, 0, SEARCH.top)


@inline_strict
def _by_largest(x, codes):  # type: ignore[no-untyped-def]
    """A step that makes the largest of 16 values 15, and their codes."""
    high = ZERO
    for j in range(GROUPS):
        high = f32_ptr(x)[j] if f32_ptr(x)[j] > high else high
    inverse = _TOP / high if high > ZERO else ZERO
    for j in range(GROUPS):
        i32_ptr(codes)[j] = nearest_int(inverse * f32_ptr(x)[j])
    return high / _TOP


@inline_strict
def _keep(fits, scale, low, inverse, base):  # type: ignore[no-untyped-def]
    store(fits, scale)
    store(fits + _ROW, spread(GROUPS, ZERO) - low)
    store(fits + 2 * _ROW, inverse)
    store(fits + 3 * _ROW, base)


@inline_strict
def _finish(x, fits, d, dmin, scales, out):  # type: ignore[no-untyped-def]
    codes = stack(SUPERBLOCK)
    store_f16(out + D, d)
    store_f16(out + D + 2, dmin)
    d, dmin = load_f16(out + D), load_f16(out + D + 2)
    inverses, bases = f32_ptr(fits + 2 * _ROW), f32_ptr(fits + 3 * _ROW)
    for j in range(GROUPS):
        packed = (i32_ptr(scales)[j] | i32_ptr(scales)[GROUPS + j] << 4) & 255
        u8_ptr(out)[j] = packed
        step = d * np.float32(packed & 15)
        plus = dmin * np.float32(packed >> 4) if step != ZERO else -bases[j]
        _recode(x + 4 * GROUP * j, plus, step, inverses[j], codes + GROUP * j)
    pack_pairs(codes, 0, out + QS)


@inline_strict
def encode_q2_k(x, out):  # type: ignore[no-untyped-def]
    """256 float32 at ``x`` as one block at ``out``."""
    turned, weights, tried = stack(_BYTES), stack(_BYTES), stack(_BYTES)
    fits, scales = stack(_FITS), stack(_SCALES)
    _turn(x, turned)
    for i in range(GROUP):
        store(weights + _ROW * i, magnitude(lanes_f32(GROUPS, turned + _ROW * i)))
    scale, low, inverse, base = _fit(turned, weights, tried)
    _keep(fits, scale, low, inverse, base)
    d, dmin = _by_largest(fits, scales), _by_largest(fits + _ROW, scales + _ROW)
    _finish(x, fits, d, dmin, scales, out)


@inline_strict
def encode_q2_k_weighted(x, imatrix, out):  # type: ignore[no-untyped-def]
    """``encode_q2_k`` with importance weights."""
    turned, weights, tried = stack(_BYTES), stack(_BYTES), stack(_BYTES)
    fits, scales, sums = stack(_FITS), stack(_SCALES), stack(_ROW)
    spread_weights(x, imatrix, np.float32(1), tried)
    _turn(x, turned)
    _turn(tried, weights)
    scale, low, inverse, base = _fit_weighted(turned, weights, tried)
    _keep(fits, scale, low, inverse, base)
    total = spread(GROUPS, ZERO)
    for i in range(GROUP):
        total = total + lanes_f32(GROUPS, weights + _ROW * i)
    store(sums, total)
    d = fit_positive(fits, sums, GROUPS, TOP, scales)
    dmin = fit_positive(fits + _ROW, sums, GROUPS, TOP, scales + _ROW)
    _finish(x, fits, d, dmin, scales, out)


@inline_strict
def decode_q2_k(block, y):  # type: ignore[no-untyped-def]
    """One block as 256 float32 at ``y``."""
    d, dmin = load_f16(block + D), load_f16(block + D + 2)
    for j in range(GROUPS):
        packed = u8_ptr(block)[j]
        half, pair = j >> 3, j >> 1 & 3
        q = lanes_u8(GROUP, block + QS + 32 * half + GROUP * (j & 1)) >> (2 * pair)
        step, low = d * np.float32(packed & 15), dmin * np.float32(packed >> 4)
        store(y + 4 * GROUP * j, floats(integers(q & 3)) * step - low)
