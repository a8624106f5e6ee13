"""Q4_K in jitted code; see ``quants/q4_k.py``."""

from __future__ import annotations

from ....jit import inline_strict
from ....quants.q4_k import SEARCH, WEIGHTED
from ..simd.lanes import floats, integers, lanes_u8, stack, store
from .scale_min import choosers, step_of
from .superblock import SUPERBLOCK, pack_halves

_choose, _choose_weighted = choosers(SEARCH, WEIGHTED)


@inline_strict
def encode_q4_k(x, out):  # type: ignore[no-untyped-def]
    """256 float32 at ``x`` as one block at ``out``."""
    codes = stack(SUPERBLOCK)
    _choose(x, codes, out)
    pack_halves(codes, out + 16)


@inline_strict
def encode_q4_k_weighted(x, weights, out):  # type: ignore[no-untyped-def]
    """``encode_q4_k`` with importance weights."""
    codes = stack(SUPERBLOCK)
    _choose_weighted(x, weights, codes, out)
    pack_halves(codes, out + 16)


@inline_strict
def decode_q4_k(block, y):  # type: ignore[no-untyped-def]
    """One block as 256 float32 at ``y``."""
    for i in range(4):
        q = lanes_u8(32, block + 16 + 32 * i)
        d, low = step_of(block, 2 * i)
        store(y + 256 * i, floats(integers(q & 15)) * d - low)
        d, low = step_of(block, 2 * i + 1)
        store(y + 256 * i + 128, floats(integers(q >> 4)) * d - low)
