"""What the formats with blocks of 256 share, in jitted code; see ``quants/superblock.py``."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....jit import inline_strict
from ..abi import f32_ptr, u8_ptr
from ..simd.lanes import clamp, lanes_f32, lanes_strided, lanes_u8, narrow, root, store
from ..simd.math import ZERO
from .rounding import nearest

SUPERBLOCK = 256
_SIZE = np.float32(SUPERBLOCK)


def side_by_side(groups: int, k: int) -> Any:
    """``turn(x, out)``: ``groups`` groups of ``k`` float32 -> value 0 of all groups, value 1..."""

    @inline_strict
    def turn(x, out):  # type: ignore[no-untyped-def]
        for i in range(k):
            store(out + 4 * groups * i, lanes_strided(groups, x + 4 * i, 4 * k))

    return turn


@inline_strict
def spread_weights(x, imatrix, factor, out):  # type: ignore[no-untyped-def]
    """256 weights of a search: column weight * sqrt(factor * mean square + x^2)."""
    power = ZERO
    for i in range(SUPERBLOCK):
        v = f32_ptr(x)[i]
        power += v * v
    power = factor * power / _SIZE
    for i in range(0, 4 * SUPERBLOCK, 32):
        v = lanes_f32(8, x + i)
        store(out + i, lanes_f32(8, imatrix + i) * root(v * v + power))


def recoder(k: int, low: int, high: int) -> Any:
    """``recode(x, plus, d, inverse, out)``: a sub-block's codes as ``k`` bytes, less ``low``.

    nearest((x + plus) / d); or, where ``d`` is 0, the search's: nearest(inverse * (x + plus)).
    """

    @inline_strict
    def recode(x, plus, d, inverse, out):  # type: ignore[no-untyped-def]
        v = lanes_f32(k, x) + plus
        v = v / d if d != ZERO else v * inverse
        store(out, narrow(clamp(nearest(v), low, high) - low))

    return recode


@inline_strict
def scale_min(scales, j):  # type: ignore[no-untyped-def]
    """Scale and minimum ``j`` of eight, of six bits each in 12 bytes."""
    s = u8_ptr(scales)
    if j < 4:
        return s[j] & 63, s[j + 4] & 63
    return s[j + 4] & 15 | s[j - 4] >> 6 << 4, s[j + 4] >> 4 | s[j] >> 6 << 4


@inline_strict
def put_scale_min(scales, j, scale, low):  # type: ignore[no-untyped-def]
    """The inverse of ``scale_min``, in order of ``j``; both fit bytes."""
    s = u8_ptr(scales)
    if j < 4:
        s[j], s[j + 4] = scale, low
    else:
        s[j + 4] = scale & 15 | (low & 15) << 4
        s[j - 4] |= scale >> 4 << 6 & 255
        s[j] |= low >> 4 << 6 & 255


@inline_strict
def pack_pairs(codes, shift, out):  # type: ignore[no-untyped-def]
    """Two bits of 256 codes from bit ``shift`` on: of each 128, l, l + 32, ... in byte l."""
    for half in range(2):
        at = codes + 128 * half
        packed = (lanes_u8(32, at) >> shift) & 3
        for i in range(1, 4):
            packed = packed | ((lanes_u8(32, at + 32 * i) >> shift) & 3) << (2 * i)
        store(out + 32 * half, packed)


@inline_strict
def pack_halves(codes, out):  # type: ignore[no-untyped-def]
    """The low four bits of 256 codes: of each 64, elements l and l + 32 in byte l."""
    for i in range(4):
        low, high = lanes_u8(32, codes + 64 * i), lanes_u8(32, codes + 64 * i + 32)
        store(out + 32 * i, (low & 15) | high << 4)


@inline_strict
def pack_bits(codes, shift, out):  # type: ignore[no-untyped-def]
    """Bit ``shift`` of 256 codes: of elements l, l + 32, ... in byte l."""
    packed = (lanes_u8(32, codes) >> shift) & 1
    for i in range(1, 8):
        packed = packed | ((lanes_u8(32, codes + 32 * i) >> shift) & 1) << i
    store(out, packed)
