"""What decoders of several formats share: codes that choose values."""

from __future__ import annotations

import numpy as np

from ....jit import inline_strict
from ..simd.element import F32, I8, put, take


@inline_strict
def decode_nibbles(codes, values, d, y):  # type: ignore[no-untyped-def]
    """16 bytes that choose among 16 int8 ``values``, times ``d``: 32 float32 at ``y``."""
    for i in range(16):
        q = np.int64(take(I8, codes, i))
        put(F32, y, i, d * np.float32(take(I8, values, q & 15)))
        put(F32, y, 16 + i, d * np.float32(take(I8, values, q >> 4 & 15)))
