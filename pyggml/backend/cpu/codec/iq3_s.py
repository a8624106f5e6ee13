"""IQ3_S in jitted code; see ``quants/iq3_s.py``."""

from __future__ import annotations

import numpy as np

from ....dtype import GGMLType
from ....jit import inline_strict
from ..abi import u8_ptr
from .codebook import put_codes, put_half, put_step
from .tables import values_of

_KIND = int(GGMLType.IQ3_S)


@inline_strict
def split_iq3_s(block, parts):  # type: ignore[no-untyped-def]
    """One block as its parts, see ``codebook``."""
    codes, high, entries = u8_ptr(block + 2), u8_ptr(block + 66), values_of(_KIND)
    signs, scales = u8_ptr(block + 74), u8_ptr(block + 106)
    put_half(parts, block)
    for i in range(8):
        put_step(parts, i, np.int64(scales[i >> 1]) >> 4 * (i & 1) & 15)
    for i in range(64):
        code = np.int64(codes[i]) | (np.int64(high[i >> 3]) >> (i & 7) & 1) << 8
        put_codes(_KIND, entries + 4 * code, np.int64(signs[i >> 1]) >> 4 * (i & 1), parts, i)
