"""IQ2_XXS in jitted code; see ``quants/iq2_xxs.py``."""

from __future__ import annotations

import numpy as np

from ....dtype import GGMLType
from ....jit import inline_strict
from ..abi import load_i32, u8_ptr
from .codebook import put_codes, put_half, put_step, with_eighth
from .tables import values_of

_KIND = int(GGMLType.IQ2_XXS)


@inline_strict
def split_iq2_xxs(block, parts):  # type: ignore[no-untyped-def]
    """One block as its parts, see ``codebook``."""
    entries = values_of(_KIND)
    put_half(parts, block)
    for group in range(8):
        codes = block + 2 + 8 * group
        word = np.int64(np.uint32(load_i32(codes + 4)))
        put_step(parts, group, word >> 28)
        for i in range(4):
            entry = entries + 8 * np.int64(u8_ptr(codes)[i])
            put_codes(_KIND, entry, with_eighth(word >> 7 * i & 127), parts, 4 * group + i)
