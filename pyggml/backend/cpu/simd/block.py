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
from ..abi import f32_ptr, u8_ptr
from .element import F32, I8, put, take
from .half import load_f16, store_f16
from .math import HALF, ONE, ZERO, abs_f32, with_sign

Q8_0, Q4_0, Q4_1 = int(GGMLType.Q8_0), int(GGMLType.Q4_0), int(GGMLType.Q4_1)
TYPES = (GGMLType.Q8_0, GGMLType.Q4_0, GGMLType.Q4_1)
BLOCK = 32
_127, _15, _8_5 = np.float32(127), np.float32(15), np.float32(8.5)
_EIGHTH = np.float32(-8)


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
def _put_nibbles(x, minus, inverse, plus, out):  # type: ignore[no-untyped-def]
    """``trunc((x - minus) * inverse + plus)``, element j low and j + 16 high in byte j."""
    xs, codes = f32_ptr(x), u8_ptr(out)
    for i in range(BLOCK // 2):
        low = _code((xs[i] - minus) * inverse + plus, 15)
        high = _code((xs[i + BLOCK // 2] - minus) * inverse + plus, 15)
        codes[i] = low | high << 4


@inline_strict
def _encode_q4_0(x, out):  # type: ignore[no-untyped-def]
    xs = f32_ptr(x)
    top, signed = ZERO, ZERO
    for i in range(BLOCK):
        a = abs_f32(xs[i])
        signed = xs[i] if a > top else signed
        top = a if a > top else top
    d = signed / _EIGHTH
    store_f16(out, d)
    _put_nibbles(x, ZERO, ONE / d if d != ZERO else ZERO, _8_5, out + 2)


@inline_strict
def _encode_q4_1(x, out):  # type: ignore[no-untyped-def]
    xs = f32_ptr(x)
    low = high = xs[0]
    for i in range(BLOCK):
        low = xs[i] if xs[i] < low else low
        high = xs[i] if xs[i] > high else high
    d = (high - low) / _15
    store_f16(out, d)
    store_f16(out + 2, low)
    _put_nibbles(x, low, ONE / d if d != ZERO else ZERO, HALF, out + 4)


@inline_strict
def encode_block(kind, x, out):  # type: ignore[no-untyped-def]
    """32 float32 at ``x`` as one block at ``out``."""
    if kind == Q8_0:
        _encode_q8_0(x, out)
    elif kind == Q4_0:
        _encode_q4_0(x, out)
    else:
        _encode_q4_1(x, out)


@inline_strict
def decode_block(kind, x, y):  # type: ignore[no-untyped-def]
    """One block at ``x`` as 32 float32 at ``y``."""
    d = load_f16(x)
    if kind == Q8_0:
        for i in range(BLOCK):
            put(F32, y, i, np.float32(np.int32(take(I8, x + 2, i))) * d)
        return
    half = BLOCK // 2
    offset, shift, codes = ZERO, 8, x + 2
    if kind == Q4_1:
        offset, shift, codes = load_f16(x + 2), 0, x + 4
    for i in range(half):
        q = np.int32(take(I8, codes, i))
        low, high = np.int32((q & 15) - shift), np.int32(((q >> 4) & 15) - shift)
        put(F32, y, i, np.float32(low) * d + offset)
        put(F32, y, half + i, np.float32(high) * d + offset)
