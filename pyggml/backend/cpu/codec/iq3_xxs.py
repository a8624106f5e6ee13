"""IQ3_XXS in jitted code; see ``quants/iq3_xxs.py``."""

from __future__ import annotations

import numpy as np

from ....dtype import GGMLType
from ....jit import inline_strict
from ..abi import load_i32, u8_ptr
from ..simd.half import load_f16
from ..simd.math import HALF
from .codes import put_signed, with_eighth
from .tables import values_of

_KIND = int(GGMLType.IQ3_XXS)


@inline_strict
def decode_iq3_xxs(block, y):  # type: ignore[no-untyped-def]
    """One block as 256 float32 at ``y``."""
    d, entries, codes = load_f16(block), values_of(_KIND), u8_ptr(block + 2)
    for i in range(64):
        word = np.int64(np.uint32(load_i32(block + 66 + 4 * (i >> 3))))
        scale = d * (HALF + np.float32(word >> 28)) * HALF
        signs = with_eighth(word >> 7 * (i >> 1 & 3) & 127) >> 4 * (i & 1)
        put_signed(entries + 4 * np.int64(codes[i]), 4, signs, scale, y + 16 * i)
