"""IQ2_S in jitted code; see ``quants/iq2_s.py``."""

from __future__ import annotations

import numpy as np

from ....dtype import GGMLType
from ....jit import inline_strict
from ..abi import u8_ptr
from .codebook import put_codes, put_half, put_step
from .tables import values_of

_KIND = int(GGMLType.IQ2_S)


@inline_strict
def split_iq2_s(block, parts):  # type: ignore[no-untyped-def]
    """One block as its parts, see ``codebook``."""
    codes, signs = u8_ptr(block + 2), u8_ptr(block + 34)
    high, scales, entries = u8_ptr(block + 66), u8_ptr(block + 74), values_of(_KIND)
    put_half(parts, block)
    for i in range(16):
        put_step(parts, i, np.int64(scales[i >> 1]) >> 4 * (i & 1) & 15)
    for i in range(32):
        code = np.int64(codes[i]) | (np.int64(high[i >> 2]) >> 2 * (i & 3) & 3) << 8
        put_codes(_KIND, entries + 8 * code, np.int64(signs[i]), parts, i)
