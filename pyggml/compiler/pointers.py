"""Addresses as typed pointers in jitted code, where an integer is all that a function is given.

@jitted(types.int64(types.int64, types.int64))
def total(address, n):
    values, result = i32_ptr(address), 0       # values[i] is unchecked
    ...
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import intrinsic


def _pointer(numba_type: types.Type) -> Any:
    """An intrinsic that makes an address a typed pointer: ``p[i]``, unchecked."""
    pointer_type = types.CPointer(numba_type)

    @intrinsic
    def as_pointer(typingctx: Any, address: Any) -> Any:
        def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
            return b.inttoptr(args[0], context.get_value_type(pointer_type))

        return pointer_type(types.int64), codegen

    return as_pointer


u8_ptr = _pointer(types.uint8)
u16_ptr = _pointer(types.uint16)
i32_ptr = _pointer(types.int32)
u32_ptr = _pointer(types.uint32)
i64_ptr = _pointer(types.int64)
f32_ptr = _pointer(types.float32)
f64_ptr = _pointer(types.float64)
