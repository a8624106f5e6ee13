"""The search for a scale and a minimum: x ~ scale * code + low, code from 0 to ``top``, low <= 0.

    scale, low, codes = fit_affine(x, weights, Q4_K_SEARCH)

Each step tries another spacing of the codes, fits scale and minimum to them by weighted least
squares and keeps what makes the smallest weighted error.
Source: ggml, ``make_qkx2_quants`` and ``make_qkx3_quants``. The latter has since got a guard
against what is not a number, which matters where the best minimum has come up to the maximum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .block import Floats
from .exact import F, Ints, first_smallest, nearest_int, ordered_sum

Array = npt.NDArray[Any]


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
    codes = _codes(x, inverse, low, search.top)
    best = _error(x, w, scale, low, codes, search.absolute)
    for reach in search.ranges():
        # ``low`` is the best so far, ``high`` stays: as in ggml
        tried = _codes(x, reach / (high - low), low, search.top)
        q = tried.astype(np.float32)
        wq = w * q
        sum_l, sum_l2, sum_xl = ordered_sum(wq), ordered_sum(wq * q), ordered_sum(wq * x)
        det = sum_w * sum_l2 - sum_l * sum_l
        new_scale = (sum_w * sum_xl - sum_x * sum_l) / det
        new_low = (sum_l2 * sum_x - sum_l * sum_xl) / det
        above = new_low > 0
        new_scale = np.where(above, sum_xl / sum_l2, new_scale)
        new_low = np.where(above, F(0), new_low)
        error = _error(x, w, new_scale, new_low, tried, search.absolute)
        better = (det > 0) & (error < best)
        best, scale, low = (
            np.where(better, new, old)
            for new, old in ((error, best), (new_scale, scale), (new_low, low))
        )
        codes = np.where(better[:, None], tried, codes)
    return np.where(flat, F(0), scale), low, np.where(flat[:, None], 0, codes)


def _codes(x: Floats, inverse: Floats, low: Floats, top: int) -> Ints:
    return np.clip(nearest_int(inverse[:, None] * (x - low[:, None])), 0, top)


def _error(x: Floats, w: Floats, scale: Array, low: Array, codes: Ints, absolute: bool) -> Floats:
    diff = scale[:, None] * codes.astype(np.float32) + low[:, None] - x
    return ordered_sum(w * (np.abs(diff) if absolute else diff * diff))
