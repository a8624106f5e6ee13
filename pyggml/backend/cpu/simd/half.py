"""Half floats (F16 and BF16) to float32 and back, rounding to nearest, ties to even.

    y[i] = f16_to_f32(u16_ptr(x)[i])               # vectorises in a loop
    store_f16(address, x)                          # one value at an address

Where the hardware has no conversion integer arithmetic does it, for there ``fpext half`` may call
a function that does not exist. For jitted code.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .vector import HardwareFloats, vectors

i16, i32 = ir.IntType(16), ir.IntType(32)
f16, f32 = ir.HalfType(), ir.FloatType()
Value = Any


def _c(value: int) -> ir.Constant:
    return ir.Constant(i32, value)


def widen_f16(b: Value, bits: Value) -> Value:
    """Emit the float of an i16 that holds a half float."""
    if isinstance(vectors(), HardwareFloats):
        return b.fpext(b.bitcast(bits, f16), f32)
    x = b.and_(b.shl(b.sext(bits, i32), _c(13)), _c(0x8FFFE000))
    value = b.bitcast(b.fmul(b.bitcast(x, f32), ir.Constant(f32, 2.0**112)), i32)  # or subnormal
    special = b.icmp_signed("==", b.and_(x, _c(0x0F800000)), _c(0x0F800000))  # inf and NaN
    return b.bitcast(b.or_(value, b.and_(b.sext(special, i32), _c(0x7F800000))), f32)


def narrow_f16(b: Value, x: Value) -> Value:
    """Emit the half float of a float, as an i16."""
    if isinstance(vectors(), HardwareFloats):
        return b.bitcast(b.fptrunc(x, f16), i16)
    u = b.bitcast(x, i32)
    magnitude = b.and_(u, _c(0x7FFFFFFF))
    odd = b.and_(b.lshr(magnitude, _c(13)), _c(1))
    rebias = _c(((15 - 127) << 23) + 0xFFF)
    normal = b.lshr(b.add(b.add(magnitude, rebias), odd), _c(13))
    # Adding 0.5 makes the float unit round at the half float's last subnormal bit.
    shifted = b.fadd(b.bitcast(magnitude, f32), ir.Constant(f32, 0.5))
    small = b.sub(b.bitcast(shifted, i32), _c(0x3F000000))
    nan = b.icmp_unsigned(">", magnitude, _c(0x7F800000))
    large = b.select(nan, _c(0x7E00), _c(0x7C00))
    value = b.select(b.icmp_unsigned("<", magnitude, _c(113 << 23)), small, normal)
    value = b.select(b.icmp_unsigned(">=", magnitude, _c(143 << 23)), large, value)
    sign = b.and_(b.lshr(u, _c(16)), _c(0x8000))
    return b.trunc(b.or_(value, sign), i16)


def widen_bf16(b: Value, bits: Value) -> Value:
    """Emit the float whose top half is an i16."""
    return b.bitcast(b.shl(b.zext(bits, i32), _c(16)), f32)


def narrow_bf16(b: Value, x: Value) -> Value:
    """Emit the bfloat16 of a float, as an i16; NaN becomes quiet."""
    u = b.bitcast(x, i32)
    odd = b.and_(b.lshr(u, _c(16)), _c(1))
    rounded = b.lshr(b.add(b.add(u, _c(0x7FFF)), odd), _c(16))
    nan = b.icmp_unsigned(">", b.and_(u, _c(0x7FFFFFFF)), _c(0x7F800000))
    return b.trunc(b.select(nan, b.or_(b.lshr(u, _c(16)), _c(64)), rounded), i16)


@intrinsic
def f16_to_f32(typingctx: Any, bits: Any) -> Any:
    """The float32 of a half float's 16 bits."""

    def codegen(context: Any, b: Value, sig: Any, args: Any) -> Any:
        return widen_f16(b, args[0])

    return types.float32(types.uint16), codegen


@intrinsic
def f32_to_f16(typingctx: Any, x: Any) -> Any:
    """The 16 bits of the nearest half float."""

    def codegen(context: Any, b: Value, sig: Any, args: Any) -> Any:
        return narrow_f16(b, args[0])

    return types.uint16(types.float32), codegen


@intrinsic
def load_f16(typingctx: Any, address: Any) -> Any:
    """The half float at an address of any alignment, as a float32."""

    def codegen(context: Any, b: Value, sig: Any, args: Any) -> Any:
        bits = b.load(b.inttoptr(args[0], i16.as_pointer()))
        bits.align = 1
        return widen_f16(b, bits)

    return types.float32(types.int64), codegen


@intrinsic
def store_f16(typingctx: Any, address: Any, x: Any) -> Any:
    """Store a float32 as a half float at an address of any alignment."""

    def codegen(context: Any, b: Value, sig: Any, args: Any) -> Any:
        b.store(narrow_f16(b, args[1]), b.inttoptr(args[0], i16.as_pointer())).align = 1
        return context.get_dummy_value()

    return types.void(types.int64, types.float32), codegen
