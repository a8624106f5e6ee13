"""The encoder of TQ1_0 and TQ2_0 in jitted code; see ``quants/ternary.py``."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....jit import inline_strict
from ....quants.block import BlockType
from ..abi import f32_ptr, u8_ptr
from ..layout import COLUMNS
from ..simd.half import store_f16
from ..simd.lanes import stack
from ..simd.math import HALF, INF, ONE, ZERO, abs_f32
from .blocks import put_codes


def ternary(f: BlockType) -> tuple[Any, Any]:
    """Codes 0, 1 and 2 of -d, 0 and d, the largest magnitude. Weights change nothing."""
    kind, d_at = int(f.type), f.d[0].at // 8

    @inline_strict
    def encode(x, out):  # type: ignore[no-untyped-def]
        xs, codes, d = f32_ptr(x), stack(COLUMNS), ZERO
        for i in range(COLUMNS):
            a = abs_f32(xs[i])
            d = a if a > d else d
        store_f16(out + d_at, d)
        inverse = ONE / d
        inverse = inverse if inverse < INF else ZERO
        for i in range(COLUMNS):
            v = xs[i] * inverse  # halves go away from zero
            u8_ptr(codes)[i] = 1 + np.int64(v >= HALF) - np.int64(v <= -HALF)
        put_codes(kind, codes, out)

    return encode, None
