"""IQ2_XS in jitted code; see ``quants/iq2_xs.py``."""

from __future__ import annotations

import numpy as np

from ....dtype import GGMLType
from ....jit import inline_strict
from ..abi import u8_ptr, u16_ptr
from .codebook import put_codes, put_half, put_step, with_eighth
from .tables import values_of

_KIND = int(GGMLType.IQ2_XS)


@inline_strict
def split_iq2_xs(block, parts):  # type: ignore[no-untyped-def]
    """One block as its parts, see ``codebook``."""
    codes, scales, entries = u16_ptr(block + 2), u8_ptr(block + 66), values_of(_KIND)
    put_half(parts, block)
    for i in range(16):
        put_step(parts, i, np.int64(scales[i >> 1]) >> 4 * (i & 1) & 15)
    for i in range(32):
        code = np.int64(codes[i])
        put_codes(_KIND, entries + 8 * (code & 511), with_eighth(code >> 9), parts, i)
