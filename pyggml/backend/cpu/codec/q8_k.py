"""Q8_K in jitted code; see ``quants/q8_k.py``."""

from __future__ import annotations

import numpy as np

from ....jit import inline_strict
from ..abi import load_f32
from ..simd.element import F32, I16, put
from ..simd.lanes import clamp, floats, lanes_f32, lanes_u8, narrow, signed, store, total
from ..simd.math import ONE, ZERO
from .rounding import nearest
from .superblock import SUPERBLOCK
from .symmetric import first_largest

QS, SUMS = 4, 260  # where codes and sums stand in a block
_127 = np.float32(127)
_LEAST = -(1 << 30)


@inline_strict
def encode_q8_k(x, out):  # type: ignore[no-untyped-def]
    """256 float32 at ``x`` as one block at ``out``."""
    largest = first_largest(x, SUPERBLOCK)
    inverse = -_127 / largest if largest != ZERO else ZERO
    put(F32, out, 0, ONE / inverse if largest != ZERO else ZERO)
    for j in range(16):
        codes = narrow(clamp(nearest(lanes_f32(16, x + 64 * j) * inverse), _LEAST, 127))
        store(out + QS + 16 * j, codes)
        put(I16, out + SUMS, j, np.int16(total(signed(codes))))


@inline_strict
def decode_q8_k(block, y):  # type: ignore[no-untyped-def]
    """One block as 256 float32 at ``y``."""
    d = load_f32(block)
    for j in range(16):
        store(y + 64 * j, floats(signed(lanes_u8(16, block + QS + 16 * j))) * d)
