"""Q3_K in jitted code; see ``quants/q3_k.py``."""

from __future__ import annotations

import numpy as np

from ....jit import inline_strict
from ....quants.q3_k import GROUP, GROUPS, SCALE_TOP, TOP
from ..abi import f32_ptr, i32_ptr, u8_ptr
from ..simd.half import load_f16, store_f16
from ..simd.lanes import floats, integers, lanes_u8, stack, store
from ..simd.math import ONE, ZERO
from .rounding import nearest_int
from .superblock import SUPERBLOCK, pack_bits, pack_pairs, recoder, side_by_side, spread_weights
from .symmetric import by_turns, first_largest, symmetric

QS, SCALES, D = 32, 96, 108  # where codes, scales and d stand in a block
_BYTES, _ROW = 4 * GROUP * GROUPS, 4 * GROUPS
_TOP = np.float32(SCALE_TOP)
_fit, _turn = by_turns(GROUPS, GROUP, TOP), side_by_side(GROUPS, GROUP)
_fit_weighted, _fit_scales = symmetric(GROUP, TOP), symmetric(GROUPS, SCALE_TOP)
_recode = recoder(GROUP, -TOP, TOP - 1)


@inline_strict
def _put_scales(scales, out):  # type: ignore[no-untyped-def]
    """16 scales of 6 bits: 8 bytes of low nibbles, 4 of the pairs above them."""
    s, packed = i32_ptr(scales), u8_ptr(out + SCALES)
    for j in range(8):
        packed[j] = s[j] & 15 | (s[j + 8] & 15) << 4
    for j in range(4):
        packed[8 + j] = s[j] >> 4 | s[j + 4] >> 4 << 2 | s[j + 8] >> 4 << 4 | s[j + 12] >> 4 << 6


@inline_strict
def _step(block, d, j):  # type: ignore[no-untyped-def]
    """The scale of sub-block ``j``."""
    packed = u8_ptr(block + SCALES)
    low = packed[j & 7] >> (j >> 3 << 2) & 15
    return d * np.float32((low | (packed[8 + (j & 3)] >> 2 * (j >> 2) & 3) << 4) - SCALE_TOP)


@inline_strict
def encode_q3_k(x, out):  # type: ignore[no-untyped-def]
    """256 float32 at ``x`` as one block at ``out``."""
    turned, tried, codes = stack(_BYTES), stack(_BYTES), stack(SUPERBLOCK)
    fits, scales = stack(_ROW), stack(_ROW)
    _turn(x, turned)
    store(fits, _fit(turned, tried))
    largest = first_largest(fits, GROUPS)
    inverse = -_TOP / largest
    for j in range(GROUPS):
        code = np.int32(np.int8(nearest_int(inverse * f32_ptr(fits)[j])))
        code = min(max(code, -SCALE_TOP), SCALE_TOP - 1) + SCALE_TOP
        i32_ptr(scales)[j] = code if largest != ZERO else 0
    _put_scales(scales, out)
    store_f16(out + D, ONE / inverse if largest != ZERO else ZERO)
    d = load_f16(out + D)
    for j in range(GROUPS):
        step = _step(out, d, j)
        if step != ZERO:
            _recode(x + 4 * GROUP * j, ZERO, step, ZERO, codes + GROUP * j)
        else:
            for i in range(GROUP):
                u8_ptr(codes)[GROUP * j + i] = np.int32(f32_ptr(tried)[GROUPS * i + j])
    _pack(codes, out)


@inline_strict
def encode_q3_k_weighted(x, imatrix, out):  # type: ignore[no-untyped-def]
    """``encode_q3_k`` with importance weights."""
    weights, codes = stack(_BYTES), stack(SUPERBLOCK)
    fits, inverses, sums, scales = stack(_ROW), stack(_ROW), stack(_ROW), stack(_ROW)
    spread_weights(x, imatrix, np.float32(2), weights)
    for j in range(GROUPS):
        at = 4 * GROUP * j
        f32_ptr(fits)[j], f32_ptr(inverses)[j] = _fit_weighted(x + at, weights + at)
        total = ZERO
        for i in range(GROUP):
            total += f32_ptr(weights + at)[i]
        f32_ptr(sums)[j] = total
    d, inverse = _fit_scales(fits, sums)
    for j in range(GROUPS):
        code = min(max(nearest_int(inverse * f32_ptr(fits)[j]), -SCALE_TOP), SCALE_TOP - 1)
        i32_ptr(scales)[j] = code + SCALE_TOP if inverse != ZERO else 0
    _put_scales(scales, out)
    store_f16(out + D, d)
    d = load_f16(out + D)
    for j in range(GROUPS):
        at, inverse = GROUP * j, f32_ptr(inverses)[j]
        step = _step(out, d, j)
        _recode(x + 4 * at, ZERO, step, inverse, codes + at)
        if step == ZERO and inverse == ZERO:  # a group of zeros has codes 0
            for i in range(GROUP):
                u8_ptr(codes)[at + i] = 0
    _pack(codes, out)


@inline_strict
def _pack(codes, out):  # type: ignore[no-untyped-def]
    pack_bits(codes, 2, out)
    pack_pairs(codes, 0, out + QS)


@inline_strict
def decode_q3_k(block, y):  # type: ignore[no-untyped-def]
    """One block as 256 float32 at ``y``."""
    d = load_f16(block + D)
    for j in range(GROUPS):
        side = GROUP * (j & 1)
        q = lanes_u8(GROUP, block + QS + 32 * (j >> 3) + side) >> (2 * (j >> 1 & 3))
        third = (lanes_u8(GROUP, block + side) >> (j >> 1)) & 1
        step = _step(block, d, j)
        store(y + 4 * GROUP * j, floats(integers((q & 3) | third << 2) - TOP) * step)
