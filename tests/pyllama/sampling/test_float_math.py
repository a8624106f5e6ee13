"""exp and log of float32: the bits of glibc's functions, and near the exact value everywhere."""

from __future__ import annotations

import ctypes
import platform

import numpy as np
import pytest

from pyllama.sampling.float_math import entropy_of, exp_differences, log_of, sum_of

RNG = np.random.default_rng(0)
EXPONENTS = np.concatenate([-110 * RNG.random(20_000), [0, -np.inf, -103.9, -104]])
# the only two floats whose exp has other bits if the reduced argument is rounded twice
EXPONENTS = np.concatenate([EXPONENTS, [-63.09946, 32.564632]]).astype(np.float32)
PROBS = RNG.integers(0, 0x3F800001, 20_000).astype(np.int32).view(np.float32)
PROBS[:3] = 0, 1, 1e-45


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")
def test_bits_of_glibc() -> None:
    libm = ctypes.CDLL("libm.so.6")
    for function in (libm.expf, libm.logf):
        function.argtypes, function.restype = [ctypes.c_float], ctypes.c_float
    expected = np.array([libm.expf(x) for x in EXPONENTS.tolist()], np.float32)
    np.testing.assert_array_equal(exp_differences(EXPONENTS, np.float32(0)), expected)
    expected = np.array([libm.logf(x) for x in PROBS.tolist()], np.float32)
    np.testing.assert_array_equal(log_of(PROBS), expected)


def test_accuracy() -> None:
    exact = np.exp(EXPONENTS.astype(np.float64))
    got = exp_differences(EXPONENTS, np.float32(0))
    np.testing.assert_allclose(got, exact, rtol=2.0**-23, atol=1e-45)
    with np.errstate(divide="ignore"):
        exact = np.log(PROBS.astype(np.float64))
    np.testing.assert_allclose(log_of(PROBS), exact, rtol=2.0**-23)


def test_sums_are_in_order() -> None:
    probs = np.sort(np.exp(RNG.standard_normal(5000) * 8)).astype(np.float32)[::-1]
    probs = np.concatenate([probs / sum_of(probs), np.zeros(3, np.float32)])
    total = entropy = np.float32(0)
    for p, log in zip(probs, log_of(probs), strict=True):
        total += p
        entropy -= p * log if p > 0 else np.float32(0)
    assert sum_of(probs) == total
    assert entropy_of(probs) == entropy
