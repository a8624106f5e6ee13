"""IQ2_XXS in jitted code; see ``quants/iq2_xxs.py``."""

from __future__ import annotations

import numpy as np

from ....dtype import GGMLType
from ....jit import inline_strict
from ..abi import load_i32, u8_ptr
from ..simd.half import load_f16
from ..simd.math import HALF
from .codes import put_signed, with_eighth
from .tables import values_of

_KIND = int(GGMLType.IQ2_XXS)
_QUARTER = np.float32(0.25)


@inline_strict
def decode_iq2_xxs(block, y):  # type: ignore[no-untyped-def]
    """One block as 256 float32 at ``y``."""
    d, entries = load_f16(block), values_of(_KIND)
    for group in range(8):
        codes = block + 2 + 8 * group
        word = np.int64(np.uint32(load_i32(codes + 4)))
        scale = d * (HALF + np.float32(word >> 28)) * _QUARTER
        for i in range(4):
            entry = entries + 8 * np.int64(u8_ptr(codes)[i])
            put_signed(entry, 8, with_eighth(word >> 7 * i & 127), scale, y + 128 * group + 32 * i)
