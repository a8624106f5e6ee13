"""IQ4_NL in jitted code; see ``quants/iq4_nl.py``. IQ4_XS has the same values and search."""

from __future__ import annotations

import numpy as np

from ....dtype import GGMLType
from ....jit import inline_strict
from ..abi import f32_ptr, u8_ptr
from ..simd.element import F32, I8, take
from ..simd.half import load_f16, store_f16
from ..simd.lanes import stack
from ..simd.math import ONE, ZERO, abs_f32
from .codes import decode_nibbles
from .tables import iq4_limits, values_of

KIND = int(GGMLType.IQ4_NL)
BLOCK, CANDIDATES = 32, 16
BLOCK_BYTES, _LANES_BYTES = 4 * BLOCK, 3 * 4 * CANDIDATES
_LOWEST, _SMALLEST, _TWO = np.float32(-127), np.float32(1e-15), np.float32(2)


@inline_strict
def code_of(v):  # type: ignore[no-untyped-def]
    """The code of the nearest value; of two that are as near the upper one."""
    limits, n = iq4_limits(), 0
    for k in range(15):
        n += np.int64(v >= take(F32, limits, k))
    return n


@inline_strict
def put_codes(x, inverse, out):  # type: ignore[no-untyped-def]
    """The codes of 32 float32 times ``inverse``, in 16 bytes."""
    xs, codes = f32_ptr(x), u8_ptr(out)
    for i in range(16):
        codes[i] = code_of(xs[i] * inverse) | code_of(xs[16 + i] * inverse) << 4


@inline_strict
def spread_of(x, n):  # type: ignore[no-untyped-def]
    """Twice the mean square of ``n`` float32."""
    xs, total = f32_ptr(x), ZERO
    for i in range(n):
        total += xs[i] * xs[i]
    return total * (_TWO / np.float32(n))


@inline_strict
def weigh(x, weights, spread, out):  # type: ignore[no-untyped-def]
    """What errors of 32 float32 weigh; ``weights`` 0: there are none."""
    xs, total = f32_ptr(x), f32_ptr(out)
    for i in range(BLOCK):
        square = xs[i] * xs[i]
        if weights != 0:
            total[i] = f32_ptr(weights)[i] * np.sqrt(spread + square)
        else:
            total[i] = square


@inline_strict
def search(x, importance):  # type: ignore[no-untyped-def]
    """The scale of 32 float32 that fits best: all candidates at once, a lane each."""
    xs, weights = f32_ptr(x), f32_ptr(importance)
    largest, top = ZERO, ZERO
    for i in range(BLOCK):
        a = abs_f32(xs[i])
        top = xs[i] if a > largest else top
        largest = a if a > largest else largest
    if largest < _SMALLEST:
        return ZERO
    lanes, values = stack(_LANES_BYTES), values_of(KIND)
    inverses, products = f32_ptr(lanes), f32_ptr(lanes + 4 * CANDIDATES)
    squares = f32_ptr(lanes + 8 * CANDIDATES)
    for t in range(CANDIDATES):
        inverses[t] = (_LOWEST + np.float32(t - 8)) / top
        products[t] = squares[t] = ZERO
    inverses[0] = ONE / (-top / _LOWEST)
    for i in range(BLOCK):
        v, w = xs[i], weights[i]
        for t in range(CANDIDATES):
            q = np.float32(take(I8, values, code_of(inverses[t] * v)))
            products[t] += w * q * v
            squares[t] += w * q * q
    d = products[0] / squares[0] if squares[0] > ZERO else ZERO
    best = d * products[0]
    for t in range(1, CANDIDATES):
        p, s = products[t], squares[t]
        if s > ZERO and p * p > best * s:
            d = p / s
            best = d * p
    return d


@inline_strict
def encode_iq4_nl_weighted(x, weights, out):  # type: ignore[no-untyped-def]
    """32 float32 at ``x`` with importance weights (0: without) as one block at ``out``."""
    importance = stack(BLOCK_BYTES)
    weigh(x, weights, spread_of(x, BLOCK) if weights != 0 else ZERO, importance)
    d = search(x, importance)
    store_f16(out, d)
    put_codes(x, ONE / d if d != ZERO else ZERO, out + 2)


@inline_strict
def encode_iq4_nl(x, out):  # type: ignore[no-untyped-def]
    """32 float32 at ``x`` as one block at ``out``."""
    encode_iq4_nl_weighted(x, 0, out)


@inline_strict
def decode_iq4_nl(block, y):  # type: ignore[no-untyped-def]
    """One block as 32 float32 at ``y``."""
    decode_nibbles(block + 2, values_of(KIND), load_f16(block), y)
