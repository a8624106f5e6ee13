"""Blocks of 32 codes of 4 or 5 bits: packing them, and the searches without importance weights.

For jitted code; strict float32 in the reference's order of operations.
Source: ggml, ``quantize_row_q4_0_ref`` and its siblings.
"""

from __future__ import annotations

import numpy as np

from ....jit import inline_strict
from ..abi import f32_ptr, load_i32, u8_ptr
from ..simd.element import F32, I8, put, take
from ..simd.half import store_f16
from ..simd.math import HALF, ONE, ZERO, abs_f32

BLOCK = 32


@inline_strict
def _code(v, top):  # type: ignore[no-untyped-def]
    """``v`` towards zero as an integer from 0 to ``top`` (NaN: 0)."""
    v = v if v > ZERO else ZERO
    return min(int(v if v < np.float32(top) else np.float32(top)), top)


@inline_strict
def _put_codes(x, top, minus, inverse, plus, out):  # type: ignore[no-untyped-def]
    """``trunc((x - minus) * inverse + plus)``: element j low and j + 16 high in byte j.

    Codes up to 31 have their fifth bits before them, element j in bit j.
    """
    xs, codes = f32_ptr(x), u8_ptr(out if top == 15 else out + 4)
    half = BLOCK // 2
    fifth = 0
    for i in range(half):
        low = _code((xs[i] - minus) * inverse + plus, top)
        high = _code((xs[i + half] - minus) * inverse + plus, top)
        codes[i] = (low & 15) | (high & 15) << 4
        fifth |= (low >> 4) << i | (high >> 4) << (i + half)
    if top != 15:
        for i in range(4):
            u8_ptr(out)[i] = (fifth >> 8 * i) & 255


@inline_strict
def encode_centred(x, top, out):  # type: ignore[no-untyped-def]
    """Q4_0 and Q5_0: the largest magnitude becomes code 0, zero (top + 1) / 2."""
    xs = f32_ptr(x)
    largest, signed = ZERO, ZERO
    for i in range(BLOCK):
        a = abs_f32(xs[i])
        signed = xs[i] if a > largest else signed
        largest = a if a > largest else largest
    zero = np.float32((top + 1) // 2)
    d = signed / -zero
    store_f16(out, d)
    _put_codes(x, top, ZERO, ONE / d if d != ZERO else ZERO, zero + HALF, out + 2)


@inline_strict
def encode_from_minimum(x, top, out):  # type: ignore[no-untyped-def]
    """Q4_1 and Q5_1: the minimum becomes code 0, the maximum the top."""
    xs = f32_ptr(x)
    low = high = xs[0]
    for i in range(BLOCK):
        low = xs[i] if xs[i] < low else low
        high = xs[i] if xs[i] > high else high
    d = (high - low) / np.float32(top)
    store_f16(out, d)
    store_f16(out + 2, low)
    _put_codes(x, top, low, ONE / d if d != ZERO else ZERO, HALF, out + 4)


@inline_strict
def decode_codes(codes, top, shift, d, offset, y):  # type: ignore[no-untyped-def]
    """``d * (code - shift) + offset`` of codes as ``_put_codes`` writes them."""
    half = BLOCK // 2
    fifth = 0
    if top != 15:
        fifth, codes = np.int64(load_i32(codes)), codes + 4
    for i in range(half):
        q = np.int32(take(I8, codes, i))
        low = np.int32((q & 15 | (fifth >> i & 1) << 4) - shift)
        high = np.int32(((q >> 4) & 15 | (fifth >> (i + half) & 1) << 4) - shift)
        put(F32, y, i, np.float32(low) * d + offset)
        put(F32, y, half + i, np.float32(high) * d + offset)
