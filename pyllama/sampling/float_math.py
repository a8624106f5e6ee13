"""`expf`, `logf` and sums of float32 with the bits of llama.cpp on glibc, for compiled functions.

    total = sum32(weights, n)       # in a function of `compiled`
    surprise = -log32(weights[0] / total)

NumPy's functions and its pairwise sums differ from these in the last bits, which moves the limits
of truncations. Unlike calls of libm these loops are vectorized, and equal on all systems.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from pyggml.jit import compiled, emitted, inline_strict
from pyggml.pointers import f32_ptr
from pyllama.sampling.top import Floats

_N = 32  # entries of the table of exp
_POWERS = np.array([float(Decimal(2) ** (Decimal(i) / _N)) for i in range(_N)])  # 2^(i / _N)
_INV_LN2 = float.fromhex("0x1.71547652b82fep+0") * _N
_SHIFT = 1.5 * 2.0**52  # adding it rounds to an integer
_E0 = float.fromhex("0x1.c6af84b912394p-5") / _N**3
_E1 = float.fromhex("0x1.ebfce50fac4f3p-3") / _N**2
_E2 = float.fromhex("0x1.62e42ff0c52d6p-1") / _N
_UNDERFLOW = np.float32(-104)  # exp of it rounds to 0

_LOG_ROWS = """
0x1.661ec79f8f3bep+0 -0x1.57bf7808caadep-2  0x1.571ed4aaf883dp+0 -0x1.2bef0a7c06ddbp-2
0x1.49539f0f010bp+0  -0x1.01eae7f513a67p-2  0x1.3c995b0b80385p+0 -0x1.b31d8a68224e9p-3
0x1.30d190c8864a5p+0 -0x1.6574f0ac07758p-3  0x1.25e227b0b8eap+0  -0x1.1aa2bc79c81p-3
0x1.1bb4a4a1a343fp+0 -0x1.a4e76ce8c0e5ep-4  0x1.12358f08ae5bap+0 -0x1.1973c5a611cccp-4
0x1.0953f419900a7p+0 -0x1.252f438e10c1ep-5  0x1p+0                0x0p+0
0x1.e608cfd9a47acp-1  0x1.aa5aa5df25984p-5  0x1.ca4b31f026aap-1   0x1.c5e53aa362eb4p-4
0x1.b2036576afce6p-1  0x1.526e57720db08p-3  0x1.9c2d163a1aa2dp-1  0x1.bc2860d22477p-3
0x1.886e6037841edp-1  0x1.1058bc8a07ee1p-2  0x1.767dcf5534862p-1  0x1.4043057b6ee09p-2
"""
_LOG = np.array([float.fromhex(x) for x in _LOG_ROWS.split()])  # 1 / c, log(c) of 16 centers c
_LN2 = float.fromhex("0x1.62e42fefa39efp-1")
_L0 = float.fromhex("-0x1.00ea348b88334p-2")
_L1 = float.fromhex("0x1.5575b0be00b6ap-2")
_L2 = float.fromhex("-0x1.ffffef20a4123p-2")
_LOG_BASE = 0x3F330000  # bits of the lower end of the centers' range
_SMALLEST_NORMAL = np.float32(2.0**-126)


def _to_f64(b: Any, x: Any) -> Any:
    return b.bitcast(x, ir.DoubleType())


def _to_f32(b: Any, x: Any) -> Any:
    return b.bitcast(x, ir.FloatType())


def _to_i32(b: Any, x: Any) -> Any:
    return b.bitcast(x, ir.IntType(32))


# the same bits as another type
_bits_f64 = emitted(_to_f64, result=types.float64, args=(types.int64,))
_bits_f32 = emitted(_to_f32, result=types.float32, args=(types.int32,))
_f32_bits = emitted(_to_i32, result=types.int32, args=(types.float32,))


@inline_strict
def exp32(x: Any) -> Any:
    """exp of a float32 up to 88, or -inf.

    Source: glibc sysdeps/ieee754/flt-32/e_expf.c, the method of ARM's optimized-routines.
    """
    z = np.float64(_UNDERFLOW if x < _UNDERFLOW else x) * _INV_LN2
    rounded = (z + _SHIFT) - _SHIFT
    k, r = np.int64(np.int32(rounded)), z - rounded
    scale = _POWERS[k & (_N - 1)] * _bits_f64((1023 + (k >> 5)) << 52)
    return np.float32(((_E0 * r + _E1) * (r * r) + (_E2 * r + 1.0)) * scale)


@inline_strict
def log32(x: Any) -> Any:
    """log of a float32 from 0, less than infinity.

    Source: glibc sysdeps/ieee754/flt-32/e_logf.c, the method of ARM's optimized-routines.
    """
    is_subnormal = x < _SMALLEST_NORMAL
    bits = np.int64(_f32_bits(x * np.float32(2.0**23) if is_subnormal else x))
    bits -= 23 << 23 if is_subnormal else 0
    offset = bits - _LOG_BASE
    i, k = (offset >> 19) & 15, offset >> 23
    r = np.float64(_bits_f32(np.int32(bits - (k << 23)))) * _LOG[2 * i] - 1.0
    r2 = r * r
    y = (_L0 * r2 + (_L1 * r + _L2)) * r2 + ((_LOG[2 * i + 1] + k * _LN2) + r)
    return np.float32(y) if x > 0 else np.float32(-np.inf)


@inline_strict
def sum32(values: Any, n: Any) -> Any:
    """The sum of n float32 in order, rounded after each."""
    total = np.float32(0)
    for i in range(n):
        total += values[i]
    return total


def entropy_of(probs: Floats) -> np.float32:
    """The entropy of descending probabilities, summed in order."""
    probs = np.ascontiguousarray(probs)
    return np.float32(_entropy_of(probs.ctypes.data, probs.size))


def exp_differences(logits: Floats, top: np.float32) -> Floats:
    """float32[n]: ``exp(logits - top)``; ``top``: the largest, finite."""
    result = np.empty(logits.size, np.float32)
    logits = np.ascontiguousarray(logits)
    _exp_differences(logits.ctypes.data, logits.size, top, result.ctypes.data)
    return result


def log_of(values: Floats) -> Floats:
    """float32[n]: the logarithms of values from 0."""
    result = np.ascontiguousarray(values).copy()
    _log_of(result.ctypes.data, result.size)
    return result


def sum_of(values: Floats) -> np.float32:
    """The sum in order, as `sum32`."""
    values = np.ascontiguousarray(values)
    return np.float32(_sum_of(values.ctypes.data, values.size))


@compiled(types.void(types.int64, types.int64, types.float32, types.int64))
def _exp_differences(logits: Any, n: Any, top: Any, result: Any) -> None:
    logits, result = f32_ptr(logits), f32_ptr(result)
    for i in range(n):
        result[i] = exp32(logits[i] - top)


@compiled(types.void(types.int64, types.int64))
def _log_of(values: Any, n: Any) -> None:
    values = f32_ptr(values)
    for i in range(n):
        values[i] = log32(values[i])


@compiled(types.float32(types.int64, types.int64))
def _sum_of(values: Any, n: Any) -> Any:
    return sum32(f32_ptr(values), n)


@compiled(types.float32(types.int64, types.int64))
def _entropy_of(probs: Any, n: Any) -> Any:
    probs, entropy = f32_ptr(probs), np.float32(0)
    for i in range(n):
        if probs[i] == 0:
            break
        before = entropy
        entropy -= probs[i] * log32(probs[i])
        # -p log p falls with p from 1 / e on: further terms are rounded off too
        if entropy == before and probs[i] < np.float32(0.25):
            break
    return entropy
