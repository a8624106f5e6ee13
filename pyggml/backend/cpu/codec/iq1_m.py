"""IQ1_M in jitted code; see ``quants/iq1_m.py``."""

from __future__ import annotations

import numpy as np

from ....dtype import GGMLType
from ....jit import inline_strict
from ..abi import u8_ptr, u16_ptr
from .codebook import put_codes, put_step
from .tables import values_of

_KIND = int(GGMLType.IQ1_M)


@inline_strict
def split_iq1_m(block, parts):  # type: ignore[no-untyped-def]
    """One block as its parts, see ``codebook``."""
    codes, high, words = u8_ptr(block), u8_ptr(block + 32), u16_ptr(block + 48)
    bits, entries = 0, values_of(_KIND)
    for i in range(4):
        bits |= np.int64(words[i]) >> 12 << 4 * i
    u16_ptr(parts)[0] = bits
    for i in range(16):
        put_step(parts, i, np.int64(words[i >> 2]) >> 3 * (i & 3) & 7)
    for i in range(32):
        nibble = np.int64(high[i >> 1]) >> 4 * (i & 1) & 15
        code = np.int64(codes[i]) | (nibble & 7) << 8
        put_codes(_KIND, entries + 8 * code, (nibble >> 3) * 255, parts, i)
