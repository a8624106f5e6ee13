"""Vectors as values in jitted code: arithmetic on all lanes at once, whatever the instruction set.

    x = lanes_f32(8, address)                      # the number of lanes is a literal
    y = choose(x > low, x * scale + low, low)      # operators take lanes, and scalars for all lanes
    store(address, y)

Elements are float32, int32 or bytes; a comparison gives a mask. Each lane does strictly what a
scalar would do, so a loop over 8 lanes is 8 loops with the same bits, where LLVM may not vectorise
a sum that has to be in order. Vectors may be longer than the hardware's.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, lower_builtin, models, register_model

from ....numba_internals import cgutils, templates
from .vector import broadcast, call, f32, i8, i32, i64, load, vec
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
        if is_float:  # NaN is unequal to all, and less or more than nothing
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


def _loader(element: Any, doc: str) -> Any:
    @intrinsic(prefer_literal=True)
    def load_lanes(typingctx: Any, n: Any, address: Any) -> Any:
        if not isinstance(n, types.IntegerLiteral):
            return None
        lanes = Lanes(element, n.literal_value)

        def codegen(context: Any, b: Value, sig: Any, args: Any) -> Value:
            return load(b, args[1], lanes.ir)

        return lanes(n, types.int64), codegen

    load_lanes.__doc__ = doc
    return load_lanes


lanes_f32 = _loader(types.float32, "``n`` float32 from an address.")
lanes_u8 = _loader(types.uint8, "``n`` bytes from an address.")


@intrinsic(prefer_literal=True)
def lanes_strided(typingctx: Any, n: Any, address: Any, stride: Any) -> Any:
    """``n`` float32 that lie ``stride`` bytes apart."""
    if not isinstance(n, types.IntegerLiteral):
        return None
    lanes = Lanes(types.float32, n.literal_value)

    def codegen(context: Any, b: Value, sig: Any, args: Any) -> Value:
        value, address = ir.Constant(lanes.ir, ir.Undefined), args[1]
        for i in range(lanes.n):
            value = b.insert_element(value, load(b, address, f32), ir.Constant(i32, i))
            address = b.add(address, args[2])
        return value

    return lanes(n, types.int64, types.int64), codegen


@intrinsic
def store(typingctx: Any, address: Any, x: Any) -> Any:
    """All lanes to an address."""

    def codegen(context: Any, b: Value, sig: Any, args: Any) -> Value:
        store_at(b, args[1], args[0])
        return context.get_dummy_value()

    return types.void(types.int64, x), codegen


@intrinsic(prefer_literal=True)
def spread(typingctx: Any, n: Any, value: Any) -> Any:
    """A float32 in ``n`` lanes."""
    if not isinstance(n, types.IntegerLiteral):
        return None
    lanes = Lanes(types.float32, n.literal_value)

    def codegen(context: Any, b: Value, sig: Any, args: Any) -> Value:
        return broadcast(b, args[1], lanes.n)

    return lanes(n, types.float32), codegen


@intrinsic
def choose(typingctx: Any, mask: Any, x: Any, y: Any) -> Any:
    """Lanes of ``x`` where the mask is set, of ``y`` elsewhere."""

    def codegen(context: Any, b: Value, sig: Any, args: Any) -> Value:
        return b.select(*args)

    return x(mask, x, x), codegen


def _unary(result: Any, emit: Callable[[Value, Value, ir.VectorType], Value], doc: str) -> Any:
    """A function of lanes; ``emit(builder, x, type of the result)``."""

    @intrinsic
    def function(typingctx: Any, x: Any) -> Any:
        lanes = x.of(result)

        def codegen(context: Any, b: Value, sig: Any, args: Any) -> Value:
            return emit(b, args[0], lanes.ir)

        return lanes(x), codegen

    function.__doc__ = doc
    return function


def _same(name: str) -> Callable[[Value, Value, ir.VectorType], Value]:
    return lambda b, x, to: call(b, f"llvm.{name}.v{to.count}f32", to, x)


root = _unary(types.float32, _same("sqrt"), "Square roots.")
magnitude = _unary(types.float32, _same("fabs"), "Absolute values.")
bits = _unary(types.int32, lambda b, x, to: b.bitcast(x, to), "The bits of floats.")
truncated = _unary(
    types.int32, lambda b, x, to: b.fptosi(x, to), "Floats towards zero; they must fit."
)
floats = _unary(types.float32, lambda b, x, to: b.sitofp(x, to), "Integers as floats.")
integers = _unary(types.int32, lambda b, x, to: b.zext(x, to), "Bytes as integers, from 0.")
signed = _unary(types.int32, lambda b, x, to: b.sext(x, to), "Bytes as integers, from -128.")
narrow = _unary(types.uint8, lambda b, x, to: b.trunc(x, to), "The low bytes of integers.")


@intrinsic
def clamp(typingctx: Any, x: Any, low: Any, high: Any) -> Any:
    """Integers, none below ``low`` nor above ``high``."""

    def codegen(context: Any, b: Value, sig: Any, args: Any) -> Value:
        value = args[0]
        for name, limit in (("smax", args[1]), ("smin", args[2])):
            limits = broadcast(b, limit, x.n)
            value = call(b, f"llvm.{name}.v{x.n}i32", x.ir, value, limits)
        return value

    return x(x, types.int32, types.int32), codegen


def _reduction(name: str, element: Any, doc: str) -> Any:
    @intrinsic
    def reduce(typingctx: Any, x: Any) -> Any:
        kind = "f32" if element is types.float32 else "i32"

        def codegen(context: Any, b: Value, sig: Any, args: Any) -> Value:
            return call(b, f"llvm.vector.reduce.{name}.v{x.n}{kind}", _IR[element], args[0])

        return element(x), codegen

    reduce.__doc__ = doc
    return reduce


most = _reduction("fmax", types.float32, "The largest of floats; of zeros any.")
least = _reduction("fmin", types.float32, "The smallest of floats; of zeros any.")
total = _reduction("add", types.int32, "The sum of integers.")


@intrinsic
def first(typingctx: Any, mask: Any) -> Any:
    """The first lane where the mask is set; there must be one."""

    def codegen(context: Any, b: Value, sig: Any, args: Any) -> Value:
        whole = ir.IntType(mask.n)
        never = ir.Constant(i1, 1)  # no lane at all is undefined
        return b.zext(call(b, f"llvm.cttz.i{mask.n}", whole, b.bitcast(args[0], whole), never), i64)

    return types.int64(mask), codegen


@intrinsic
def mask_bits(typingctx: Any, mask: Any) -> Any:
    """A mask as an integer, lane i in bit i."""

    def codegen(context: Any, b: Value, sig: Any, args: Any) -> Value:
        return b.zext(b.bitcast(args[0], ir.IntType(mask.n)), i64)

    return types.int64(mask), codegen


@intrinsic(prefer_literal=True)
def spread_bits(typingctx: Any, n: Any, value: Any) -> Any:
    """The low ``n`` bits of an integer as ``n`` integers 0 or 1."""
    if not isinstance(n, types.IntegerLiteral):
        return None
    lanes = Lanes(types.int32, n.literal_value)

    def codegen(context: Any, b: Value, sig: Any, args: Any) -> Value:
        mask = b.bitcast(b.trunc(args[1], ir.IntType(lanes.n)), vec(i1, lanes.n))
        return b.zext(mask, lanes.ir)

    return lanes(n, types.int64), codegen


@intrinsic(prefer_literal=True)
def stack(typingctx: Any, n_bytes: Any) -> Any:
    """The address of so much memory of the function that this is compiled into."""
    if not isinstance(n_bytes, types.IntegerLiteral):
        return None

    def codegen(context: Any, b: Value, sig: Any, args: Any) -> Value:
        memory = cgutils.alloca_once(b, ir.ArrayType(i8, n_bytes.literal_value))
        memory.align = 64
        return b.ptrtoint(memory, i64)

    return types.int64(n_bytes), codegen
