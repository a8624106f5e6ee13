"""IQ2_XS in jitted code; see ``quants/iq2_xs.py``."""

from __future__ import annotations

import numpy as np

from ....dtype import GGMLType
from ....jit import inline_strict
from ..abi import u8_ptr, u16_ptr
from ..simd.half import load_f16
from ..simd.math import HALF
from .codes import put_signed, with_eighth
from .tables import values_of

_KIND = int(GGMLType.IQ2_XS)
_QUARTER = np.float32(0.25)


@inline_strict
def decode_iq2_xs(block, y):  # type: ignore[no-untyped-def]
    """One block as 256 float32 at ``y``."""
    d, entries = load_f16(block), values_of(_KIND)
    codes, scales = u16_ptr(block + 2), u8_ptr(block + 66)
    for i in range(32):
        code = np.int64(codes[i])
        step = np.int64(scales[i >> 2]) >> 4 * (i >> 1 & 1) & 15
        scale = d * (HALF + np.float32(step)) * _QUARTER
        put_signed(entries + 8 * (code & 511), 8, with_eighth(code >> 9), scale, y + 32 * i)
