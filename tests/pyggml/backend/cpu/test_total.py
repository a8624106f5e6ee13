"""Sums of float32 in the documented order."""

from __future__ import annotations

import numba as nb
import numpy as np
import numpy.typing as npt
import pytest

from pyggml.backend.cpu.simd.total import max_f32, total_f32
from pyggml.compiler.jit import isa

assert isa()  # the instruction set must be chosen before compiling


@nb.njit
def total_of(address, n):  # type: ignore[no-untyped-def]
    return total_f32(address, n)


@nb.njit
def max_of(address, n):  # type: ignore[no-untyped-def]
    return max_f32(address, n)


def in_order(x: npt.NDArray[np.float32]) -> np.float32:
    whole = x.size // 32 * 32
    sums = np.zeros(32, np.float32)
    for block in x[:whole].reshape(-1, 32):
        sums += block
    a, b, c, d = sums.reshape(4, 8)
    some = (a + b) + (c + d)
    for half in (4, 2, 1):
        some = some[:half] + some[half:]
    total = some[0]
    for value in x[whole:]:
        total += value
    return np.float32(total)


@pytest.mark.parametrize("n", [0, 1, 31, 32, 33, 64, 576, 1023])
def test_sum_has_the_documented_order(n: int) -> None:
    x = np.random.default_rng(n).normal(0, 1e3, n).astype(np.float32)
    assert total_of(x.ctypes.data, n) == in_order(x)


def test_nan_and_inf_propagate() -> None:
    x = np.ones(40, np.float32)
    x[35] = np.inf
    assert total_of(x.ctypes.data, 40) == np.inf
    x[3] = np.nan
    assert np.isnan(total_of(x.ctypes.data, 40))


@pytest.mark.parametrize("n", [0, 1, 31, 32, 33, 64, 576, 1023])
def test_maximum(n: int) -> None:
    x = np.random.default_rng(n).normal(0, 1e3, n).astype(np.float32)
    assert max_of(x.ctypes.data, n) == x.max(initial=-np.inf)
    for i in range(0, n, 7):
        x[i] = np.nan
    assert max_of(x.ctypes.data, n) == np.fmax.reduce(x, initial=np.float32(-np.inf))
    x[n // 2 :] = np.inf
    assert max_of(x.ctypes.data, n) == (np.inf if n else -np.inf)
