"""The searches for one scale: x ~ scale * code, code from -top to top - 1.

    scale, codes = fit_symmetric(x, weights, 32)   # codes count from 0: 32 stands for zero

Source: ggml, ``make_qx_quants`` (with ``rmse_type`` 1), ``make_q3_quants`` and ``make_qp_quants``.
"""

from __future__ import annotations

import numpy as np

from .block import Floats
from .exact import F, Ints, first_largest, nearest_int, ordered_sum

TINY = F(1e-15)  # a group whose values are all smaller is zero


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


def fit_by_turns(x: Floats, top: int) -> tuple[Floats, Ints]:
    """Fit groups of values, weighted by their squares, changing one code at a time.

    Args:
        x: [n, k].

    Returns:
        scale [n], codes [n, k] from 0 to 2 top - 1 (all 0 in a group of zeros).
    """
    largest = first_largest(x)
    w = x * x
    codes = _signed_codes(x, F(-top) / largest, top)
    sums = _fit_sums(x, w, codes)
    for _ in range(5):
        for i in range(x.shape[1]):
            code = codes[:, i].astype(np.float32)
            wx = w[:, i] * x[:, i]
            rest_lx, rest_l2 = sums[0] - wx * code, sums[1] - w[:, i] * code * code
            new = np.clip(nearest_int(x[:, i] * rest_l2 / rest_lx), -top, top - 1)
            sum_lx, sum_l2 = _with_code(rest_lx, rest_l2, wx, w[:, i], new)
            better = (rest_lx > 0) & (new != codes[:, i]) & (sum_l2 > 0)
            better &= sum_lx * sum_lx * sums[1] > sums[0] * sums[0] * sum_l2
            codes[:, i] = np.where(better, new, codes[:, i])
            sums = np.where(better, sum_lx, sums[0]), np.where(better, sum_l2, sums[1])
    scale = np.where(sums[1] > 0, sums[0] / sums[1], F(0))
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
    sums = _fit_sums(x, w, codes)
    codes &= 255
    for _ in range(5):
        for i in range(x.shape[1]):
            code = codes[:, i].astype(np.float32)
            wx = w[:, i] * x[:, i]
            rest_lx, rest_l2 = sums[0] - wx * code, sums[1] - w[:, i] * code * code
            new = np.minimum(nearest_int(x[:, i] * rest_l2 / rest_lx), top)
            sum_lx, sum_l2 = _with_code(rest_lx, rest_l2, wx, w[:, i], new)
            better = (rest_lx > 0) & (rest_l2 > 0) & (new != codes[:, i])
            better &= sum_lx * sum_lx * sums[1] > sums[0] * sums[0] * sum_l2
            codes[:, i] = np.where(better, new & 255, codes[:, i])
            sums = np.where(better, sum_lx, sums[0]), np.where(better, sum_l2, sums[1])
    scale = np.where(sums[1] > 0, sums[0] / sums[1], F(0))
    zero = high < TINY
    return np.where(zero, F(0), scale), np.where(zero[:, None], 0, codes)


def _signed_codes(x: Floats, inverse: Floats, top: int) -> Ints:
    return np.clip(nearest_int(inverse[:, None] * x), -top, top - 1)


def _fit_sums(x: Floats, w: Floats, codes: Ints) -> tuple[Floats, Floats]:
    """Weighted sums of code * x and of code * code."""
    q = codes.astype(np.float32)
    return ordered_sum(w * x * q), ordered_sum(w * q * q)


def _with_code(
    rest_lx: Floats, rest_l2: Floats, wx: Floats, w: Floats, code: Ints
) -> tuple[Floats, Floats]:
    q = code.astype(np.float32)
    return rest_lx + wx * q, rest_l2 + w * q * q


def _spacing_error(x: Floats, w: Floats, inverse: Floats, codes: Ints) -> Floats:
    scale = F(1) / inverse
    diff = x - scale[:, None] * codes.astype(np.float32)
    return ordered_sum(w * diff * diff)
