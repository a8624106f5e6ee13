"""IQ1_M in jitted code; see ``quants/iq1_m.py``."""

from __future__ import annotations

import numpy as np

from ....jit import inline_strict
from ..abi import u8_ptr, u16_ptr
from ..simd.half import f16_to_f32
from .iq1_s import put_entry


@inline_strict
def decode_iq1_m(block, y):  # type: ignore[no-untyped-def]
    """One block as 256 float32 at ``y``."""
    codes, high, words = u8_ptr(block), u8_ptr(block + 32), u16_ptr(block + 48)
    bits = 0
    for i in range(4):
        bits |= np.int64(words[i]) >> 12 << 4 * i
    d = f16_to_f32(np.uint16(bits))
    for i in range(32):
        nibble = np.int64(high[i >> 1]) >> 4 * (i & 1) & 15
        step = np.int64(words[i >> 3]) >> 3 * (i >> 1 & 3) & 7
        code = np.int64(codes[i]) | (nibble & 7) << 8
        put_entry(code, nibble >> 3, d * np.float32(2 * step + 1), y + 32 * i)
