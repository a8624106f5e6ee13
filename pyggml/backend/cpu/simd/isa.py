"""The vector IR of the instruction set in use, and what depends on nothing else.

    v = vectors()
    acc = v.u4_add(b, acc, weights, activations)   # b: llvmlite's IRBuilder
    x = load_floats(b, F16, address, v.lanes)

The set is chosen once, before the first kernel is compiled.
"""

from __future__ import annotations

from functools import lru_cache

from ....compiler.jit import isa
from . import aarch64, x86
from .vector import BF16, F16, F32, Generic, Value, f32, i16, i32, like, load, vec, with_element


@lru_cache(maxsize=1)
def vectors() -> Generic:
    """The emitter of the instruction set in use."""
    sets: dict[str, type[Generic]] = {"generic": Generic, **x86.SETS, **aarch64.SETS}
    return sets[isa()]()


def widen(b: Value, kind: int, x: Value) -> Value:
    """Floats as they lie in memory (i16 of F16 and BF16), scalars or vectors, as float32."""
    if kind == F16:
        return vectors().half_to_float(b, x)
    if kind == BF16:
        x = b.zext(x, with_element(x, i32))
        return b.bitcast(b.shl(x, like(x, 16)), with_element(x, f32))
    return x


def load_floats(b: Value, kind: int, address: Value, n: int) -> Value:
    """``n`` floats in memory, F16, BF16 or F32, as <n x float>."""
    return widen(b, kind, load(b, address, vec(f32 if kind == F32 else i16, n)))


def fma(b: Value, x: Value, y: Value, z: Value) -> Value:
    """x * y + z of vectors of floats, rounded once where the host can."""
    return vectors().fma(b, x, y, z)
