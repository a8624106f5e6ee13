"""Python twins of the device functions of ``intrin``: what the simulator runs in their place.

    TWINS[intrin.fma](a, b, c)

A pointer has ``load(dtype, offset, n)`` and ``store(dtype, offset, values)``, which check bounds
and alignment. Tensor cores and shared memory by address have no twins: a lane of the simulator does
not see the others' operands, so kernels with them run on the emulator only.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from pyggml.backend.cuda import intrin
from pyggml.backend.cuda.intrin import (
    bits_to_float,
    divide,
    dot4_ss,
    dot4_us,
    exp2,
    float_to_bits,
    float_to_half,
    floats_to_halves,
    fma,
    half_to_float,
    halves_to_floats,
    mul_rounded,
    rsqrt,
    u32,
)

TWINS: dict[Any, Callable[..., Any]] = {}
_MEMORY = re.compile(r"(load|store)_([uif])(\d+)(?:x(\d))?")  # load_u8, store_f32x4


def python_stand_in(of: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register what the simulator runs in place of ``of``."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        TWINS[of] = function
        return function

    return register


def _load(dtype: Any, n: int) -> Callable[..., Any]:
    def load(pointer: Any, offset: Any) -> Any:
        values = pointer.load(dtype, int(offset), n)
        return values[0] if n == 1 else tuple(values)

    return load


def _store(dtype: Any) -> Callable[..., Any]:
    def store(pointer: Any, offset: Any, *values: Any) -> None:
        pointer.store(dtype, int(offset), values)

    return store


for _name, _function in vars(intrin).items():
    if _match := _MEMORY.fullmatch(_name):
        _dtype = np.dtype(f"{_match[2]}{int(_match[3]) // 8}")
        _n = int(_match[4] or 1)
        TWINS[_function] = _load(_dtype, _n) if _match[1] == "load" else _store(_dtype)


def _bits(value: Any, dtype: Any) -> Any:
    return np.array([int(value) & 0xFFFFFFFF], np.uint32).view(dtype)


@python_stand_in(u32)
def _u32(x: Any) -> Any:
    return np.uint32(int(x) & 0xFFFFFFFF)


@python_stand_in(divide)
def _divide(a: Any, b: Any) -> Any:
    return np.int32(int(a) // int(b))


@python_stand_in(fma)
def _fma(a: Any, b: Any, c: Any) -> Any:
    return np.float32(np.float64(a) * np.float64(b) + np.float64(c))


@python_stand_in(mul_rounded)
def _mul_rounded(a: Any, b: Any) -> Any:
    return np.float32(a) * np.float32(b)


@python_stand_in(half_to_float)
def _half_to_float(bits: Any) -> Any:
    return np.float32(np.uint16(bits).view(np.float16))


@python_stand_in(float_to_half)
def _float_to_half(x: Any) -> Any:
    with np.errstate(over="ignore"):
        return np.float16(np.float32(x)).view(np.uint16)


@python_stand_in(halves_to_floats)
def _halves_to_floats(bits: Any) -> Any:
    low, high = _bits(bits, np.float16)
    return np.float32(low), np.float32(high)


@python_stand_in(floats_to_halves)
def _floats_to_halves(low: Any, high: Any) -> Any:
    return np.array([low, high], np.float32).astype(np.float16).view(np.uint32)[0]


@python_stand_in(dot4_us)
def _dot4_us(a: Any, b: Any, c: Any) -> Any:
    return np.int32(c + int(_bits(a, np.uint8).astype(int) @ _bits(b, np.int8).astype(int)))


@python_stand_in(dot4_ss)
def _dot4_ss(a: Any, b: Any, c: Any) -> Any:
    return np.int32(c + int(_bits(a, np.int8).astype(int) @ _bits(b, np.int8).astype(int)))


@python_stand_in(rsqrt)
def _rsqrt(x: Any) -> Any:
    return np.float32(1 / np.sqrt(np.float64(x)))


@python_stand_in(exp2)
def _exp2(x: Any) -> Any:
    return np.float32(np.exp2(np.float64(x)))


@python_stand_in(bits_to_float)
def _bits_to_float(bits: Any) -> Any:
    return _bits(bits, np.float32)[0]


@python_stand_in(float_to_bits)
def _float_to_bits(x: Any) -> Any:
    return np.float32(x).view(np.uint32)
