"""IQ1_S in jitted code; see ``quants/iq1_s.py``."""

from __future__ import annotations

import numpy as np

from ....dtype import GGMLType
from ....jit import inline_strict
from ..abi import u8_ptr, u16_ptr
from .codebook import put_codes, put_half, put_step
from .tables import values_of

_KIND = int(GGMLType.IQ1_S)


@inline_strict
def split_iq1_s(block, parts):  # type: ignore[no-untyped-def]
    """One block as its parts, see ``codebook``."""
    codes, words, entries = u8_ptr(block + 2), u16_ptr(block + 34), values_of(_KIND)
    put_half(parts, block)
    for group in range(8):
        word = np.int64(words[group])
        put_step(parts, group, word >> 12 & 7)
        for j in range(4):
            i = 4 * group + j
            code = np.int64(codes[i]) | (word >> 3 * j & 7) << 8
            put_codes(_KIND, entries + 8 * code, (word >> 15) * 255, parts, i)
