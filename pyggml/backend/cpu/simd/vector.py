"""LLVM vector IR for each instruction set: widths, half floats and integer dot products.

    v = vectors()                                  # for the instruction set in use
    acc = v.u4_add(b, acc, weights, activations)   # b: llvmlite's IRBuilder

Kernels that emit IR themselves are written once over ``v.width`` bytes and ``v.parts`` vectors a
64-byte line; everything that differs between instruction sets is here, in ``x86`` and ``aarch64``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from llvmlite import ir

from ....jit import isa

i8, i16, i32, i64 = (ir.IntType(n) for n in (8, 16, 32, 64))
f16, f32 = ir.HalfType(), ir.FloatType()
LINE = 64  # bytes: 4 weights of 16 rows
Value = Any


def vec(element: ir.Type, lanes: int) -> ir.VectorType:
    """A vector type."""
    return ir.VectorType(element, lanes)


def splat(element: ir.Type, lanes: int, value: float) -> ir.Constant:
    """A constant vector of equal lanes."""
    return ir.Constant(vec(element, lanes), [value] * lanes)


def broadcast(b: Value, scalar: Value, lanes: int) -> Value:
    """A vector of one run-time value."""
    undefined = ir.Constant(vec(scalar.type, lanes), ir.Undefined)
    first = b.insert_element(undefined, scalar, ir.Constant(i32, 0))
    return b.shuffle_vector(first, undefined, ir.Constant(vec(i32, lanes), [0] * lanes))


def concat(b: Value, parts: list[Value]) -> Value:
    """The lanes of some vectors of one type, a power of two of them."""
    while len(parts) > 1:
        n = 2 * parts[0].type.count
        lanes = ir.Constant(vec(i32, n), list(range(n)))
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [b.shuffle_vector(x, y, lanes) for x, y in pairs]
    return parts[0]


def pointer(b: Value, address: Value) -> Value:
    """An address that LLVM adds constants to in the instructions that use it, and nowhere else.

    Of integers it makes a counter for each offset in a loop, more than there are registers.
    """
    return b.inttoptr(address, i8.as_pointer())


def _typed(b: Value, address: Value, type: ir.Type) -> Value:
    is_pointer = isinstance(address.type, ir.PointerType)
    return (b.bitcast if is_pointer else b.inttoptr)(address, type.as_pointer())


def load(b: Value, address: Value, type: ir.Type, align: int = 1) -> Value:
    """Load a value of any type; unaligned unless told otherwise."""
    value = b.load(_typed(b, address, type))
    value.align = align
    return value


def store(b: Value, value: Value, address: Value, align: int = 1) -> None:
    """Store a value; unaligned unless told otherwise."""
    b.store(value, _typed(b, address, value.type)).align = align


def at(b: Value, address: Value, offset: int) -> Value:
    """``address + offset``, an integer or a ``pointer``."""
    if not offset:
        return address
    if isinstance(address.type, ir.PointerType):
        return b.gep(address, [ir.Constant(i64, offset)])
    return b.add(address, ir.Constant(i64, offset))


def call(b: Value, name: str, result: ir.Type, *args: Value) -> Value:
    """Call an LLVM intrinsic by name."""
    function = b.module.globals.get(name) or ir.Function(
        b.module, ir.FunctionType(result, [a.type for a in args]), name
    )
    return b.call(function, args)


def prefetch(b: Value, address: Value, hint: int = 2) -> None:
    """Prefetch the line at an address, which need not be mapped.

    Args:
        hint: LLVM's locality: 3 fills all caches, 2 the second level and below, 1 the third; 0 is
            non-temporal (``prefetchnta``).
    """
    pointer = b.inttoptr(address, i8.as_pointer())
    flags = [ir.Constant(i32, flag) for flag in (0, hint, 1)]  # a read, hint, of data
    call(b, "llvm.prefetch.p0i8", ir.VoidType(), pointer, *flags)


def fma(b: Value, x: Value, y: Value, z: Value) -> Value:
    """x * y + z of vectors of floats, rounded once where the host can."""
    return vectors().fma(b, x, y, z)


class Generic:
    """Plain IR that runs anywhere."""

    width = 16  # bytes of a vector
    u5_lines = 4  # lines of codes 0..31 whose products a sum has room for
    # Vectors of sums for which there are registers: of results of a tile that are carried from
    # block to block, of products within a block, of products with float weights
    row_sums, block_sums, float_sums = 4, 8, 8
    narrow = False  # whether sums of ``u4_add`` have 16 bits
    raised = 0  # added to int8 weights, which then are codes for ``u4_add``; else it is ``s8_add``
    float_table: Any = None  # where one instruction looks up floats
    has_tiles = False  # whether there are the tile registers of ``Avx512Amx``
    start: Any = None  # where sums of ``u4_add`` must start at what codes have too much

    @property
    def parts(self) -> int:
        return LINE // self.width

    @property
    def lanes(self) -> int:
        return self.width // 4

    def part_groups(self, n_tokens: int, n_parts: int, n_sums: int) -> list[range]:
        """The parts of a line that a tile multiplies at a time, so as to have ``n_sums`` sums."""
        size = max(1, n_sums // n_tokens)
        return [range(k, min(k + size, n_parts)) for k in range(0, n_parts, size)]

    def fma(self, b: Value, x: Value, y: Value, z: Value) -> Value:
        return b.fadd(b.fmul(x, y), z)

    def half_to_float(self, b: Value, x: Value) -> Value:
        """<n x i16> bits of half floats as <n x float>, without F16C."""
        n = x.type.count
        exponent = splat(i32, n, 0x0F800000)  # where a half's is when its fraction is a float's
        x = b.shl(b.sext(x, vec(i32, n)), splat(i32, n, 13))
        x = b.and_(x, splat(i32, n, 0x8FFFE000))
        value = b.bitcast(b.fmul(b.bitcast(x, vec(f32, n)), splat(f32, n, 2.0**112)), x.type)
        special = b.icmp_signed("==", b.and_(x, exponent), exponent)  # inf and NaN
        special = b.and_(b.sext(special, x.type), splat(i32, n, 0x7F800000))
        return b.bitcast(b.or_(value, special), vec(f32, n))

    def load_half(self, b: Value, address: Value) -> Value:
        """One vector of floats from half floats in memory."""
        return self.half_to_float(b, load(b, address, vec(i16, self.lanes)))

    def round_to_half(self, b: Value, x: Value) -> Value:
        """A scalar float rounded to the nearest half float, ties to even, as float.

        Integer and float arithmetic only, for hosts without F16C.
        """
        bits = b.bitcast(x, i32)
        sign = b.and_(bits, ir.Constant(i32, 0x80000000))
        size = b.and_(bits, ir.Constant(i32, 0x7FFFFFFF))
        magnitude = b.bitcast(size, f32)
        odd = b.and_(b.lshr(size, ir.Constant(i32, 13)), ir.Constant(i32, 1))
        up = b.add(b.add(size, ir.Constant(i32, 0xFFF)), odd)
        normal = b.bitcast(b.and_(up, ir.Constant(i32, 0xFFFFE000)), f32)
        step = ir.Constant(f32, 0.75)  # adding it leaves multiples of 2^-24, the smallest half
        small = b.fsub(b.fadd(magnitude, step), step)
        value = b.select(b.fcmp_ordered("<", magnitude, ir.Constant(f32, 2.0**-14)), small, normal)
        large = b.fcmp_ordered(">=", magnitude, ir.Constant(f32, 65520.0))
        value = b.select(large, ir.Constant(f32, float("inf")), value)
        value = b.select(b.fcmp_unordered("uno", magnitude, magnitude), magnitude, value)
        return b.bitcast(b.or_(b.bitcast(value, i32), sign), f32)

    def load_bfloat(self, b: Value, address: Value) -> Value:
        """One vector of floats from bfloat16 in memory."""
        n = self.lanes
        bits = b.zext(load(b, address, vec(i16, n)), vec(i32, n))
        return b.bitcast(b.shl(bits, splat(i32, n, 16)), vec(f32, n))

    def broadcast_bytes(self, b: Value, address: Value) -> Value:
        """Four bytes from memory in every 32-bit lane."""
        word = broadcast(b, load(b, address, i32), self.lanes)
        return b.bitcast(word, vec(i8, self.width))

    def u4_zero(self) -> Value:
        """The start of a sum of products of codes 0..15 and int8 over at most 32 columns.

        Codes 0..31 have room for ``u5_lines`` lines, 8 columns each.
        """
        return splat(i32, self.lanes, 0)

    def u4_add(self, b: Value, acc: Value, w: Value, a: Value) -> Value:
        return self._dot(b, acc, w, a, b.lshr)

    def u4_total(self, b: Value, acc: Value) -> Value:
        """The sum as <lanes x i32>."""
        return acc

    def sub_scale(self, b: Value, words: Value, signed: bool) -> Value:
        """The low byte of each word in the form that ``scaled`` wants."""
        n = self.lanes
        if not signed:
            return b.and_(words, splat(i32, n, 255))
        return b.ashr(b.shl(words, splat(i32, n, 24)), splat(i32, n, 24))

    def scaled(self, b: Value, acc: Value, scale: Value) -> Value:
        """A sum of ``u4_add`` times sub-scales as <lanes x i32>."""
        return b.mul(acc, scale)

    def pair_dot(self, b: Value, x: Value, y: Value) -> Value:
        """<2 n x i16> times <2 n x i16>, added in pairs: <n x i32>."""
        n = self.lanes
        x, y = b.bitcast(x, vec(i32, n)), b.bitcast(y, vec(i32, n))
        by = splat(i32, n, 16)
        high = b.mul(b.ashr(x, by), b.ashr(y, by))
        return b.add(high, b.mul(b.ashr(b.shl(x, by), by), b.ashr(b.shl(y, by), by)))

    def s8_zero(self) -> Value:
        return splat(i32, self.lanes, 0)

    def s8_prepare(self, b: Value, w: Value) -> tuple[Value, ...]:
        """What ``s8_add`` wants of int8 weights: done once for all tokens."""
        return (w,)

    def s8_add(self, b: Value, acc: Value, w: tuple[Value, ...], a: Value) -> Value:
        return self._dot(b, acc, w[0], a, b.ashr)

    def s5_add(self, b: Value, acc: Value, w: tuple[Value, ...], a: Value) -> Value:
        """``s8_add`` of weights -15..15 to what ``u4_zero`` started."""
        return self.s8_add(b, acc, w, a)

    def look_up(self, b: Value, values: tuple[int, ...], codes: Value) -> Value:
        """The int8 values of 16 that codes 0..15 in every byte stand for."""
        n = self.width
        found = [splat(i8, n, value) for value in values]
        for bit in range(4):
            on = b.icmp_unsigned("!=", b.and_(codes, splat(i8, n, 1 << bit)), splat(i8, n, 0))
            found = [b.select(on, y, x) for x, y in zip(found[::2], found[1::2], strict=True)]
        return found[0]

    def _dot(self, b: Value, acc: Value, w: Value, a: Value, shift: Any) -> Value:
        n = self.lanes
        w, a = b.bitcast(w, vec(i32, n)), b.bitcast(a, vec(i32, n))
        down = splat(i32, n, 24)
        for left in (24, 16, 8, 0):
            x = shift(b.shl(w, splat(i32, n, left)), down)
            y = b.ashr(b.shl(a, splat(i32, n, left)), down)
            acc = b.add(acc, b.mul(x, y))
        return acc


class HardwareFloats(Generic):
    """Half floats that the hardware converts, and its multiply-add: every AVX2 and AArch64."""

    def fma(self, b: Value, x: Value, y: Value, z: Value) -> Value:
        return call(b, f"llvm.fma.v{x.type.count}f32", x.type, x, y, z)

    def half_to_float(self, b: Value, x: Value) -> Value:
        n = x.type.count
        return b.fpext(b.bitcast(x, vec(f16, n)), vec(f32, n))

    def round_to_half(self, b: Value, x: Value) -> Value:
        return b.fpext(b.fptrunc(x, f16), f32)


@lru_cache(maxsize=1)
def vectors() -> Generic:
    """The emitter of the instruction set in use."""
    from . import aarch64, x86  # which build on this file

    found: dict[str, type[Generic]] = {"generic": Generic, **x86.SETS, **aarch64.SETS}
    return found[isa()]()
