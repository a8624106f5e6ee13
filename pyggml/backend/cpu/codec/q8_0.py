"""Q8_0 in jitted code; see ``quants/q8_0.py``."""

from __future__ import annotations

import numpy as np

from ....jit import inline_strict
from ..simd.half import load_f16, store_f16
from ..simd.lanes import (
    choose,
    floats,
    lanes_f32,
    lanes_u8,
    magnitude,
    most,
    narrow,
    signed,
    store,
    truncated,
)
from ..simd.math import HALF, INF, ONE, ZERO

BLOCK = 32
_127 = np.float32(127)


@inline_strict
def encode_q8_0(x, out):  # type: ignore[no-untyped-def]
    """32 float32 at ``x`` as one block at ``out``."""
    v = lanes_f32(BLOCK, x)
    d = most(magnitude(v)) / _127
    inverse = ONE / d if d != ZERO else ZERO
    inverse = inverse if inverse < INF else ZERO  # as C's conversion of infinities
    store_f16(out, d)
    v = v * inverse
    whole = truncated(v)
    rest = v - floats(whole)  # half goes away from zero
    away = choose(rest >= HALF, whole + 1, choose(rest <= -HALF, whole - 1, whole))
    store(out + 2, narrow(away))


@inline_strict
def decode_q8_0(block, y):  # type: ignore[no-untyped-def]
    """One block as 32 float32 at ``y``."""
    store(y, floats(signed(lanes_u8(BLOCK, block + 2))) * load_f16(block))
