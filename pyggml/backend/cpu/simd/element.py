"""One element at a time in memory, in a form that LLVM vectorises: typed access by base and index.

    for i in range(n):
        store_elem(F32, y, i, load_elem(F16, x, i) * s)    # F16, F32: a GGMLType as a literal int

``load_elem`` promises LLVM that it never reads what an *earlier* ``store_elem`` of the same kernel
call wrote. So loops need no check for overlap, and a result may be computed in place of its source
(element i is read before it is written). To read back what was written, use ``f32_ptr``.
For jitted code; any alignment.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ....dtype import GGMLType
from ....jit import inline
from .half import narrow_bf16, narrow_f16, widen_bf16, widen_f16
from .vector import call

F32, F16, BF16 = int(GGMLType.F32), int(GGMLType.F16), int(GGMLType.BF16)
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
_WIDEN = {F16: widen_f16, BF16: widen_bf16}
_NARROW = {F16: narrow_f16, BF16: narrow_bf16}


def _scope(b: Value) -> Value:
    """The alias scope of all loads by ``load_elem`` (a node whose first operand is unique)."""
    domain = b.module.add_metadata(["pyggml"])
    return b.module.add_metadata([b.module.add_metadata(["pyggml take", domain])])


def _place(b: Value, element: ir.Type, base: Value, i: Value) -> Value:
    return b.gep(b.inttoptr(base, element.as_pointer()), [i])


@intrinsic(prefer_literal=True)
def load_elem(typingctx: Any, fmt: Any, base: Any, i: Any) -> Any:
    """Element ``i`` at ``base``; half floats come as float32."""
    if not isinstance(fmt, types.IntegerLiteral):
        return None
    element, result = _MEMORY[fmt.literal_value]
    widen = _WIDEN.get(fmt.literal_value)

    def codegen(context: Any, b: Value, sig: Any, args: Any) -> Any:
        value = b.load(_place(b, element, args[1], args[2]))
        value.align = 1
        value.set_metadata("alias.scope", _scope(b))
        return widen(b, value) if widen else value

    return result(fmt, types.int64, types.int64), codegen


@intrinsic(prefer_literal=True)
def store_elem(typingctx: Any, fmt: Any, base: Any, i: Any, value: Any) -> Any:
    """Store ``value`` as element ``i`` at ``base``.

    A float32 becomes the nearest half float, or the integer towards zero (saturated, NaN is 0).
    """
    if not isinstance(fmt, types.IntegerLiteral):
        return None
    element, given = _MEMORY[fmt.literal_value]
    narrow = _NARROW.get(fmt.literal_value)
    to_integer = isinstance(given, types.Integer) and value == types.float32

    def codegen(context: Any, b: Value, sig: Any, args: Any) -> Any:
        value = args[3]
        if to_integer:
            value = call(b, f"llvm.fptosi.sat.i{element.width}.f32", element, value)
        elif narrow:
            value = narrow(b, value)
        done = b.store(value, _place(b, element, args[1], args[2]))
        done.align = 1
        done.set_metadata("noalias", _scope(b))
        return context.get_dummy_value()

    return types.void(fmt, types.int64, types.int64, value if to_integer else given), codegen


@inline
def copy_run(x, y, n):  # type: ignore[no-untyped-def]
    """``n`` words of four bytes from x to y."""
    for i in range(n):
        store_elem(I32, y, i, load_elem(I32, x, i))


@inline
def copy_bytes(x, y, n):  # type: ignore[no-untyped-def]
    """``n`` bytes from x to y."""
    for i in range(n):
        store_elem(I8, y, i, load_elem(I8, x, i))


@inline
def zero_run(y, n):  # type: ignore[no-untyped-def]
    """``n`` zeros of four bytes."""
    for i in range(n):
        store_elem(I32, y, i, 0)
