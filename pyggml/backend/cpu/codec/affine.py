"""The search for a scale and a minimum in jitted code; see ``quants/affine.py``.

    fit = affine(8, 32, SEARCH)                    # 8 groups of 32 values, side by side
    scale, low, inverse, base = fit(x, w, codes)   # lanes

Groups are lanes, so that their sums, which have to be in order, cost one another nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ....jit import inline_strict
from ....quants.affine import AffineSearch
from ..simd.lanes import choose, clamp, floats, lanes_f32, magnitude, spread, store
from ..simd.math import ONE, ZERO
from .rounding import nearest


def affine(groups: int, k: int, search: AffineSearch) -> Any:
    """The search for ``groups`` groups of ``k`` values.

    ``fit(x, w, codes)``: addresses of values and weights, value i of all groups side by side, and
    of as much memory for codes. The result's lanes are scale and minimum, and by ``inverse`` and
    ``base`` the best codes, ``clamp(nearest(inverse * (x - base)))``.
    """
    top, steps, absolute = search.top, search.steps, search.absolute
    start, stride, reach = np.float32(search.start), np.float32(search.stride), np.float32(top)
    step_bytes = 4 * groups

    @inline_strict
    def error(x, w, codes, scale, low):  # type: ignore[no-untyped-def]
        total = spread(groups, ZERO)
        for i in range(k):
            at = step_bytes * i
            diff = scale * lanes_f32(groups, codes + at) + low - lanes_f32(groups, x + at)
            diff = magnitude(diff) if absolute else diff * diff
            total = total + lanes_f32(groups, w + at) * diff
        return total

    @inline_strict
    def fit(x, w, codes):  # type: ignore[no-untyped-def]
        low = lanes_f32(groups, x)
        high = low
        sum_w = lanes_f32(groups, w)
        sum_x = sum_w * low
        for i in range(1, k):
            v, weight = lanes_f32(groups, x + step_bytes * i), lanes_f32(groups, w + step_bytes * i)
            low = choose(v < low, v, low)
            high = choose(v > high, v, high)
            sum_w = sum_w + weight
            sum_x = sum_x + weight * v
        zero = spread(groups, ZERO)
        low = choose(low > ZERO, zero, low)
        flat = high == low
        inverse, base = reach / (high - low), low
        scale = ONE / inverse
        for i in range(k):
            v = inverse * (lanes_f32(groups, x + step_bytes * i) - low)
            store(codes + step_bytes * i, floats(clamp(nearest(v), 0, top)))
        best = error(x, w, codes, scale, low)
        for step in range(steps + 1):
            # ``low`` is the best so far, ``high`` stays: as in ggml
            tried = (start + stride * np.float32(step) + reach) / (high - low)
            sum_l, sum_l2, sum_xl = zero, zero, zero
            for i in range(k):
                v = lanes_f32(groups, x + step_bytes * i)
                q = floats(clamp(nearest(tried * (v - low)), 0, top))
                store(codes + step_bytes * i, q)
                weighted = lanes_f32(groups, w + step_bytes * i) * q
                sum_l = sum_l + weighted
                sum_l2 = sum_l2 + weighted * q
                sum_xl = sum_xl + weighted * v
            det = sum_w * sum_l2 - sum_l * sum_l
            new_scale = (sum_w * sum_xl - sum_x * sum_l) / det
            new_low = (sum_l2 * sum_x - sum_l * sum_xl) / det
            above = new_low > ZERO
            new_scale = choose(above, sum_xl / sum_l2, new_scale)
            new_low = choose(above, zero, new_low)
            wrong = error(x, w, codes, new_scale, new_low)
            better = (det > ZERO) & (wrong < best)
            best = choose(better, wrong, best)
            inverse, base = choose(better, tried, inverse), choose(better, low, base)
            scale, low = choose(better, new_scale, scale), choose(better, new_low, low)
        return choose(flat, zero, scale), low, choose(flat, zero, inverse), base

    return fit
