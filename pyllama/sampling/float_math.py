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

from pyggml.compiler.jit import inline_strict, intrinsic_from_ir, jitted
from pyggml.compiler.numba_internals import cgutils
from pyggml.compiler.pointers import f32_ptr
from pyllama.sampling.top import Floats

_i32, _i64, _f32, _f64 = ir.IntType(32), ir.IntType(64), ir.FloatType(), ir.DoubleType()


def _same_bits(to: ir.Type, result: Any, arg: Any) -> Any:
    def bitcast(b: Any, x: Any) -> Any:
        return b.bitcast(x, to)

    return intrinsic_from_ir(bitcast, result=result, args=(arg,))


f32_bits = _same_bits(_i32, types.int32, types.float32)
f64_bits = _same_bits(_i64, types.int64, types.float64)
bits_f32 = _same_bits(_f32, types.float32, types.int32)
bits_f64 = _same_bits(_f64, types.float64, types.int64)


def _scope(b: Any) -> Any:
    """The alias scope of all elements that are read."""
    domain = b.module.add_metadata(["pyllama"])
    return b.module.add_metadata([b.module.add_metadata(["read", domain])])


def _read(b: Any, place: Any) -> Any:
    value = b.load(place)
    value.set_metadata("alias.scope", _scope(b))
    return value


def _place(b: Any, values: Any, i: Any) -> Any:
    return b.gep(b.inttoptr(values, _f32.as_pointer()), [i])


def _load(b: Any, values: Any, i: Any) -> Any:
    """Element ``i`` at an address, which no earlier `store_f32` may have written.

    LLVM vectorizes no loop in which a table might be overwritten.
    """
    return _read(b, _place(b, values, i))


def _store(b: Any, values: Any, i: Any, x: Any) -> None:
    """Store element ``i`` at an address."""
    b.store(x, _place(b, values, i)).set_metadata("noalias", _scope(b))


load_f32 = intrinsic_from_ir(_load, result=types.float32, args=(types.int64, types.int64))
store_f32 = intrinsic_from_ir(_store, args=(types.int64, types.int64, types.float32))


def _table(values: list[float]) -> Any:
    """A function for jitted code: the constant at an index."""
    constants = ir.Constant(ir.ArrayType(_f64, len(values)), values)

    def look_up(b: Any, i: Any) -> Any:
        table = cgutils.global_constant(b, "table", constants)
        return _read(b, b.gep(table, [ir.Constant(_i64, 0), i]))

    return intrinsic_from_ir(look_up, result=types.float64)


_N = 32  # entries of the table of exp
_power = _table([float(Decimal(2) ** (Decimal(i) / _N)) for i in range(_N)])  # 2^(i / _N)
_INV_LN2 = float.fromhex("0x1.71547652b82fep+0") * _N
_INV_LN2_HIGH = float(np.float32(_INV_LN2))  # its products with float32 are exact
_INV_LN2_LOW = _INV_LN2 - _INV_LN2_HIGH
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
_LOG = [float.fromhex(x) for x in _LOG_ROWS.split()]
_inverse_center, _log_center = _table(_LOG[::2]), _table(_LOG[1::2])  # of 16 centers
_LN2 = float.fromhex("0x1.62e42fefa39efp-1")
_L0 = float.fromhex("-0x1.00ea348b88334p-2")
_L1 = float.fromhex("0x1.5575b0be00b6ap-2")
_L2 = float.fromhex("-0x1.ffffef20a4123p-2")
_LOG_BASE = 0x3F330000  # bits of the lower end of the centers' range
_EXPONENT = -(2**23)  # mask of the bits of sign and exponent
_SMALLEST_NORMAL = np.float32(2.0**-126)


@inline_strict
def exp32(x: Any) -> Any:
    """exp of a float32 up to 88, or -inf.

    Source: glibc sysdeps/ieee754/flt-32/e_expf.c, the method of ARM's optimized-routines.
    """
    x = np.float64(_UNDERFLOW if x < _UNDERFLOW else x)
    shifted = x * _INV_LN2 + _SHIFT
    rounded, k = shifted - _SHIFT, f64_bits(shifted)  # the low bits of k are those of the integer
    r = (x * _INV_LN2_HIGH - rounded) + x * _INV_LN2_LOW  # rounded once, as with FMA in glibc
    scale = bits_f64(f64_bits(_power(k & (_N - 1))) + ((k & -_N) << 47))  # 2^(k / _N)
    return np.float32(((_E0 * r + _E1) * (r * r) + (_E2 * r + 1.0)) * scale)


@inline_strict
def log32(x: Any) -> Any:
    """log of a float32 from 0, less than infinity.

    Source: glibc sysdeps/ieee754/flt-32/e_logf.c, the method of ARM's optimized-routines.
    """
    is_subnormal = x < _SMALLEST_NORMAL
    bits = f32_bits(x * np.float32(2.0**23) if is_subnormal else x)
    offset = np.int32(bits - _LOG_BASE)
    i, k = (offset >> 19) & 15, (offset >> 23) - (23 if is_subnormal else 0)
    r = np.float64(bits_f32(np.int32(bits - (offset & _EXPONENT)))) * _inverse_center(i) - 1.0
    r2 = r * r
    y = (_L0 * r2 + (_L1 * r + _L2)) * r2 + ((_log_center(i) + np.int32(k) * _LN2) + r)
    return np.float32(y) if x > 0 else np.float32(-np.inf)


@inline_strict
def log_all(values: Any, n: Any, result: Any) -> None:
    """Store `log32` of n values; both are addresses."""
    for i in range(n):
        store_f32(result, i, log32(load_f32(values, i)))


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
    logs = np.empty_like(probs)
    return np.float32(_entropy_of(probs.ctypes.data, probs.size, logs.ctypes.data))


def exp_differences(logits: Floats, top: np.float32) -> Floats:
    """float32[n]: ``exp(logits - top)``; ``top``: the largest, finite."""
    result = np.empty(logits.size, np.float32)
    logits = np.ascontiguousarray(logits)
    _exp_differences(logits.ctypes.data, logits.size, top, result.ctypes.data)
    return result


def log_of(values: Floats) -> Floats:
    """float32[n]: the logarithms of values from 0."""
    values = np.ascontiguousarray(values)
    result = np.empty_like(values)
    _log_of(values.ctypes.data, values.size, result.ctypes.data)
    return result


def sum_of(values: Floats) -> np.float32:
    """The sum in order, as `sum32`."""
    values = np.ascontiguousarray(values)
    return np.float32(_sum_of(values.ctypes.data, values.size))


@jitted(types.void(types.int64, types.int64, types.float32, types.int64), nogil=False)
def _exp_differences(logits: Any, n: Any, top: Any, result: Any) -> None:
    for i in range(n):
        store_f32(result, i, exp32(load_f32(logits, i) - top))


@jitted(types.void(*[types.int64] * 3), nogil=False)
def _log_of(values: Any, n: Any, result: Any) -> None:
    log_all(values, n, result)


@jitted(types.float32(types.int64, types.int64), nogil=False)
def _sum_of(values: Any, n: Any) -> Any:
    return sum32(f32_ptr(values), n)


@jitted(types.float32(*[types.int64] * 3), nogil=False)
def _entropy_of(probs: Any, n: Any, logs: Any) -> Any:
    log_all(probs, n, logs)
    probs, logs, entropy = f32_ptr(probs), f32_ptr(logs), np.float32(0)
    for i in range(n):
        if probs[i] == 0:
            break
        before = entropy
        entropy -= probs[i] * logs[i]
        # -p log p falls with p from 1 / e on: further terms are rounded off too
        if entropy == before and probs[i] < np.float32(0.25):
            break
    return entropy
