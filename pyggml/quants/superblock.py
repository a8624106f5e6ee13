"""What the formats with blocks of 256 share: weights, the last choice of codes, packing.

Sub-blocks of 16 or 32 values have integer scales of their own, with a float16 scale above them.
Source: ggml, ``ggml-quants.c``.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .block import Floats
from .exact import F, Ints, nearest_int, ordered_sum

SUPERBLOCK = 256
Bytes = npt.NDArray[np.uint8]
_2, _4, _6 = (np.uint8(i) for i in (2, 4, 6))


def spread_weights(x: Floats, imatrix: Floats, factor: int) -> Floats:
    """Weights [n, 256] of a search: column weight * sqrt(factor * mean square + x^2)."""
    power = F(factor) * ordered_sum(x * x) / F(SUPERBLOCK)
    out: Floats = imatrix * np.sqrt(power[:, None] + x * x)
    return out


def recode(x: Floats, d: Floats, low: Floats | None, bounds: tuple[int, int], codes: Ints) -> Ints:
    """The codes of sub-blocks under the scales that were stored.

    Args:
        x, codes: values and the search's codes, [n, groups, k].
        d, low: scale and minimum (what is added to x) of each sub-block, [n, groups].
        bounds: smallest and largest code.

    Returns:
        Codes less the smallest one; a sub-block whose scale is 0 keeps the search's.
    """
    shifted = x if low is None else x + low[..., None]
    new = np.clip(nearest_int(shifted / d[..., None]), *bounds) - np.int32(bounds[0])
    return np.where(d[..., None] != 0, new, codes)


def pack_scales(scales: Ints, mins: Ints) -> Bytes:
    """Eight scales and minima of six bits in 12 bytes: [n, 8] twice -> [n, 12]."""
    s, m = scales.astype(np.uint8), mins.astype(np.uint8)
    tops = np.concatenate([s[:, 4:] >> 4, m[:, 4:] >> 4], axis=1) << np.uint8(6)
    low = np.concatenate([s[:, :4], m[:, :4]], axis=1) | tops
    high = s[:, 4:] & np.uint8(15) | m[:, 4:] << np.uint8(4)
    return np.concatenate([low, high], axis=1)


def unpack_scales(packed: Bytes) -> tuple[Ints, Ints]:
    """The inverse of ``pack_scales``."""
    a, b, c = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([a & 63, c & 15 | a >> 6 << 4], axis=1)
    mins = np.concatenate([b & 63, c >> 4 | b >> 6 << 4], axis=1)
    return scales.astype(np.int32), mins.astype(np.int32)


def pack_pairs(codes: Ints) -> Bytes:
    """Codes of two bits [n, 256] -> [n, 64]: of each 128, elements l, l + 32, ... in byte l."""
    q = codes.astype(np.uint8).reshape(-1, 2, 4, 32)
    packed: Bytes = (
        q[:, :, 0] | q[:, :, 1] << _2 | q[:, :, 2] << _4 | q[:, :, 3] << _6
    )  # [n, 2, 32]
    return packed.reshape(-1, 64)


def unpack_pairs(packed: Bytes) -> Bytes:
    """The inverse of ``pack_pairs``."""
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    out: Bytes = packed.reshape(-1, 2, 1, 32) >> shifts & np.uint8(3)  # [n, 2, 4, 32]
    return out.reshape(-1, SUPERBLOCK)


def pack_halves(codes: Ints) -> Bytes:
    """Codes of four bits [n, 256] -> [n, 128]: of each 64, elements l and l + 32 in byte l."""
    q = codes.astype(np.uint8).reshape(-1, 4, 2, 32)
    packed: Bytes = q[:, :, 0] | q[:, :, 1] << _4
    return packed.reshape(-1, 128)


def unpack_halves(packed: Bytes) -> Bytes:
    """The inverse of ``pack_halves``."""
    q = packed.reshape(-1, 4, 1, 32)
    return np.concatenate([q & np.uint8(15), q >> np.uint8(4)], axis=2).reshape(-1, SUPERBLOCK)
