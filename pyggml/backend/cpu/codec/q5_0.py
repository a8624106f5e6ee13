"""Q5_0 in jitted code; see ``quants/q5_0.py``."""

from __future__ import annotations

from ....jit import inline_strict
from ..simd.half import load_f16
from ..simd.math import ZERO
from .nibbles import decode_codes, encode_centred

TOP, CENTRE = 31, 16


@inline_strict
def encode_q5_0(x, out):  # type: ignore[no-untyped-def]
    """32 float32 at ``x`` as one block at ``out``."""
    encode_centred(x, TOP, out)


@inline_strict
def decode_q5_0(block, y):  # type: ignore[no-untyped-def]
    """One block as 32 float32 at ``y``."""
    decode_codes(block + 2, TOP, CENTRE, load_f16(block), ZERO, y)
