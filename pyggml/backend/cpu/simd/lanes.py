"""Vectors as values in jitted code: arithmetic on all lanes at once, whatever the instruction set.

    x = lanes_f32(8, address)                      # the number of lanes is a literal
    y = select(x > low, x * scale + low, low)      # operators take lanes, and scalars for all lanes
    store(address, y)

Elements are float32, int32 or bytes; a comparison gives a mask. The operations of each lane are
those of a scalar loop, in the same order. So 8 sums of a fixed order, which LLVM must not reorder
and does not vectorise, are one loop over 8 lanes with the same bits. Vectors may be longer than the
hardware's registers.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import lower_builtin, models, register_model

from ....compiler.jit import intrinsic_from_ir
from ....compiler.numba_internals import templates
from .vector import broadcast, call, f32, i8, i32, i64, load, vec, with_element, zeroed_stack
from .vector import store as store_at

Value = Any
i1 = ir.IntType(1)
_IR = {types.float32: f32, types.int32: i32, types.uint8: i8, types.boolean: i1}


class Lanes(types.Type):  # type: ignore[misc]
    """Numba's type of ``n`` lanes of a scalar type."""

    def __init__(self, element: Any, n: int) -> None:
        self.element, self.n = element, n
        super().__init__(name=f"lanes({element} x {n})")

    @property
    def ir(self) -> ir.VectorType:
        return vec(_IR[self.element], self.n)

    def of(self, element: Any) -> Lanes:
        """As many lanes of another type."""
        return Lanes(element, self.n)


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, lanes: Lanes) -> None:
        super().__init__(manager, lanes, lanes.ir)


def _define(symbol: Any, emit: Callable[..., Value], is_mask: bool = False) -> None:
    """An operator on lanes; ``emit(builder, is_float, x, y)``."""

    class Template(templates.AbstractTemplate):  # type: ignore[misc]
        def generic(self, args: Any, kws: Any) -> Any:
            lanes = next((a for a in args if isinstance(a, Lanes)), None)
            if lanes is None or any(isinstance(a, Lanes) and a != lanes for a in args):
                return None
            given = [a if isinstance(a, Lanes) else lanes.element for a in args]
            return templates.signature(lanes.of(types.boolean) if is_mask else lanes, *given)

    def lower(context: Any, b: Value, sig: Any, args: Any) -> Value:
        lanes = next(a for a in sig.args if isinstance(a, Lanes))
        x, y = (
            v if isinstance(t, Lanes) else broadcast(b, v, lanes.n)
            for v, t in zip(args, sig.args, strict=True)
        )
        return emit(b, lanes.element is types.float32, x, y)

    templates.infer_global(symbol)(Template)
    for pair in ((Lanes, Lanes), (Lanes, types.Number), (types.Number, Lanes)):
        lower_builtin(symbol, *pair)(lower)


def _compare(sign: str) -> Callable[..., Value]:
    def emit(b: Value, is_float: bool, x: Value, y: Value) -> Value:
        if is_float:  # NaN is unequal to everything, and neither less nor greater
            return (b.fcmp_unordered if sign == "!=" else b.fcmp_ordered)(sign, x, y)
        return b.icmp_signed(sign, x, y)

    return emit


_define(operator.add, lambda b, is_float, x, y: (b.fadd if is_float else b.add)(x, y))
_define(operator.sub, lambda b, is_float, x, y: (b.fsub if is_float else b.sub)(x, y))
_define(operator.mul, lambda b, is_float, x, y: (b.fmul if is_float else b.mul)(x, y))
_define(operator.truediv, lambda b, is_float, x, y: b.fdiv(x, y))
_define(operator.and_, lambda b, is_float, x, y: b.and_(x, y))
_define(operator.or_, lambda b, is_float, x, y: b.or_(x, y))
_define(operator.lshift, lambda b, is_float, x, y: b.shl(x, y))
_define(operator.rshift, lambda b, is_float, x, y: b.lshr(x, y))
for _symbol, _sign in (
    (operator.lt, "<"),
    (operator.le, "<="),
    (operator.gt, ">"),
    (operator.ge, ">="),
    (operator.eq, "=="),
    (operator.ne, "!="),
):
    _define(_symbol, _compare(_sign), is_mask=True)


def _floats(n: Any) -> Lanes:
    """Numba's type of a literal number of float32."""
    return Lanes(types.float32, n.literal_value)


@intrinsic_from_ir(literals=1, typed=lambda n, address: _floats(n)(n, types.int64))
def lanes_f32(b: Value, n: int, address: Value) -> Value:
    """``n`` float32 from an address."""
    return load(b, address, vec(f32, n))


@intrinsic_from_ir(
    literals=1, typed=lambda n, address, stride: _floats(n)(n, types.int64, types.int64)
)
def lanes_strided(b: Value, n: int, address: Value, stride: Value) -> Value:
    """``n`` float32 that lie ``stride`` bytes apart."""
    value = ir.Constant(vec(f32, n), ir.Undefined)
    for i in range(n):
        value = b.insert_element(value, load(b, address, f32), ir.Constant(i32, i))
        address = b.add(address, stride)
    return value


@intrinsic_from_ir(typed=lambda address, x: types.void(types.int64, x))
def store(b: Value, address: Value, x: Value) -> None:
    """All lanes to an address."""
    store_at(b, x, address)


@intrinsic_from_ir(literals=1, typed=lambda n, value: _floats(n)(n, types.float32))
def spread(b: Value, n: int, value: Value) -> Value:
    """A float32 in ``n`` lanes."""
    return broadcast(b, value, n)


@intrinsic_from_ir(typed=lambda mask, x, y: x(mask, x, x))
def select(b: Value, mask: Value, x: Value, y: Value) -> Value:
    """Lanes of ``x`` where the mask is set, of ``y`` elsewhere."""
    return b.select(mask, x, y)


def _unary(result: Any, emit: Callable[[Value, Value, ir.VectorType], Value], doc: str) -> Any:
    """A function of lanes; ``emit(builder, x, type of the result)``."""

    @intrinsic_from_ir(typed=lambda x: x.of(result)(x))
    def function(b: Value, x: Value) -> Value:
        return emit(b, x, with_element(x, _IR[result]))

    function.__doc__ = doc
    return function


def _same(name: str) -> Callable[[Value, Value, ir.VectorType], Value]:
    return lambda b, x, to: call(b, f"llvm.{name}.v{to.count}f32", to, x)


sqrt = _unary(types.float32, _same("sqrt"), "Square roots.")
absolute = _unary(types.float32, _same("fabs"), "Absolute values.")
bits = _unary(types.int32, lambda b, x, to: b.bitcast(x, to), "The bits of floats.")
truncate = _unary(
    types.int32, lambda b, x, to: b.fptosi(x, to), "Floats towards zero; they must fit."
)
to_float = _unary(types.float32, lambda b, x, to: b.sitofp(x, to), "Integers as floats.")
sign_extend = _unary(types.int32, lambda b, x, to: b.sext(x, to), "Bytes as integers, from -128.")
to_bytes = _unary(types.uint8, lambda b, x, to: b.trunc(x, to), "The low bytes of integers.")


@intrinsic_from_ir(typed=lambda x, low, high: x(x, types.int32, types.int32))
def clamp(b: Value, x: Value, low: Value, high: Value) -> Value:
    """Integers, none below ``low`` nor above ``high``."""
    n = x.type.count
    for name, limit in (("smax", low), ("smin", high)):
        x = call(b, f"llvm.{name}.v{n}i32", x.type, x, broadcast(b, limit, n))
    return x


def _reduction(name: str, element: Any, doc: str) -> Any:
    @intrinsic_from_ir(typed=element)
    def reduce(b: Value, x: Value) -> Value:
        kind = "f32" if element is types.float32 else "i32"
        return call(b, f"llvm.vector.reduce.{name}.v{x.type.count}{kind}", _IR[element], x)

    reduce.__doc__ = doc
    return reduce


max_lane = _reduction("fmax", types.float32, "The largest of floats; of zeros any.")
min_lane = _reduction("fmin", types.float32, "The smallest of floats; of zeros any.")
sum_lanes = _reduction("add", types.int32, "The sum of integers.")


@intrinsic_from_ir(typed=types.int64)
def first_set(b: Value, mask: Value) -> Value:
    """The first lane where the mask is set; there must be one."""
    n, never = mask.type.count, ir.Constant(i1, 1)  # no lane at all is undefined
    whole = ir.IntType(n)
    return b.zext(call(b, f"llvm.cttz.i{n}", whole, b.bitcast(mask, whole), never), i64)


@intrinsic_from_ir(typed=types.int64)
def mask_bits(b: Value, mask: Value) -> Value:
    """A mask as an integer, lane i in bit i."""
    return b.zext(b.bitcast(mask, ir.IntType(mask.type.count)), i64)


# The address of so many bytes on the stack of the function that this is compiled into
stack = intrinsic_from_ir(zeroed_stack, literals=1, result=types.int64)
