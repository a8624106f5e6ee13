"""ggml's rounding in jitted code, of one value and of lanes; see ``quants/exact.py``."""

from __future__ import annotations

import numpy as np

from ....jit import inline_strict
from ..abi import f32_bits
from ..simd.lanes import bits
from ..simd.math import MAGIC

_LOW, _BIAS = np.int32(0x7FFFFF), np.int32(0x400000)


@inline_strict
def nearest(v):  # type: ignore[no-untyped-def]
    """The nearest integers of lanes, ties to even; beyond 2^22 the same useless bits as C's."""
    return (bits(v + MAGIC) & _LOW) - _BIAS


@inline_strict
def nearest_int(v):  # type: ignore[no-untyped-def]
    """``nearest`` of one float32."""
    return (f32_bits(v + MAGIC) & _LOW) - _BIAS
