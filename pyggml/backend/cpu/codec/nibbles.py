"""Blocks of 32 codes of 4 or 5 bits in jitted code: what Q4_0, Q4_1, Q5_0 and Q5_1 share.

See ``quants/q4_0.py`` and its siblings. A block's float16 scale (and minimum) come first, then, for
codes up to 31, their fifth bits, element j in bit j, then nibbles: element j low and j + 16 high in
byte j.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ....jit import inline_strict
from ....quants.affine import AffineSearch
from ..abi import f32_ptr, load_i32
from ..simd.element import I32, put
from ..simd.half import store_f16
from ..simd.lanes import (
    clamp,
    first,
    floats,
    integers,
    lanes_f32,
    lanes_u8,
    least,
    magnitude,
    mask_bits,
    most,
    narrow,
    spread_bits,
    stack,
    store,
    truncated,
)
from ..simd.math import HALF, INF, ONE, ZERO, abs_f32
from .affine import affine
from .rounding import nearest
from .symmetric import symmetric

BLOCK = 32
_BYTES = 4 * BLOCK


def packer(top: int) -> Any:
    """``pack(low, high, out)``: the codes of elements 0 to 15 and 16 to 31, as integer lanes."""
    nibbles = 0 if top == 15 else 4

    @inline_strict
    def pack(low, high, out):  # type: ignore[no-untyped-def]
        if nibbles != 0:
            put(I32, out, 0, np.int32(mask_bits(low > 15) | mask_bits(high > 15) << 16))
        store(out + nibbles, narrow((low & 15) | (high & 15) << 4))

    return pack


def unpacker(top: int) -> Any:
    """``unpack(codes)``: the inverse of ``packer``."""
    nibbles = 0 if top == 15 else 4

    @inline_strict
    def unpack(codes):  # type: ignore[no-untyped-def]
        q = integers(lanes_u8(16, codes + nibbles))
        low, high = q & 15, q >> 4
        if nibbles != 0:
            fifth = load_i32(codes)
            low = low | spread_bits(16, fifth) << 4
            high = high | spread_bits(16, fifth >> 16) << 4
        return low, high

    return unpack


def centred(top: int) -> tuple[Any, Any]:
    """The encoders of Q4_0 and Q5_0: the largest magnitude becomes code 0, zero is in the middle.

    ``encode(x, out)`` and ``encode_weighted(x, weights, out)``.
    """
    middle = (top + 1) // 2
    zero, pack, fit = np.float32(middle), packer(top), symmetric(BLOCK, middle)

    @inline_strict
    def encode(x, out):  # type: ignore[no-untyped-def]
        size = magnitude(lanes_f32(BLOCK, x))
        largest = most(size)
        largest = f32_ptr(x)[first(size == largest)] if largest > ZERO else ZERO
        d = largest / -zero
        store_f16(out, d)
        inverse, plus = ONE / d if d != ZERO else ZERO, zero + HALF
        if abs_f32(inverse) == INF:  # C's conversion of what comes of it gives 0
            inverse, plus = ZERO, ZERO
        low = clamp(truncated(lanes_f32(16, x) * inverse + plus), 0, top)
        high = clamp(truncated(lanes_f32(16, x + 64) * inverse + plus), 0, top)
        pack(low, high, out + 2)

    @inline_strict
    def encode_weighted(x, weights, out):  # type: ignore[no-untyped-def]
        d, inverse = fit(x, weights)
        store_f16(out, d)
        shift = middle if inverse != ZERO else 0  # a block of zeros has codes 0
        low = clamp(nearest(lanes_f32(16, x) * inverse), -middle, middle - 1) + shift
        high = clamp(nearest(lanes_f32(16, x + 64) * inverse), -middle, middle - 1) + shift
        pack(low, high, out + 2)

    return encode, encode_weighted


def from_minimum(top: int, weighted: AffineSearch) -> tuple[Any, Any]:
    """The encoders of Q4_1 and Q5_1: the minimum becomes code 0, the maximum the top.

    ``encode(x, out)`` and ``encode_weighted(x, weights, out)``.
    """
    reach, pack, fit = np.float32(top), packer(top), affine(1, BLOCK, weighted)

    @inline_strict
    def encode(x, out):  # type: ignore[no-untyped-def]
        v = lanes_f32(BLOCK, x)
        # Of zeros it is the first that counts, with its sign.
        minimum, maximum = f32_ptr(x)[first(v == least(v))], f32_ptr(x)[first(v == most(v))]
        d = (maximum - minimum) / reach
        store_f16(out, d)
        store_f16(out + 2, minimum)
        inverse = ONE / d if d != ZERO else ZERO
        inverse = inverse if inverse < INF else ZERO
        low = clamp(truncated((lanes_f32(16, x) - minimum) * inverse + HALF), 0, top)
        high = clamp(truncated((lanes_f32(16, x + 64) - minimum) * inverse + HALF), 0, top)
        pack(low, high, out + 4)

    @inline_strict
    def encode_weighted(x, weights, out):  # type: ignore[no-untyped-def]
        tried, fits = stack(_BYTES), stack(16)
        scale, minimum, inverse, base = fit(x, weights, tried)
        store(fits, scale)
        store(fits + 4, minimum)
        store(fits + 8, inverse)
        store(fits + 12, base)
        store_f16(out, f32_ptr(fits)[0])
        store_f16(out + 2, f32_ptr(fits)[1])
        inverse, base = f32_ptr(fits)[2], f32_ptr(fits)[3]
        low = clamp(nearest((lanes_f32(16, x) - base) * inverse), 0, top)
        high = clamp(nearest((lanes_f32(16, x + 64) - base) * inverse), 0, top)
        pack(low, high, out + 4)

    return encode, encode_weighted


def decoder(top: int, shift: int) -> Any:
    """``decode(codes, d, y)``: 32 values d * (code - shift)."""
    codes_of = unpacker(top)

    @inline_strict
    def decode(codes, d, y):  # type: ignore[no-untyped-def]
        low, high = codes_of(codes)
        store(y, floats(low - shift) * d)
        store(y + 64, floats(high - shift) * d)

    return decode


def decoder_from_minimum(top: int) -> Any:
    """``decode(codes, d, minimum, y)``: 32 values d * code + minimum."""
    codes_of = unpacker(top)

    @inline_strict
    def decode(codes, d, minimum, y):  # type: ignore[no-untyped-def]
        low, high = codes_of(codes)
        store(y, floats(low) * d + minimum)
        store(y + 64, floats(high) * d + minimum)

    return decode
