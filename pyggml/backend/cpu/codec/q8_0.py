"""Q8_0 in jitted code; see ``quants/q8_0.py``."""

from __future__ import annotations

import numpy as np

from ....jit import inline_strict
from ..abi import f32_ptr
from ..simd.element import F32, I8, put, take
from ..simd.half import load_f16, store_f16
from ..simd.math import HALF, ONE, ZERO, abs_f32, with_sign

BLOCK = 32
_127 = np.float32(127)


@inline_strict
def encode_q8_0(x, out):  # type: ignore[no-untyped-def]
    """32 float32 at ``x`` as one block at ``out``."""
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
def decode_q8_0(block, y):  # type: ignore[no-untyped-def]
    """One block as 32 float32 at ``y``."""
    d = load_f16(block)
    for i in range(BLOCK):
        put(F32, y, i, np.float32(np.int32(take(I8, block + 2, i))) * d)
