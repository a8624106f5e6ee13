"""Accuracy of the vectorised functions against NumPy's float64, over all of float32's range."""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pyggml.backend.cpu.abi import f32_ptr
from pyggml.backend.cpu.kernels.elementwise.elementwise import FUNCTIONS
from pyggml.backend.cpu.simd import math as simd
from pyggml.compiler.jit import isa, kernel

Array = npt.NDArray[Any]
SIGMOID, SILU, GELU, GELU_QUICK, GELU_ERF, SOFTPLUS = (
    FUNCTIONS[name] for name in ("sigmoid", "silu", "gelu", "gelu_quick", "gelu_erf", "softplus")
)


@kernel
def all_functions(x, y, n, unused):  # type: ignore[no-untyped-def]
    xs, ys = f32_ptr(x), f32_ptr(y)
    for i in range(n):
        ys[i] = simd.exp_f32(xs[i])
    for i in range(n):
        ys[n + i] = simd.tanh_f32(xs[i])
    for i in range(n):
        ys[2 * n + i] = simd.erf_f32(xs[i])
    for i in range(n):
        ys[3 * n + i] = SIGMOID(xs[i])
    for i in range(n):
        ys[4 * n + i] = SILU(xs[i])
    for i in range(n):
        ys[5 * n + i] = GELU(xs[i])
    for i in range(n):
        ys[6 * n + i] = GELU_QUICK(xs[i])
    for i in range(n):
        ys[7 * n + i] = GELU_ERF(xs[i])
    for i in range(n):
        ys[8 * n + i], ys[9 * n + i] = simd.sincos_f32(xs[i])
    for i in range(n):
        ys[10 * n + i] = simd.log_f32(xs[i])
    for i in range(n):
        ys[11 * n + i] = SOFTPLUS(xs[i])


NAMES = (
    "exp", "tanh", "erf", "sigmoid", "silu", "gelu", "gelu_quick", "gelu_erf", "sin", "cos",
    "log", "softplus",
)  # fmt: skip
_erf: Callable[[Array], Array] = np.vectorize(math.erf, otypes=[np.float64])


def compute(x: Array) -> dict[str, Array]:
    x = np.ascontiguousarray(x, np.float32)
    y = np.empty((len(NAMES), x.size), np.float32)
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)(all_functions.address)
    call(x.ctypes.data, y.ctypes.data, x.size, 0)
    return dict(zip(NAMES, y, strict=True))


def ulps(got: Array, want: Array) -> float:
    """Largest error in units of the last place of ``want``, where that is a normal float32."""
    with np.errstate(over="ignore"):
        rounded = want.astype(np.float32)
    normal = np.isfinite(rounded) & (np.abs(want) >= np.finfo(np.float32).tiny)
    unit = np.spacing(np.abs(rounded[normal])).astype(np.float64)
    return float(np.max(np.abs(got[normal] - want[normal]) / unit))


@pytest.fixture(scope="module")
def sweep() -> tuple[Array, dict[str, Array]]:
    rng = np.random.default_rng(0)
    parts = [rng.uniform(-r, r, 20000) for r in (1e-6, 0.1, 1, 10, 90)]
    x = np.concatenate(parts).astype(np.float32)
    return x.astype(np.float64), compute(x)


def test_exp(sweep: tuple[Array, dict[str, Array]]) -> None:
    x, y = sweep
    assert ulps(y["exp"], np.exp(x)) <= 2


def test_tanh_and_erf(sweep: tuple[Array, dict[str, Array]]) -> None:
    x, y = sweep
    assert ulps(y["tanh"], np.tanh(x)) <= 2.5
    assert ulps(y["erf"], _erf(x)) <= 2


def test_sigmoid_and_silu(sweep: tuple[Array, dict[str, Array]]) -> None:
    x, y = sweep
    near = x > -87  # below, the sigmoid is near the end of the normal numbers
    assert ulps(y["sigmoid"][near], 1 / (1 + np.exp(-x[near]))) <= 4
    assert ulps(y["silu"][near], (x / (1 + np.exp(-x)))[near]) <= 4


def test_gelu(sweep: tuple[Array, dict[str, Array]]) -> None:
    x, y = sweep
    tanh = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    np.testing.assert_allclose(y["gelu"], 0.5 * x * (1 + tanh), rtol=2e-5, atol=1e-6)
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(y["gelu_quick"], x / (1 + np.exp(-1.702 * x)), 1e-5, 1e-30)
    want = 0.5 * x * (1 + _erf(x / math.sqrt(2)))
    np.testing.assert_allclose(y["gelu_erf"], want, rtol=1e-6, atol=1e-6)


def test_sincos() -> None:
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.uniform(-r, r, 20000) for r in (1, 10, 1e3, 1e5, 6e6)])
    x = x.astype(np.float32)
    y = compute(x)
    for name, function in (("sin", np.sin), ("cos", np.cos)):
        assert np.max(np.abs(y[name] - function(x.astype(np.float64)))) < 1.2e-7


def test_log() -> None:
    rng = np.random.default_rng(2)
    x = np.concatenate([np.exp(rng.uniform(-r, r, 20000)) for r in (0.01, 1, 88)])
    x = np.concatenate([x, rng.uniform(1e-45, 1e-38, 1000)]).astype(np.float32)
    y = compute(x)["log"].astype(np.float64)
    assert ulps(y, np.log(x.astype(np.float64))) <= 2


def test_softplus(sweep: tuple[Array, dict[str, Array]]) -> None:
    x, y = sweep
    near = x > -87
    assert ulps(y["softplus"][near], np.logaddexp(0, x[near])) <= 4


def test_extreme_float32_values() -> None:
    inf, nan = np.inf, np.nan
    x = np.array([inf, -inf, nan, 0.0, -0.0, 88.72, 88.73, -87.3, -87.4, 1e30, -1e30] * 9)
    y = compute(x)
    want = np.array([inf, 0, nan, 1, 1, np.exp(np.float32(88.72)), inf, np.exp(-87.3), 0, inf, 0])
    np.testing.assert_allclose(y["exp"][:11], want, rtol=1e-5)
    np.testing.assert_array_equal(y["exp"], np.tile(y["exp"][:11], 9))  # body and tail agree
    np.testing.assert_allclose(y["log"][:5], [inf, nan, nan, -inf, -inf])
    np.testing.assert_allclose(y["log"][[9, 10]], [np.log(1e30), nan], rtol=1e-6)
    np.testing.assert_allclose(y["softplus"][:4], [inf, 0, nan, np.log(2)], rtol=1e-6)
    np.testing.assert_allclose(y["tanh"][:5], [1, -1, nan, 0, -0.0])
    np.testing.assert_allclose(y["erf"][:5], [1, -1, nan, 0, -0.0])
    np.testing.assert_allclose(y["sigmoid"][:5], [1, 0, nan, 0.5, 0.5])
    np.testing.assert_allclose(y["silu"][[0, 2, 3, 9, 10]], [inf, nan, 0, 1e30, 0])


def test_loops_are_vectorised() -> None:
    text = all_functions.assembly()
    wide = dict.fromkeys(("avx512amx", "avx512vnni"), "[yz]mm")
    register = {**wide, "avxvnni": "ymm", "avx2": "ymm"}.get(isa(), r"xmm|\.4s")
    assert len(re.findall(register, text)) > 200
    assert not any(name in text for name in ("expf", "sinf", "logf"))
