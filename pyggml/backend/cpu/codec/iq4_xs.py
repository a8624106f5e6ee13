"""IQ4_XS in jitted code; see ``quants/iq4_xs.py``."""

from __future__ import annotations

import numpy as np

from ....jit import inline_strict
from ..abi import f32_ptr, u8_ptr
from ..simd.half import load_f16, store_f16
from ..simd.lanes import stack
from ..simd.math import ONE, ZERO, abs_f32
from .codes import decode_nibbles
from .iq4_nl import BLOCK, BLOCK_BYTES, KIND, put_codes, search, spread_of, weigh
from .tables import values_of

GROUPS = 8
_SCALES_BYTES = 4 * GROUPS
_32 = np.float32(32)


@inline_strict
def _step(block, group):  # type: ignore[no-untyped-def]
    """A group's scale in units of the block's."""
    low = np.int64(u8_ptr(block + 4)[group >> 1]) >> 4 * (group & 1) & 15
    high = np.int64(u8_ptr(block + 2)[group >> 2]) >> 2 * (group & 3) & 3
    return np.float32((low | high << 4) - 32)


@inline_strict
def encode_iq4_xs_weighted(x, weights, out):  # type: ignore[no-untyped-def]
    """256 float32 at ``x`` with importance weights (0: without) as one block at ``out``."""
    importance, found = stack(BLOCK_BYTES), stack(_SCALES_BYTES)
    spread = spread_of(x, GROUPS * BLOCK) if weights != 0 else ZERO
    largest, top = ZERO, ZERO
    for g in range(GROUPS):
        weigh(x + 128 * g, weights + 128 * g if weights != 0 else 0, spread, importance)
        scale = search(x + 128 * g, importance)
        f32_ptr(found)[g] = scale
        top = scale if abs_f32(scale) > largest else top
        largest = max(largest, abs_f32(scale))
    d = -top / _32
    store_f16(out, d)
    inverse = ONE / d if d != ZERO else ZERO
    for i in range(2, 8):
        u8_ptr(out)[i] = 0
    for g in range(GROUPS):
        step = np.int64(min(max(np.rint(inverse * f32_ptr(found)[g]), -_32), _32 - ONE)) + 32
        u8_ptr(out + 4)[g >> 1] |= (step & 15) << 4 * (g & 1)
        u8_ptr(out + 2)[g >> 2] |= step >> 4 << 2 * (g & 3)
        scale = d * np.float32(step - 32)
        put_codes(x + 128 * g, ONE / scale if scale != ZERO else ZERO, out + 8 + 16 * g)


@inline_strict
def encode_iq4_xs(x, out):  # type: ignore[no-untyped-def]
    """256 float32 at ``x`` as one block at ``out``."""
    encode_iq4_xs_weighted(x, 0, out)


@inline_strict
def decode_iq4_xs(block, y):  # type: ignore[no-untyped-def]
    """One block as 256 float32 at ``y``."""
    d = load_f16(block)
    for g in range(GROUPS):
        decode_nibbles(block + 8 + 16 * g, values_of(KIND), d * _step(block, g), y + 128 * g)
