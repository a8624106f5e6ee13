"""One element at a time in memory, in a form that LLVM vectorises: typed access by base and index.

    for i in range(n):
        store_elem(F32, y, i, load_elem(F16, x, i) * s)    # F16, F32: a GGMLType as a literal int
    store_f16(address, load_f16(other))            # without the promise below

``load_elem`` promises LLVM that it never reads what an *earlier* ``store_elem`` of the same kernel
call wrote. So loops need no check for overlap, and a result may be computed in place of its source
(element i is read before it is written). To read back what was written, use ``f32_ptr``.
Half floats (F16 and BF16) are rounded to nearest, ties to even. For jitted code; any alignment.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from ....compiler.jit import inline, intrinsic_from_ir
from ....dtype import GGMLType
from .isa import vectors, widen
from .vector import BF16, F16, F32, call, f32, i16, i32, like, load, store, vec

I8, I16, I32, I64 = (int(t) for t in (GGMLType.I8, GGMLType.I16, GGMLType.I32, GGMLType.I64))
Value = Any

# The type in memory and the type in a kernel.
_MEMORY = {
    F32: (ir.FloatType(), types.float32),
    F16: (ir.IntType(16), types.float32),
    BF16: (ir.IntType(16), types.float32),
    I8: (ir.IntType(8), types.int8),
    I16: (ir.IntType(16), types.int16),
    I32: (ir.IntType(32), types.int32),
    I64: (ir.IntType(64), types.int64),
}


def _narrow(b: Value, kind: int, x: Value) -> Value:
    """A float32 as it lies in memory; NaN becomes a quiet one."""
    if kind == F16:
        return vectors().float_to_half(b, x)
    if kind != BF16:
        return x
    u = b.bitcast(x, i32)
    odd = b.and_(b.lshr(u, like(u, 16)), like(u, 1))
    rounded = b.lshr(b.add(b.add(u, like(u, 0x7FFF)), odd), like(u, 16))
    nan = b.icmp_unsigned(">", b.and_(u, like(u, 0x7FFFFFFF)), like(u, 0x7F800000))
    return b.trunc(b.select(nan, b.or_(b.lshr(u, like(u, 16)), like(u, 64)), rounded), i16)


def _scope(b: Value) -> Value:
    """The alias scope of all elements that are read (a node whose first operand is unique)."""
    domain = b.module.add_metadata(["pyggml"])
    return b.module.add_metadata([b.module.add_metadata(["pyggml take", domain])])


def _place(b: Value, element: ir.Type, base: Value, i: Value) -> Value:
    return b.gep(b.inttoptr(base, element.as_pointer()), [i])


def _loaded(kind: Any, base: Any, i: Any) -> Any:
    return _MEMORY[kind.literal_value][1](kind, types.int64, types.int64)


@intrinsic_from_ir(literals=1, typed=_loaded)
def load_elem(b: Value, kind: int, base: Value, i: Value) -> Value:
    """Element ``i`` at ``base``; half floats as float32."""
    value = b.load(_place(b, _MEMORY[kind][0], base, i))
    value.align = 1
    value.set_metadata("alias.scope", _scope(b))
    return widen(b, kind, value)


def _stored(kind: Any, base: Any, i: Any, value: Any) -> Any:
    given = _MEMORY[kind.literal_value][1]
    if not (isinstance(given, types.Integer) and value == types.float32):
        value = given
    return types.void(kind, types.int64, types.int64, value)


@intrinsic_from_ir(literals=1, typed=_stored)
def store_elem(b: Value, kind: int, base: Value, i: Value, value: Value) -> None:
    """Store ``value`` as element ``i`` at ``base``.

    A float32 becomes the nearest half float, or the integer towards zero (saturated, NaN is 0).
    """
    element, given = _MEMORY[kind]
    if isinstance(given, types.Integer) and value.type == f32:
        value = call(b, f"llvm.fptosi.sat.i{element.width}.f32", element, value)
    else:
        value = _narrow(b, kind, value)
    done = b.store(value, _place(b, element, base, i))
    done.align = 1
    done.set_metadata("noalias", _scope(b))


@intrinsic_from_ir(result=types.float32)
def load_f16(b: Value, address: Value) -> Value:
    """The half float at an address, as a float32."""
    return widen(b, F16, load(b, address, i16))


@intrinsic_from_ir(args=(types.int64, types.float32))
def store_f16(b: Value, address: Value, x: Value) -> None:
    """Store a float32 as a half float."""
    store(b, _narrow(b, F16, x), address)


@intrinsic_from_ir
def copy_line(b: Value, x: Value, y: Value) -> None:
    """Copy 16 words of four bytes from x to y."""
    store(b, load(b, x, vec(i32, 16)), y)


@intrinsic_from_ir
def add_line(b: Value, x: Value, y: Value) -> None:
    """Add the 16 float32 at x to those at y."""
    floats = vec(f32, 16)
    store(b, b.fadd(load(b, y, floats), load(b, x, floats)), y)


@inline
def copy_run(x, y, n):
    """Copy ``n`` words of four bytes from x to y."""
    for i in range(n):
        store_elem(I32, y, i, load_elem(I32, x, i))


@inline
def copy_bytes(x, y, n):
    """Copy ``n`` bytes from x to y."""
    for i in range(n):
        store_elem(I8, y, i, load_elem(I8, x, i))


@inline
def zero_run(y, n):
    """Store ``n`` zeros of four bytes."""
    for i in range(n):
        store_elem(I32, y, i, 0)
