"""TQ2_0 in jitted code; see ``quants/tq2_0.py``. TQ1_0 has the same codes."""

from __future__ import annotations

import numpy as np

from ....jit import inline_strict
from ..abi import f32_ptr, u8_ptr
from ..simd.element import F32, I8, put, take
from ..simd.half import load_f16, store_f16
from ..simd.math import HALF, INF, ONE, ZERO, abs_f32

BLOCK = 256


@inline_strict
def scale_of(x):  # type: ignore[no-untyped-def]
    """The largest magnitude of a block of float32 and its inverse (0 where it has none)."""
    xs, d = f32_ptr(x), ZERO
    for i in range(BLOCK):
        a = abs_f32(xs[i])
        d = a if a > d else d
    inverse = ONE / d
    return d, inverse if inverse < INF else ZERO


@inline_strict
def code_of(v):  # type: ignore[no-untyped-def]
    """0, 1 or 2 for a number that rounds to -1, 0 or 1 (halves away from zero)."""
    return 1 + np.int64(v >= HALF) - np.int64(v <= -HALF)


@inline_strict
def encode_tq2_0(x, out):  # type: ignore[no-untyped-def]
    """256 float32 at ``x`` as one block at ``out``."""
    d, inverse = scale_of(x)
    store_f16(out + 64, d)
    xs, codes = f32_ptr(x), u8_ptr(out)
    for i in range(64):
        q = 0
        for n in range(4):
            q |= code_of(xs[i % 32 + 32 * n + i // 32 * 128] * inverse) << 2 * n
        codes[i] = q


@inline_strict
def decode_tq2_0(block, y):  # type: ignore[no-untyped-def]
    """One block as 256 float32 at ``y``."""
    d = load_f16(block + 64)
    for part in range(8):
        codes, shift = block + 32 * (part >> 2), 2 * (part & 3)
        for i in range(32):
            q = (np.int32(take(I8, codes, i)) >> shift & 3) - 1
            put(F32, y + 128 * part, i, d * np.float32(q))
