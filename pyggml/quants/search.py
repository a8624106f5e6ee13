"""The searches for scales and codes in NumPy, with the arithmetic of ggml's C code.

    codes = nearest_int(x / d)                     # float32, one operation after the other
    scale, low, codes = fit_affine(x, weights, AffineSearch(top=15, start=-1, stride=0.1, steps=20))
    scale, codes = fit_symmetric(x, weights, 32)   # codes from 0; 32 means 0

``fit_affine``: x ~ scale * code + low, low <= 0. Each step tries another spacing of the codes, fits
scale and minimum to them by weighted least squares and keeps the smallest weighted error. The
other functions: x ~ scale * code.
Source: ggml, ``make_qkx2_quants`` and ``make_qkx3_quants`` (newer versions check for NaN there,
when the best minimum has reached the maximum); ``make_qx_quants`` with ``rmse_type`` 1,
``make_q3_quants`` and ``make_qp_quants``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .block import Floats

Ints = npt.NDArray[np.int32]
Array = npt.NDArray[Any]
F = np.float32
TINY = F(1e-15)  # a group whose values are all smaller is zero
_MAGIC = F(1.5 * 2**23)  # adding it leaves the nearest integer, ties to even, in the low bits


def nearest_int(v: npt.NDArray[Any]) -> Ints:
    """The nearest integers, ties to even; beyond 2^22 undefined, but as in C."""
    bits = (v + _MAGIC).view(np.int32)
    out: Ints = (bits & np.int32(0x7FFFFF)) - np.int32(0x400000)
    return out


def ordered_sum(x: Floats) -> Floats:
    """Sums over the last axis, from 0 and front to back: [..., k] -> [...]."""
    out: Floats = np.add.accumulate(x, axis=-1)[..., -1] + F(0)
    return out


def first_largest(x: Floats) -> Floats:
    """The element of largest magnitude, with its sign, the first of equal ones: [n, k] -> [n]."""
    at = np.abs(x).argmax(axis=1)
    return np.take_along_axis(x, at[:, None], axis=1)[:, 0]


def first_smallest(x: Floats) -> Floats:
    """The smallest element, of zeros the first with its sign: [n, k] -> [n]."""
    return np.take_along_axis(x, x.argmin(axis=1)[:, None], axis=1)[:, 0]


def inverse(d: Floats) -> Floats:
    """``1 / d`` in float32, 0 where ``d`` is 0 or so small that float32 does not hold it."""
    out = np.zeros_like(d)
    with np.errstate(over="ignore"):
        np.divide(np.float32(1), d, out=out, where=d != 0)
    out[np.isinf(out)] = 0  # ggml has undefined codes there; as a half float d is 0 anyway
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


@dataclass(frozen=True)
class AffineSearch:
    """What differs between formats.

    Args:
        top: the largest code.
        start, stride, steps: step i tries a range of ``top + start + stride * i`` codes.
        absolute: errors count as they are, not squared.
    """

    top: int
    start: float
    stride: float
    steps: int
    absolute: bool = False

    def ranges(self) -> list[np.float32]:
        """The range of codes of each step."""
        start, stride = F(self.start), F(self.stride)
        return [start + stride * F(i) + F(self.top) for i in range(self.steps + 1)]


def weighted_search(top: int) -> AffineSearch:
    """The search of codes up to ``top`` with importance weights."""
    return AffineSearch(top=top, start=-0.9, stride=0.05, steps=36)


def fit_affine(x: Floats, w: Floats, search: AffineSearch) -> tuple[Floats, Floats, Ints]:
    """Fit groups of values.

    Args:
        x: [n, k].
        w: weights of the values, [n, k].

    Returns:
        scale [n], low [n] (the minimum, not negated), codes [n, k].
    """
    low, high = first_smallest(x), x.max(axis=1)
    low = np.where(low > 0, F(0), low)
    flat = high == low
    sum_w = np.add.accumulate(w, axis=1)[:, -1]
    sum_x = np.add.accumulate(w * x, axis=1)[:, -1]
    inverse = F(search.top) / (high - low)
    scale = F(1) / inverse
    codes = _affine_codes(x, inverse, low, search.top)
    best = _affine_error(x, w, scale, low, codes, search.absolute)
    for reach in search.ranges():
        # ``low`` is the best so far, ``high`` stays: as in ggml
        tried = _affine_codes(x, reach / (high - low), low, search.top)
        q = tried.astype(np.float32)
        wq = w * q
        sum_l, sum_l2, sum_xl = ordered_sum(wq), ordered_sum(wq * q), ordered_sum(wq * x)
        det = sum_w * sum_l2 - sum_l * sum_l
        new_scale = (sum_w * sum_xl - sum_x * sum_l) / det
        new_low = (sum_l2 * sum_x - sum_l * sum_xl) / det
        above = new_low > 0
        new_scale = np.where(above, sum_xl / sum_l2, new_scale)
        new_low = np.where(above, F(0), new_low)
        error = _affine_error(x, w, new_scale, new_low, tried, search.absolute)
        better = (det > 0) & (error < best)
        best, scale, low = (
            np.where(better, new, old)
            for new, old in ((error, best), (new_scale, scale), (new_low, low))
        )
        codes = np.where(better[:, None], tried, codes)
    return np.where(flat, F(0), scale), low, np.where(flat[:, None], 0, codes)


def _affine_codes(x: Floats, inverse: Floats, low: Floats, top: int) -> Ints:
    return np.clip(nearest_int(inverse[:, None] * (x - low[:, None])), 0, top)


def _affine_error(
    x: Floats, w: Floats, scale: Array, low: Array, codes: Ints, absolute: bool
) -> Floats:
    diff = scale[:, None] * codes.astype(np.float32) + low[:, None] - x
    return ordered_sum(w * (np.abs(diff) if absolute else diff * diff))


def fit_symmetric(x: Floats, w: Floats, top: int) -> tuple[Floats, Ints]:
    """Fit groups of values, trying 19 spacings of the codes around the largest value.

    Args:
        x, w: values and their weights, [n, k].

    Returns:
        scale [n], codes [n, k] from 0 to 2 top - 1 (all 0 in a group of zeros).
    """
    largest = first_largest(x)
    codes = _signed_codes(x, F(-top) / largest, top)
    sum_lx, sum_l2 = _fit_sums(x, w, codes)
    scale = np.where(sum_l2 != 0, sum_lx / sum_l2, F(0))
    best = scale * sum_lx
    for i in (*range(-9, 0), *range(1, 10)):
        tried = _signed_codes(x, -(F(top) + F(0.1) * F(i)) / largest, top)
        sum_lx, sum_l2 = _fit_sums(x, w, tried)
        better = (sum_l2 > 0) & (sum_lx * sum_lx > best * sum_l2)
        codes = np.where(better[:, None], tried, codes)
        scale = np.where(better, sum_lx / sum_l2, scale)
        best = np.where(better, scale * sum_lx, best)
    zero = np.abs(largest) < TINY
    return np.where(zero, F(0), scale), np.where(zero[:, None], 0, codes + np.int32(top))


def fit_coordinate_descent(x: Floats, top: int) -> tuple[Floats, Ints]:
    """Fit groups of values, weighted by their squares, changing one code at a time.

    Args:
        x: [n, k].

    Returns:
        scale [n], codes [n, k] from 0 to 2 top - 1 (all 0 in a group of zeros).
    """
    largest = first_largest(x)
    w = x * x
    codes = _signed_codes(x, F(-top) / largest, top)
    scale, codes = _descend(x, w, codes, _fit_sums(x, w, codes), top, positive=False)
    zero = np.abs(largest) < TINY
    return np.where(zero, F(0), scale), np.where(zero[:, None], 0, codes + np.int32(top))


def fit_positive(x: Floats, w: Floats, top: int) -> tuple[Floats, Ints]:
    """Fit groups of values from 0 up by codes from 0 to ``top``: scales and minima of sub-blocks.

    Args:
        x, w: values and their weights, [n, k].

    Returns:
        scale [n], codes [n, k] as C's bytes hold them.
    """
    high = np.maximum(x.max(axis=1), F(0))
    inverse = F(top) / high
    best = _spacing_error(x, w, inverse, nearest_int(inverse[:, None] * x) & 255)
    for i in (-4, -3, -2, -1, 1, 2, 3, 4):
        tried = (F(0.1) * F(i) + F(top)) / high
        codes = np.minimum(nearest_int(tried[:, None] * x), top)
        error = _spacing_error(x, w, tried, codes)
        better = error < best
        best, inverse = np.where(better, error, best), np.where(better, tried, inverse)
    codes = np.minimum(nearest_int(inverse[:, None] * x), top)
    scale, codes = _descend(x, w, codes & 255, _fit_sums(x, w, codes), top, positive=True)
    zero = high < TINY
    return np.where(zero, F(0), scale), np.where(zero[:, None], 0, codes)


def _signed_codes(x: Floats, inverse: Floats, top: int) -> Ints:
    return np.clip(nearest_int(inverse[:, None] * x), -top, top - 1)


def _fit_sums(x: Floats, w: Floats, codes: Ints) -> tuple[Floats, Floats]:
    """Weighted sums of code * x and of code * code."""
    q = codes.astype(np.float32)
    return ordered_sum(w * x * q), ordered_sum(w * q * q)


def _descend(
    x: Floats, w: Floats, codes: Ints, sums: tuple[Floats, Floats], top: int, positive: bool
) -> tuple[Floats, Ints]:
    """Change one code after the other, in five rounds, where that fits better.

    Args:
        sums: those of ``_fit_sums``.
        positive: codes are from 0 to ``top``, as C's bytes hold them; else from -top to top - 1.

    Returns:
        scale [n], codes [n, k].
    """
    for _ in range(5):
        for i in range(x.shape[1]):
            q = codes[:, i].astype(np.float32)
            wx = w[:, i] * x[:, i]
            rest_lx, rest_l2 = sums[0] - wx * q, sums[1] - w[:, i] * q * q
            new = nearest_int(x[:, i] * rest_l2 / rest_lx)
            new = np.minimum(new, top) if positive else np.clip(new, -top, top - 1)
            q = new.astype(np.float32)
            sum_lx, sum_l2 = rest_lx + wx * q, rest_l2 + w[:, i] * q * q
            better = (rest_lx > 0) & ((rest_l2 if positive else sum_l2) > 0) & (new != codes[:, i])
            better &= sum_lx * sum_lx * sums[1] > sums[0] * sums[0] * sum_l2
            codes[:, i] = np.where(better, new & 255 if positive else new, codes[:, i])
            sums = np.where(better, sum_lx, sums[0]), np.where(better, sum_l2, sums[1])
    return np.where(sums[1] > 0, sums[0] / sums[1], F(0)), codes


def _spacing_error(x: Floats, w: Floats, inverse: Floats, codes: Ints) -> Floats:
    scale = F(1) / inverse
    diff = x - scale[:, None] * codes.astype(np.float32)
    return ordered_sum(w * diff * diff)
