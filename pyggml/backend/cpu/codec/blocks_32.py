"""Encoders of blocks of 32 codes in jitted code; see ``quants/blocks_32.py``.

    encode, encode_weighted = centred(Q4_0)        # (x, out) and (x, weights, out)

They are made for any format whose declaration has the same encoder, whatever its bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ....jit import inline_strict
from ....quants.block import BlockType
from ....quants.blocks_32 import weighted_search
from ..abi import f32_ptr
from ..simd.half import store_f16
from ..simd.lanes import (
    choose,
    clamp,
    first,
    floats,
    lanes_f32,
    least,
    magnitude,
    most,
    narrow,
    stack,
    store,
    truncated,
)
from ..simd.math import HALF, INF, ONE, ZERO, abs_f32
from .blocks import put_codes
from .search import affine, nearest, symmetric

BLOCK = 32
_BYTES = 4 * BLOCK
_127 = np.float32(127)


def centred(f: BlockType) -> tuple[Any, Any]:
    """The largest magnitude becomes code 0, zero is in the middle."""
    kind, middle, d_at = int(f.type), f.zero, f.d[0].at // 8
    top, zero, fit = 2 * middle - 1, np.float32(middle), symmetric(BLOCK, middle)

    @inline_strict
    def encode(x, out):  # type: ignore[no-untyped-def]
        codes = stack(BLOCK)
        size = magnitude(lanes_f32(BLOCK, x))
        largest = most(size)
        largest = f32_ptr(x)[first(size == largest)] if largest > ZERO else ZERO
        d = largest / -zero
        store_f16(out + d_at, d)
        inverse, plus = ONE / d if d != ZERO else ZERO, zero + HALF
        if abs_f32(inverse) == INF:  # C's conversion of what comes of it gives 0
            inverse, plus = ZERO, ZERO
        q = clamp(truncated(lanes_f32(BLOCK, x) * inverse + plus), 0, top)
        store(codes, narrow(q))
        put_codes(kind, codes, out)

    @inline_strict
    def encode_weighted(x, weights, out):  # type: ignore[no-untyped-def]
        codes = stack(BLOCK)
        d, inverse = fit(x, weights)
        store_f16(out + d_at, d)
        shift = middle if inverse != ZERO else 0  # a block of zeros has codes 0
        q = clamp(nearest(lanes_f32(BLOCK, x) * inverse), -middle, middle - 1) + shift
        store(codes, narrow(q))
        put_codes(kind, codes, out)

    return encode, encode_weighted


def from_minimum(f: BlockType) -> tuple[Any, Any]:
    """The minimum becomes code 0, the maximum the largest."""
    kind, d_at, low_at = int(f.type), f.d[0].at // 8, f.low[0].at // 8
    top = (1 << f.bits) - 1
    reach, fit = np.float32(top), affine(1, BLOCK, weighted_search(f.bits))

    @inline_strict
    def encode(x, out):  # type: ignore[no-untyped-def]
        codes = stack(BLOCK)
        v = lanes_f32(BLOCK, x)
        # Of zeros it is the first that counts, with its sign.
        minimum, maximum = f32_ptr(x)[first(v == least(v))], f32_ptr(x)[first(v == most(v))]
        d = (maximum - minimum) / reach
        store_f16(out + d_at, d)
        store_f16(out + low_at, minimum)
        inverse = ONE / d if d != ZERO else ZERO
        inverse = inverse if inverse < INF else ZERO
        store(codes, narrow(clamp(truncated((v - minimum) * inverse + HALF), 0, top)))
        put_codes(kind, codes, out)

    @inline_strict
    def encode_weighted(x, weights, out):  # type: ignore[no-untyped-def]
        tried, fits, codes = stack(_BYTES), stack(16), stack(BLOCK)
        scale, minimum, inverse, base = fit(x, weights, tried)
        store(fits, scale)
        store(fits + 4, minimum)
        store(fits + 8, inverse)
        store(fits + 12, base)
        store_f16(out + d_at, f32_ptr(fits)[0])
        store_f16(out + low_at, f32_ptr(fits)[1])
        inverse, base = f32_ptr(fits)[2], f32_ptr(fits)[3]
        store(codes, narrow(clamp(nearest((lanes_f32(BLOCK, x) - base) * inverse), 0, top)))
        put_codes(kind, codes, out)

    return encode, encode_weighted


def rounded(f: BlockType) -> tuple[Any, Any]:
    """Q8_0: int8, rounded with half away from zero. Weights change nothing."""
    kind, d_at = int(f.type), f.d[0].at // 8

    @inline_strict
    def encode(x, out):  # type: ignore[no-untyped-def]
        codes = stack(BLOCK)
        v = lanes_f32(BLOCK, x)
        d = most(magnitude(v)) / _127
        inverse = ONE / d if d != ZERO else ZERO
        inverse = inverse if inverse < INF else ZERO  # as C's conversion of infinities
        store_f16(out + d_at, d)
        v = v * inverse
        whole = truncated(v)
        rest = v - floats(whole)  # half goes away from zero
        away = choose(rest >= HALF, whole + 1, choose(rest <= -HALF, whole - 1, whole))
        store(codes, narrow(away))
        put_codes(kind, codes, out)

    return encode, None
