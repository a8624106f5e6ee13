"""Q5_0 in jitted code; see ``quants/q5_0.py``."""

from __future__ import annotations

from ....jit import inline_strict
from ..simd.half import load_f16
from .nibbles import centred, decoder

TOP, MIDDLE = 31, 16
encode_q5_0, encode_q5_0_weighted = centred(TOP)
_decode = decoder(TOP, MIDDLE)


@inline_strict
def decode_q5_0(block, y):  # type: ignore[no-untyped-def]
    """One block as 32 float32 at ``y``."""
    _decode(block + 2, load_f16(block), y)
