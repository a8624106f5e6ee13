"""ggml's 32-element blocks: encoding to the reference's very bytes, and decoding.

    encode(Q8_0, x, out, n)                        # n float32 at x; kind as a literal int
    decode(Q4_1, blocks, y, n)

For jitted code. Strict float32 in the reference's order of operations, so the bytes are ggml's.
Source: ggml, ``quantize_row_*_ref`` and ``dequantize_row_*``.
"""

from __future__ import annotations

import numpy as np

from ....dtype import GGMLType
from ....jit import inline_strict
from ..abi import f32_ptr, load_i32, u8_ptr
from .element import F32, I8, put, take
from .half import load_f16, store_f16
from .math import HALF, ONE, ZERO, abs_f32, with_sign

TYPES = (GGMLType.Q8_0, GGMLType.Q4_0, GGMLType.Q4_1, GGMLType.Q5_0, GGMLType.Q5_1)
Q8_0, Q4_0, Q4_1, Q5_0, Q5_1 = BLOCKS = tuple(int(t) for t in TYPES)
BLOCK = 32
_127 = np.float32(127)


@inline_strict
def _code(v, top):  # type: ignore[no-untyped-def]
    """``v`` towards zero as an integer from 0 to ``top`` (NaN: 0)."""
    v = v if v > ZERO else ZERO
    return min(int(v if v < np.float32(top) else np.float32(top)), top)


@inline_strict
def _encode_q8_0(x, out):  # type: ignore[no-untyped-def]
    xs = f32_ptr(x)
    top = ZERO
    for i in range(BLOCK):
        a = abs_f32(xs[i])
        top = a if a > top else top
    d = top / _127
    inverse = ONE / d if d != ZERO else ZERO
    store_f16(out, d)
    for i in range(BLOCK):
        v = xs[i] * inverse
        t = np.trunc(v)
        t = t + with_sign(ONE, v) if abs_f32(v - t) >= HALF else t  # half goes away from zero
        put(I8, out + 2, i, t)


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
def _encode_centred(x, top, out):  # type: ignore[no-untyped-def]
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
def _encode_from_minimum(x, top, out):  # type: ignore[no-untyped-def]
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
def encode_block(kind, x, out):  # type: ignore[no-untyped-def]
    """32 float32 at ``x`` as one block at ``out``."""
    if kind == Q8_0:
        _encode_q8_0(x, out)
    elif kind == Q4_0:
        _encode_centred(x, 15, out)
    elif kind == Q5_0:
        _encode_centred(x, 31, out)
    elif kind == Q4_1:
        _encode_from_minimum(x, 15, out)
    else:
        _encode_from_minimum(x, 31, out)


@inline_strict
def decode_block(kind, x, y):  # type: ignore[no-untyped-def]
    """One block at ``x`` as 32 float32 at ``y``."""
    d = load_f16(x)
    if kind == Q8_0:
        for i in range(BLOCK):
            put(F32, y, i, np.float32(np.int32(take(I8, x + 2, i))) * d)
        return
    half = BLOCK // 2
    offset, shift, codes, fifth = ZERO, 16 if kind == Q5_0 else 8, x + 2, 0
    if kind in (Q4_1, Q5_1):
        offset, shift, codes = load_f16(x + 2), 0, x + 4
    if kind in (Q5_0, Q5_1):
        fifth, codes = np.int64(load_i32(codes)), codes + 4
    for i in range(half):
        q = np.int32(take(I8, codes, i))
        low = np.int32((q & 15 | (fifth >> i & 1) << 4) - shift)
        high = np.int32(((q >> 4) & 15 | (fifth >> (i + half) & 1) << 4) - shift)
        put(F32, y, i, np.float32(low) * d + offset)
        put(F32, y, half + i, np.float32(high) * d + offset)
