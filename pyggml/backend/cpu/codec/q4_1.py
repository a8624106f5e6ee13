"""Q4_1 in jitted code; see ``quants/q4_1.py``."""

from __future__ import annotations

from ....jit import inline_strict
from ....quants.q4_1 import WEIGHTED
from ..simd.half import load_f16
from .nibbles import decoder_from_minimum, from_minimum

TOP = WEIGHTED.top
encode_q4_1, encode_q4_1_weighted = from_minimum(TOP, WEIGHTED)
_decode = decoder_from_minimum(TOP)


@inline_strict
def decode_q4_1(block, y):  # type: ignore[no-untyped-def]
    """One block as 32 float32 at ``y``."""
    _decode(block + 4, load_f16(block), load_f16(block + 2), y)
