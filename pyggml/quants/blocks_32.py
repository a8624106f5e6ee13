"""Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0: 32 codes with one scale, centred or from a minimum.

    x[j] = d * (q[j] - zero)                       # Q4_0, Q5_0: zero 8 and 16; Q8_0: int8
    x[j] = d * q[j] + m                            # Q4_1, Q5_1

Source: ggml, ``quantize_row_q4_0_ref`` (the element of largest magnitude, the first of equal ones,
becomes code 0: d = that element / -8), ``quantize_row_q4_1_ref`` (d = (max - min) / 15, m = min),
their Q5 siblings, ``quantize_row_q8_0_ref`` (d = amax / 127, codes rounded half away from zero with
the reciprocal of the unrounded d); and their ``_impl`` with importance weights.
"""

from __future__ import annotations

import numpy as np

from ..dtype import GGMLType
from .block import (
    Bits,
    BlockType,
    Bytes,
    Field,
    Floats,
    bit_row,
    half,
    nibbles,
    register,
    row_weights,
)
from .search import (
    first_largest,
    first_smallest,
    fit_affine,
    fit_symmetric,
    inverse,
    weighted_search,
)


def encode_centred(f: BlockType, x: Floats, weights: Floats | None) -> Bytes:
    """float32 [n, 32] -> blocks [n]; the zero is the middle of the codes."""
    if weights is not None:
        d, codes = fit_symmetric(x, weights, f.zero)
        return f.blocks(d, codes=codes)
    top = first_largest(x)[:, None]
    d = (top + np.float32(0)) / np.float32(-f.zero)  # -0 becomes 0: ggml starts its search with 0
    q = x * (np.float32(1) / d) + np.float32(f.zero + 0.5)  # two roundings, as without FMA
    # Of d = 0 codes are the zero. Where it is so small that its inverse overflows, C's conversion
    # gives 0.
    q = np.where(np.isfinite(q), np.clip(np.trunc(q), 0, 2 * f.zero - 1), np.float32(0))
    return f.blocks(d[:, 0], codes=np.where(d == 0, np.float32(f.zero), q))


def encode_from_minimum(f: BlockType, x: Floats, weights: Floats | None) -> Bytes:
    """float32 [n, 32] -> blocks [n]; the minimum becomes code 0, the maximum the largest."""
    top = (1 << f.bits) - 1
    if weights is not None:
        d, low, codes = fit_affine(x, weights, weighted_search(top))
        return f.blocks(d, low, codes=codes)
    low = first_smallest(x)[:, None]
    high = np.take_along_axis(x, x.argmax(axis=1)[:, None], axis=1)  # of zeros the first, as low
    d = (high - low) / np.float32(top)
    with np.errstate(invalid="ignore"):  # 0 * inf where d is too small to have an inverse
        q = np.trunc((x - low) * inverse(d) + np.float32(0.5))  # two roundings, as without FMA
    codes = np.where(np.isnan(q), np.float32(0), np.minimum(q, np.float32(top)))
    return f.blocks(d[:, 0], low[:, 0], codes=codes)


def encode_rounded(f: BlockType, x: Floats, weights: Floats | None) -> Bytes:
    """float32 [n, 32] -> blocks [n] of int8."""
    d = np.abs(x).max(axis=1, keepdims=True) / np.float32(127)
    scaled = x * inverse(d)
    size = np.abs(scaled)
    whole = np.floor(size)  # size + 0.5 could round up to the next integer in float32
    q = np.copysign(whole + (size - whole >= np.float32(0.5)), scaled)
    return f.blocks(d[:, 0], codes=q.astype(np.int8))


def _fives(byte: int) -> Field:
    """Codes of 5 bits: their fifth bits, element j in bit j, then nibbles."""
    return (*nibbles(byte + 4), bit_row(byte, shift=4))


T = GGMLType
Q4_0 = register(
    BlockType(T.Q4_0, nibbles(2), half(0), zero=8, encode=encode_centred, weigh=row_weights)
)
Q4_1 = register(
    BlockType(
        T.Q4_1, nibbles(4), half(0), low=half(2), encode=encode_from_minimum, weigh=row_weights
    )
)
Q5_0 = register(
    BlockType(T.Q5_0, _fives(2), half(0), zero=16, encode=encode_centred, weigh=row_weights)
)
Q5_1 = register(
    BlockType(
        T.Q5_1, _fives(4), half(0), low=half(2), encode=encode_from_minimum, weigh=row_weights
    )
)
Q8_0 = register(
    BlockType(T.Q8_0, (Bits(8, 16, (32,), (8,)),), half(0), signed=True, encode=encode_rounded)
)
