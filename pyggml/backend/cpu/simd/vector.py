"""LLVM vector IR that runs anywhere: loops, memory, half floats and integer dot products.

    @intrinsic_from_ir(literals=1)                           # jitted code calls scale(F16, x, n)
    def scale(b, kind, x, n): ...                  # b: llvmlite's IRBuilder; x, n: IR values
    acc = Generic().u4_add(b, acc, weights, activations)

Functions that emit IR are written once, for vectors of ``width`` bytes and ``parts`` vectors in a
line of 64 bytes. What differs between instruction sets is a method of ``Generic`` that ``x86`` and
``aarch64`` replace; ``isa.vectors`` gives the set in use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

from ....compiler.numba_internals import cgutils
from ....dtype import GGMLType

i8, i16, i32, i64 = (ir.IntType(n) for n in (8, 16, 32, 64))
f16, f32 = ir.HalfType(), ir.FloatType()
F32, F16, BF16 = int(GGMLType.F32), int(GGMLType.F16), int(GGMLType.BF16)
LINE = 64  # bytes: 4 weights of 16 rows
Value = Any


def vec(element: ir.Type, lanes: int) -> ir.VectorType:
    """A vector type."""
    return ir.VectorType(element, lanes)


def kept_in_order(b: Value, x: Value, before_loads: bool = False) -> Value:
    """``x`` as a value that LLVM cannot look into, so that a chain of sums stays a chain.

    It would make a tree of the chain, whose values do not fit the registers.

    Args:
        before_loads: what is loaded after this is loaded after ``x`` is computed, though it may
            have been loaded before: it is an operand in memory, where registers are few.
    """
    constraints = "=x,0,~{memory}" if before_loads else "=x,0"
    return b.asm(ir.FunctionType(x.type, [x.type]), "", constraints, [x], before_loads)


def splat(element: ir.Type, lanes: int, value: float) -> ir.Constant:
    """A constant vector of equal lanes."""
    return ir.Constant(vec(element, lanes), [value] * lanes)


def with_element(x: Value, element: ir.Type) -> ir.Type:
    """The type of ``x``, a scalar or a vector, with other elements."""
    return vec(element, x.type.count) if isinstance(x.type, ir.VectorType) else element


def like(x: Value, value: float) -> ir.Constant:
    """A constant of the type of ``x``, the same in every lane."""
    if isinstance(x.type, ir.VectorType):
        return splat(x.type.element, x.type.count, value)
    return ir.Constant(x.type, value)


def shifted(b: Value, x: Value, up: int) -> Value:
    """``x << up``, or ``x >> -up`` where ``up`` is negative."""
    if up == 0:
        return x
    return b.shl(x, like(x, up)) if up > 0 else b.lshr(x, like(x, -up))


def broadcast(b: Value, scalar: Value, lanes: int) -> Value:
    """A vector with a value in every lane."""
    undefined = ir.Constant(vec(scalar.type, lanes), ir.Undefined)
    first = b.insert_element(undefined, scalar, ir.Constant(i32, 0))
    return b.shuffle_vector(first, undefined, ir.Constant(vec(i32, lanes), [0] * lanes))


def concat(b: Value, parts: list[Value]) -> Value:
    """The lanes of some vectors of one type, a power of two of them."""
    while len(parts) > 1:
        lanes = range(2 * parts[0].type.count)
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [lanes_of(b, x, y, lanes) for x, y in pairs]
    return parts[0]


def pointer(b: Value, address: Value) -> Value:
    """An address as a pointer, so that LLVM folds constant offsets into loads and stores.

    For integers it would keep a counter for each offset of a loop, more than there are registers.
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


def const(n: int) -> ir.Constant:
    """A constant i64, the type of addresses, sizes and counters."""
    return ir.Constant(i64, n)


def times(b: Value, x: int | Value, y: int | Value) -> Value:
    """``x * y``, of i64; one may be a Python integer."""
    x, y = (y, x) if isinstance(x, int) else (x, y)
    return b.mul(x, const(y) if isinstance(y, int) else y)


def item_at(b: Value, start: Value, i: int | Value, n_bytes: int | Value) -> Value:
    """The address of item ``i`` of an array of items of ``n_bytes``."""
    return b.add(start, times(b, i, n_bytes))


def broadcast_f32(b: Value, address: Value, lanes: int) -> Value:
    """A float32 from memory in every lane."""
    return broadcast(b, load(b, address, f32), lanes)


def lanes_of(b: Value, x: Value, y: Value, lanes: Iterable[int]) -> Value:
    """The chosen lanes of two vectors of n lanes: 0 to n - 1 are of x, n to 2 n - 1 of y."""
    chosen = list(lanes)
    return b.shuffle_vector(x, y, ir.Constant(vec(i32, len(chosen)), chosen))


def part_of(b: Value, x: Value, first: int, n: int) -> Value:
    """``n`` lanes of a vector from ``first`` on."""
    return lanes_of(b, x, x, range(first, first + n))


def stack_memory(b: Value, n_bytes: int) -> Value:
    """The address of memory of the function that is being compiled, aligned to a line."""
    with b.goto_entry_block():
        memory = b.alloca(ir.ArrayType(i8, n_bytes))
        memory.align = LINE
    return b.ptrtoint(memory, i64)


def zeroed_stack(b: Value, n_bytes: int) -> Value:
    """``stack_memory`` that is zero when the function begins."""
    memory = cgutils.alloca_once(b, ir.ArrayType(i8, n_bytes))
    memory.align = LINE
    return b.ptrtoint(memory, i64)


def while_loop(b: Value, carried: list[Value], going: Any, body: Any) -> list[Value]:
    """``while going(carried): carried = body(carried)``, all in registers."""
    before = b.block
    head, inside, end = (b.append_basic_block(x) for x in ("head", "body", "end"))
    b.branch(head)
    b.position_at_end(head)
    phis = [b.phi(x.type) for x in carried]
    for phi, x in zip(phis, carried, strict=True):
        phi.add_incoming(x, before)
    b.cbranch(going(phis), inside, end)
    b.position_at_end(inside)
    for phi, x in zip(phis, body(phis), strict=True):
        phi.add_incoming(x, b.block)
    b.branch(head)
    b.position_at_end(end)
    return phis


def counted_loop(b: Value, n: Value, carried: list[Value], body: Any) -> list[Value]:
    """``for i in range(n)``: ``carried = body(i, carried)``, all in registers."""

    def step(carried: list[Value]) -> list[Value]:
        after = body(carried[0], carried[1:])
        return [b.add(carried[0], const(1)), *after]

    _, *last = while_loop(b, [const(0), *carried], lambda x: b.icmp_signed("<", x[0], n), step)
    return last


def when(b: Value, condition: Value, carried: list[Value], body: Any) -> list[Value]:
    """``if condition: carried = body(carried)``, all in registers."""
    before = b.block
    inside, end = (b.append_basic_block(x) for x in ("then", "end"))
    b.cbranch(condition, inside, end)
    b.position_at_end(inside)
    after, last = body(carried), b.block
    b.branch(end)
    b.position_at_end(end)
    phis = [b.phi(x.type) for x in carried]
    for phi, x, y in zip(phis, carried, after, strict=True):
        phi.add_incoming(x, before)
        phi.add_incoming(y, last)
    return phis


@contextmanager
def for_range(b: Value, n: Value) -> Iterator[Value]:
    """``for i in range(n)``: the code that is emitted inside of ``with`` is the loop's body."""
    before = b.block
    head, inside, end = (b.append_basic_block(x) for x in ("head", "body", "end"))
    b.branch(head)
    b.position_at_end(head)
    i = b.phi(i64)
    i.add_incoming(const(0), before)
    b.cbranch(b.icmp_signed("<", i, n), inside, end)
    b.position_at_end(inside)
    yield i
    i.add_incoming(b.add(i, const(1)), b.block)
    b.branch(head)
    b.position_at_end(end)


def pieces(b: Value, n: Value, sizes: tuple[int, ...]) -> Iterator[tuple[Value, int]]:
    """Loops over ``n`` float32 in pieces of some sizes, each over what the last one left.

    Yields:
        (offset in bytes, size) of a piece; the code emitted meanwhile is the body of the loop.
    """
    done = const(0)
    for size in sizes:
        count = b.sdiv(b.sub(n, done), const(size))
        with for_range(b, count) as i:
            yield b.shl(b.add(done, b.mul(i, const(size))), const(2)), size
        done = b.add(done, b.mul(count, const(size)))


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


def prefetch_lines(b: Value, address: Value, n: int | Value, hint: int = 2) -> None:
    """Prefetch ``n`` lines from an address on."""
    if isinstance(n, int):
        for line in range(n):
            prefetch(b, at(b, address, LINE * line), hint)
    else:
        with for_range(b, n) as line:
            prefetch(b, item_at(b, address, line, LINE), hint)


class Generic:
    """Plain IR that runs anywhere."""

    width = 16  # bytes of a vector
    u5_lines = 4  # lines of codes 0..31 that a sum of ``u4_add`` holds
    # How many vectors of sums fit registers: results of a tile, which are carried from block to
    # block; products within a block; products with float weights
    row_sums, block_sums, float_sums = 4, 8, 8
    u4_is_i16 = False  # whether sums of ``u4_add`` have 16 bits
    s8_offset = 0  # if not 0: added to signed weights, which then use ``u4_add``, not ``s8_add``
    float_table: Any = None  # a method where one instruction looks up floats
    has_tiles = False  # whether there are AMX's tile registers
    load_u4_start: Any = None  # a method where 16-bit sums start at -zero * sum(activations)

    @property
    def parts(self) -> int:
        return LINE // self.width

    @property
    def lanes(self) -> int:
        return self.width // 4

    def part_groups(self, n_tokens: int, n_parts: int, n_sums: int) -> list[range]:
        """The parts of a line that a tile multiplies at a time, so that it has ``n_sums`` sums."""
        size = max(1, n_sums // n_tokens)
        return [range(k, min(k + size, n_parts)) for k in range(0, n_parts, size)]

    def fma(self, b: Value, x: Value, y: Value, z: Value) -> Value:
        return b.fadd(b.fmul(x, y), z)

    def half_to_float(self, b: Value, x: Value) -> Value:
        """The floats of the bits of half floats, i16 or <n x i16>."""
        x = b.sext(x, with_element(x, i32))
        x = b.and_(b.shl(x, like(x, 13)), like(x, 0x8FFFE000))
        value = b.bitcast(x, with_element(x, f32))
        value = b.bitcast(b.fmul(value, like(value, 2.0**112)), x.type)  # subnormals too
        exponent = like(x, 0x0F800000)  # all set: infinity or NaN
        special = b.icmp_signed("==", b.and_(x, exponent), exponent)
        special = b.and_(b.sext(special, x.type), like(x, 0x7F800000))
        return b.bitcast(b.or_(value, special), with_element(x, f32))

    def float_to_half(self, b: Value, x: Value) -> Value:
        """The bits of the half float that is nearest to a float, ties to even: an i16."""
        u = b.bitcast(x, i32)
        magnitude = b.and_(u, like(u, 0x7FFFFFFF))
        odd = b.and_(b.lshr(magnitude, like(u, 13)), like(u, 1))
        rebias = like(u, ((15 - 127) << 23) + 0xFFF)
        normal = b.lshr(b.add(b.add(magnitude, rebias), odd), like(u, 13))
        # Adding 0.5 makes the float unit round at the half float's last subnormal bit.
        sum = b.fadd(b.bitcast(magnitude, f32), ir.Constant(f32, 0.5))
        small = b.sub(b.bitcast(sum, i32), like(u, 0x3F000000))
        nan = b.icmp_unsigned(">", magnitude, like(u, 0x7F800000))
        large = b.select(nan, like(u, 0x7E00), like(u, 0x7C00))
        value = b.select(b.icmp_unsigned("<", magnitude, like(u, 113 << 23)), small, normal)
        value = b.select(b.icmp_unsigned(">=", magnitude, like(u, 143 << 23)), large, value)
        sign = b.and_(b.lshr(u, like(u, 16)), like(u, 0x8000))
        return b.trunc(b.or_(value, sign), i16)

    def round_to_half(self, b: Value, x: Value) -> Value:
        """A float rounded to the nearest half float, ties to even, as a float."""
        return self.half_to_float(b, self.float_to_half(b, x))

    def broadcast_bytes(self, b: Value, address: Value) -> Value:
        """Four bytes from memory in every 32-bit lane."""
        word = broadcast(b, load(b, address, i32), self.lanes)
        return b.bitcast(word, vec(i8, self.width))

    def u4_zero(self) -> Value:
        """A new sum of products of codes 0..15 and int8, for at most 32 columns.

        With codes 0..31: for ``u5_lines`` lines of 8 columns.
        """
        return splat(i32, self.lanes, 0)

    def u4_add(self, b: Value, acc: Value, w: Value, a: Value) -> Value:
        return self._dot(b, acc, w, a, b.lshr)

    def u4_total(self, b: Value, acc: Value) -> Value:
        """The sum as <lanes x i32>."""
        return acc

    def sub_scale(self, b: Value, words: Value, signed: bool) -> Value:
        """The low byte of each word, as the argument of ``scaled``."""
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

    def pair_add(self, b: Value, acc: Value, x: Value, y: Value) -> Value:
        """``acc + pair_dot(x, y)``, below 2^31."""
        return b.add(acc, self.pair_dot(b, x, y))

    def s8_zero(self) -> Value:
        return splat(i32, self.lanes, 0)

    def s8_prepare(self, b: Value, w: Value) -> tuple[Value, ...]:
        """Int8 weights as arguments of ``s8_add``, computed once for all tokens."""
        return (w,)

    def s8_add(self, b: Value, acc: Value, w: tuple[Value, ...], a: Value) -> Value:
        return self._dot(b, acc, w[0], a, b.ashr)

    def s5_add(self, b: Value, acc: Value, w: tuple[Value, ...], a: Value) -> Value:
        """``s8_add`` of weights -15..15 to a sum of ``u4_zero``."""
        return self.s8_add(b, acc, w, a)

    def look_up(self, b: Value, values: tuple[int, ...], codes: Value) -> Value:
        """Look up codes 0..15, a byte each, in a table of 16 int8."""
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
    """Half floats and multiply-adds in hardware: every AVX2 and AArch64."""

    def fma(self, b: Value, x: Value, y: Value, z: Value) -> Value:
        return call(b, f"llvm.fma.v{x.type.count}f32", x.type, x, y, z)

    def half_to_float(self, b: Value, x: Value) -> Value:
        return b.fpext(b.bitcast(x, with_element(x, f16)), with_element(x, f32))

    def float_to_half(self, b: Value, x: Value) -> Value:
        return b.bitcast(b.fptrunc(x, f16), i16)
