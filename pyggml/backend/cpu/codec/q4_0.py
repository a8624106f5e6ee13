"""Q4_0 in jitted code; see ``quants/q4_0.py``."""

from __future__ import annotations

from ....jit import inline_strict
from ..simd.half import load_f16
from .nibbles import centred, decoder

TOP, MIDDLE = 15, 8
encode_q4_0, encode_q4_0_weighted = centred(TOP)
_decode = decoder(TOP, MIDDLE)


@inline_strict
def decode_q4_0(block, y):  # type: ignore[no-untyped-def]
    """One block as 32 float32 at ``y``."""
    _decode(block + 2, load_f16(block), y)
