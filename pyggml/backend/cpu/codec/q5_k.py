"""Q5_K in jitted code; see ``quants/q5_k.py``."""

from __future__ import annotations

from ....jit import inline_strict
from ....quants.q5_k import SEARCH, WEIGHTED
from ..simd.lanes import floats, integers, lanes_u8, stack, store
from .scale_min import choosers, step_of
from .superblock import SUPERBLOCK, pack_bits, pack_halves

_choose, _choose_weighted = choosers(SEARCH, WEIGHTED)


@inline_strict
def encode_q5_k(x, out):  # type: ignore[no-untyped-def]
    """256 float32 at ``x`` as one block at ``out``."""
    codes = stack(SUPERBLOCK)
    _choose(x, codes, out)
    pack_bits(codes, 4, out + 16)
    pack_halves(codes, out + 48)


@inline_strict
def encode_q5_k_weighted(x, weights, out):  # type: ignore[no-untyped-def]
    """``encode_q5_k`` with importance weights."""
    codes = stack(SUPERBLOCK)
    _choose_weighted(x, weights, codes, out)
    pack_bits(codes, 4, out + 16)
    pack_halves(codes, out + 48)


@inline_strict
def decode_q5_k(block, y):  # type: ignore[no-untyped-def]
    """One block as 256 float32 at ``y``."""
    fifth = lanes_u8(32, block + 16)
    for i in range(4):
        q = lanes_u8(32, block + 48 + 32 * i)
        d, low = step_of(block, 2 * i)
        bits = ((fifth >> 2 * i) & 1) << 4
        store(y + 256 * i, floats(integers((q & 15) | bits)) * d - low)
        d, low = step_of(block, 2 * i + 1)
        bits = ((fifth >> (2 * i + 1)) & 1) << 4
        store(y + 256 * i + 128, floats(integers((q >> 4) | bits)) * d - low)
