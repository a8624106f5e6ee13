"""IQ3_XXS in jitted code; see ``quants/iq3_xxs.py``."""

from __future__ import annotations

import numpy as np

from ....dtype import GGMLType
from ....jit import inline_strict
from ..abi import load_i32, u8_ptr
from .codebook import put_codes, put_half, put_step, with_eighth
from .tables import values_of

_KIND = int(GGMLType.IQ3_XXS)


@inline_strict
def split_iq3_xxs(block, parts):  # type: ignore[no-untyped-def]
    """One block as its parts, see ``codebook``."""
    codes, entries = u8_ptr(block + 2), values_of(_KIND)
    put_half(parts, block)
    for group in range(8):
        word = np.int64(np.uint32(load_i32(block + 66 + 4 * group)))
        put_step(parts, group, word >> 28)
        for j in range(8):
            i = 8 * group + j
            signs = with_eighth(word >> 7 * (j >> 1) & 127) >> 4 * (j & 1)
            put_codes(_KIND, entries + 4 * np.int64(codes[i]), signs, parts, i)
