"""Half floats against NumPy's, for every bit pattern and at every rounding boundary."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from pyggml.backend.cpu.simd.element import F16, F32, load_elem, load_f16, store_elem, store_f16
from pyggml.compiler.jit import CpuKernel, isa, kernel

Array = npt.NDArray[Any]


@kernel
def widen(x, y, n, unused):  # type: ignore[no-untyped-def]
    for i in range(n):
        store_elem(F32, y, i, load_elem(F16, x, i))


@kernel
def narrow(x, y, n, unused):  # type: ignore[no-untyped-def]
    for i in range(n):
        store_elem(F16, y, i, load_elem(F32, x, i))


@kernel
def there_and_back(x, y, n, unused):  # type: ignore[no-untyped-def]
    for i in range(n):
        store_f16(y + 2 * i, load_f16(x + 2 * i))


def run(k: CpuKernel, x: Array, y: Array) -> Array:
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)(k.address)
    call(x.ctypes.data, y.ctypes.data, y.size, 0)
    return y


def test_every_half_float_converts_to_float32() -> None:
    bits = np.arange(1 << 16).astype(np.uint16)
    got = run(widen, bits, np.empty(bits.size, np.float32))
    np.testing.assert_array_equal(got, bits.view(np.float16).astype(np.float32))


def test_every_rounding_boundary_rounds_as_numpy() -> None:
    halves = np.arange(0x7C01).astype(np.uint16).view(np.float16).astype(np.float64)
    halves[-1] = 65536.0  # the value after the largest half float
    middle = ((halves[1:] + halves[:-1]) / 2).astype(np.float32)
    x = np.concatenate([halves, middle, np.nextafter(middle, 0), np.nextafter(middle, np.inf)])
    x = np.concatenate([x, [1e-30, 1e30, np.inf, np.nan]]).astype(np.float32)
    x = np.concatenate([x, -x]).astype(np.float32)
    got = run(narrow, x, np.empty(x.size, np.uint16)).view(np.float16)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(got, x.astype(np.float16))


def test_single_values_at_odd_addresses() -> None:
    raw = np.zeros(2 * 100 + 1, np.uint8)
    x = np.random.default_rng(0).normal(size=100).astype(np.float16)
    raw[1:] = x.view(np.uint8)
    got = run(there_and_back, raw[1:], np.empty(100, np.uint16)).view(np.float16)
    np.testing.assert_array_equal(got, x)


def test_loops_are_vectorised() -> None:
    if isa() in ("asimd", "neon"):
        assert "fcvtl" in widen.assembly() and "fcvtn" in narrow.assembly()
    elif isa() not in ("sse42", "generic"):
        assert "vcvtph2ps" in widen.assembly() and "vcvtps2ph" in narrow.assembly()
        assert "ymm" in widen.assembly()
    for k in (widen, narrow):  # no call of a compiler's runtime library, which is not linked
        assert "extendhf" not in k.assembly() and "truncsf" not in k.assembly()
