"""The encoder of MXFP4 in jitted code; see ``quants/mxfp4.py``."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....jit import inline_strict
from ....quants.block import BlockType
from ..abi import bits_f32, f32_bits, f32_ptr, u8_ptr
from ..simd.lanes import stack
from ..simd.math import SMALLEST, ZERO, abs_f32
from .blocks import put_codes

BLOCK = 32
_UP = np.float32(2.0**23)
_LOG2_E = np.float32(1.442695)
_A, _B, _C, _D = np.float32(0.5), np.float32(1.5), np.float32(2.5), np.float32(3.5)
_E, _F, _G = np.float32(5), np.float32(7), np.float32(10)


@inline_strict
def _scale(e):  # type: ignore[no-untyped-def]
    """2^(e - 128)."""
    return bits_f32(np.int32(0x200000 << e if e < 2 else (e - 1) << 23))


@inline_strict
def _exponent(v):  # type: ignore[no-untyped-def]
    """``floor(log2f(v))`` of a positive number: the float32 nearest to its logarithm counts.

    So a number that lies m * 2^-24 parts below 2^n counts as 2^n where 1.44 m * 2^-24 is less than
    half a unit in the last place of n.
    """
    tiny = v < SMALLEST
    bits = np.int64(f32_bits(v * _UP if tiny else v))
    n = (bits >> 23) - (126 + 23 if tiny else 126)  # the next power of two
    m = (1 << 23) - (bits & 0x7FFFFF)
    size, unit = n - 1 if n > 0 else -n, 1
    while 2 * unit <= size:
        unit *= 2
    up = size > 0 and _LOG2_E * np.float32(m) < np.float32(unit)
    return n if up else n - 1


@inline_strict
def _code(v, d):  # type: ignore[no-untyped-def]
    """The code of the nearest value; of two that are as near the smaller one."""
    a = abs_f32(v)
    n = np.int64(a > _A * d) + np.int64(a > _B * d) + np.int64(a > _C * d) + np.int64(a > _D * d)
    n += np.int64(a > _E * d) + np.int64(a > _F * d) + np.int64(a > _G * d)
    return n + 8 if v < ZERO and n != 0 else n


def exponents(f: BlockType) -> tuple[Any, Any]:
    """A power of two below the largest magnitude. Weights change nothing."""
    kind, e_at = int(f.type), f.d[0].at // 8

    @inline_strict
    def encode(x, out):  # type: ignore[no-untyped-def]
        xs, codes, top = f32_ptr(x), stack(BLOCK), ZERO
        for i in range(BLOCK):
            a = abs_f32(xs[i])
            top = a if a > top else top
        e = _exponent(top) + 125 & 255 if top > ZERO else 0
        d = _scale(e)
        u8_ptr(out)[e_at] = e
        for i in range(BLOCK):
            u8_ptr(codes)[i] = _code(xs[i], d)
        put_codes(kind, codes, out)

    return encode, None
