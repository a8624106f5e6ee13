"""Q6_K in jitted code; see ``quants/q6_k.py``."""

from __future__ import annotations

import numpy as np

from ....jit import inline_strict
from ....quants.q6_k import GROUP, GROUPS, TOP
from ..abi import f32_ptr, u8_ptr
from ..simd.element import I8, take
from ..simd.half import load_f16, store_f16
from ..simd.lanes import floats, integers, lanes_f32, lanes_u8, stack, store
from ..simd.math import ONE, ZERO, abs_f32
from .rounding import nearest_int
from .superblock import SUPERBLOCK, pack_pairs, recoder
from .symmetric import TINY, first_largest, symmetric

QH, SCALES, D = 128, 192, 208  # where high bits, scales and d stand in a block
_ROW = 4 * GROUPS
_BYTES, _128 = 4 * SUPERBLOCK, np.float32(128)
_fit, _recode = symmetric(GROUP, TOP), recoder(GROUP, -TOP, TOP - 1)


@inline_strict
def encode_q6_k(x, out):  # type: ignore[no-untyped-def]
    """256 float32 at ``x`` as one block at ``out``."""
    weights = stack(_BYTES)
    for i in range(0, 4 * SUPERBLOCK, 32):
        v = lanes_f32(8, x + i)
        store(weights + i, v * v)
    encode_q6_k_weighted(x, weights, out)


@inline_strict
def encode_q6_k_weighted(x, weights, out):  # type: ignore[no-untyped-def]
    """256 float32 at ``x`` as one block at ``out``, by the weights of their errors."""
    fits, inverses, codes = stack(_ROW), stack(_ROW), stack(SUPERBLOCK)
    for j in range(GROUPS):
        at = 4 * GROUP * j
        f32_ptr(fits)[j], f32_ptr(inverses)[j] = _fit(x + at, weights + at)
    largest = first_largest(fits, GROUPS)
    if abs_f32(largest) < TINY:
        for i in range(D + 2):
            u8_ptr(out)[i] = 0
        return
    inverse = -_128 / largest
    store_f16(out + D, ONE / inverse)
    d = load_f16(out + D)
    for j in range(GROUPS):
        code = min(nearest_int(inverse * f32_ptr(fits)[j]), 127)
        u8_ptr(out + SCALES)[j] = code & 255
        step = d * np.float32(np.int8(code))
        at, best = GROUP * j, f32_ptr(inverses)[j]
        _recode(x + 4 * at, ZERO, step, best, codes + at)
        if step == ZERO and best == ZERO:  # a group of zeros has codes 0
            for i in range(GROUP):
                u8_ptr(codes)[at + i] = 0
    for half in range(2):
        for i in range(2):
            at = codes + 128 * half + 32 * i
            low, high = lanes_u8(32, at), lanes_u8(32, at + 64)
            store(out + 64 * half + 32 * i, (low & 15) | high << 4)
    pack_pairs(codes, 4, out + QH)


@inline_strict
def decode_q6_k(block, y):  # type: ignore[no-untyped-def]
    """One block as 256 float32 at ``y``."""
    d = load_f16(block + D)
    for j in range(GROUPS):
        half, pair, side = j >> 3, j >> 1 & 3, GROUP * (j & 1)
        low = lanes_u8(GROUP, block + 64 * half + 32 * (pair & 1) + side) >> (pair >> 1 << 2)
        high = (lanes_u8(GROUP, block + QH + 32 * half + side) >> 2 * pair) & 3
        step = d * np.float32(take(I8, block + SCALES, j))
        store(y + 4 * GROUP * j, floats(integers((low & 15) | high << 4) - TOP) * step)
