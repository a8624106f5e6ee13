"""Q5_1 in jitted code; see ``quants/q5_1.py``."""

from __future__ import annotations

from ....jit import inline_strict
from ..simd.half import load_f16
from .nibbles import decode_codes, encode_from_minimum

TOP = 31


@inline_strict
def encode_q5_1(x, out):  # type: ignore[no-untyped-def]
    """32 float32 at ``x`` as one block at ``out``."""
    encode_from_minimum(x, TOP, out)


@inline_strict
def decode_q5_1(block, y):  # type: ignore[no-untyped-def]
    """One block as 32 float32 at ``y``."""
    decode_codes(block + 4, TOP, 0, load_f16(block), load_f16(block + 2), y)
