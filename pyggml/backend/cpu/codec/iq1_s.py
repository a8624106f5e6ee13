"""IQ1_S in jitted code; see ``quants/iq1_s.py``. IQ1_M has the same codebook."""

from __future__ import annotations

import numpy as np

from ....dtype import GGMLType
from ....jit import inline_strict
from ..abi import u8_ptr, u16_ptr
from ..simd.element import F32, I8, put, take
from ..simd.half import load_f16
from .tables import values_of

_KIND = int(GGMLType.IQ1_S)
DELTA = np.float32(0.125)


@inline_strict
def put_entry(code, minus, d, y):  # type: ignore[no-untyped-def]
    """An entry of the codebook, moved down (or up) by an eighth, times ``d``: 8 float32."""
    entry, delta = values_of(_KIND) + 8 * code, -DELTA if minus != 0 else DELTA
    for j in range(8):
        put(F32, y, j, d * (np.float32(take(I8, entry, j)) + delta))


@inline_strict
def decode_iq1_s(block, y):  # type: ignore[no-untyped-def]
    """One block as 256 float32 at ``y``."""
    d, codes, words = load_f16(block), u8_ptr(block + 2), u16_ptr(block + 34)
    for i in range(32):
        word = np.int64(words[i >> 2])
        code = np.int64(codes[i]) | (word >> 3 * (i & 3) & 7) << 8
        scale = d * np.float32(2 * (word >> 12 & 7) + 1)
        put_entry(code, word >> 15, scale, y + 32 * i)
