"""IQ3_S in jitted code; see ``quants/iq3_s.py``."""

from __future__ import annotations

import numpy as np

from ....dtype import GGMLType
from ....jit import inline_strict
from ..abi import u8_ptr
from ..simd.half import load_f16
from .codes import put_signed
from .tables import values_of

_KIND = int(GGMLType.IQ3_S)


@inline_strict
def decode_iq3_s(block, y):  # type: ignore[no-untyped-def]
    """One block as 256 float32 at ``y``."""
    d, entries = load_f16(block), values_of(_KIND)
    codes, high = u8_ptr(block + 2), u8_ptr(block + 66)
    signs, scales = u8_ptr(block + 74), u8_ptr(block + 106)
    for i in range(64):
        code = np.int64(codes[i]) | (np.int64(high[i >> 3]) >> (i & 7) & 1) << 8
        step = np.int64(scales[i >> 4]) >> 4 * (i >> 3 & 1) & 15
        minus = np.int64(signs[i >> 1]) >> 4 * (i & 1)
        put_signed(entries + 4 * code, 4, minus, d * np.float32(1 + 2 * step), y + 16 * i)
