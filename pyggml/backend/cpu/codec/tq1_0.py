"""TQ1_0 in jitted code; see ``quants/tq1_0.py``."""

from __future__ import annotations

import numpy as np

from ....jit import inline_strict
from ..abi import f32_ptr, u8_ptr
from ..simd.element import F32, I8, put, take
from ..simd.half import load_f16, store_f16
from .tq2_0 import code_of, scale_of


@inline_strict
def _encode(x, n, digits, inverse, out):  # type: ignore[no-untyped-def]
    """Digits of ``n`` bytes: digit k of byte i is element n * k + i at ``x``."""
    xs, codes = f32_ptr(x), u8_ptr(out)
    for i in range(n):
        q = 0
        for k in range(5):
            q = 3 * q + (code_of(xs[n * k + i] * inverse) if k < digits else 0)
        codes[i] = (q * 256 + 242) // 243


@inline_strict
def encode_tq1_0(x, out):  # type: ignore[no-untyped-def]
    """256 float32 at ``x`` as one block at ``out``."""
    d, inverse = scale_of(x)
    _encode(x, 32, 5, inverse, out)
    _encode(x + 4 * 160, 16, 5, inverse, out + 32)
    _encode(x + 4 * 240, 4, 4, inverse, out + 48)
    store_f16(out + 52, d)


@inline_strict
def _decode(codes, n, digits, d, y):  # type: ignore[no-untyped-def]
    power = np.int32(1)
    for k in range(digits):
        for i in range(n):
            q = (np.int32(take(I8, codes, i)) * power & 255) * np.int32(3) >> 8
            put(F32, y, n * k + i, d * np.float32(q - 1))
        power *= np.int32(3)


@inline_strict
def decode_tq1_0(block, y):  # type: ignore[no-untyped-def]
    """One block as 256 float32 at ``y``."""
    d = load_f16(block + 52)
    _decode(block, 32, 5, d, y)
    _decode(block + 32, 16, 5, d, y + 4 * 160)
    _decode(block + 48, 4, 4, d, y + 4 * 240)
