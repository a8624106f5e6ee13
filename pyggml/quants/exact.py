"""Arithmetic as ggml's C code does it: float32, one operation after the other, in order.

codes = nearest_int(x / d)
total = ordered_sum(w * x)                     # front to back, not NumPy's pairs
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .block import Floats

Ints = npt.NDArray[np.int32]
F = np.float32
_MAGIC = F(1.5 * 2**23)  # adding it leaves the nearest integer, ties to even, in the low bits


def nearest_int(v: npt.NDArray[Any]) -> Ints:
    """The nearest integers; beyond 2^22, where C's result is of no use, the same useless ones."""
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


def to_half(d: Floats) -> Floats:
    """Rounded to float16 and back, as a block stores it."""
    return d.astype(np.float16).astype(np.float32)
