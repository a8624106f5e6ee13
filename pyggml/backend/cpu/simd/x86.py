"""LLVM vector IR for x86: SSE4.2, AVX2, AVX-VNNI and AVX-512 VNNI, each on top of the one before.

Integer products are ``pmaddubsw``'s up to AVX2 and ``vpdpbusd``'s from then on.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from .vector import (
    Generic,
    HardwareFloats,
    broadcast,
    call,
    f32,
    i8,
    i16,
    i32,
    i64,
    kept_in_order,
    lanes_of,
    load,
    splat,
    vec,
)

Value = Any


class Sse42(Generic):
    """128 bits. ``pmaddubsw`` adds pairs in 16 bits, which 32 columns of codes 0..15 never fill:
    8 slices * 2 * 15 * 127 = 30480. With codes 0..31 it is 16 columns; for Q6_K see
    ``load_u4_start``."""

    u5_lines = 2
    u4_is_i16 = True
    _maddubs = "llvm.x86.ssse3.pmadd.ub.sw.128"
    _madd = "llvm.x86.sse2.pmadd.wd"
    _sign = "llvm.x86.ssse3.psign.b.128"
    _shuffle = "llvm.x86.ssse3.pshuf.b.128"

    def _pairs(self, b: Value, x: Value) -> Value:
        return self.pair_dot(b, x, splat(i16, 2 * self.lanes, 1))

    def u4_zero(self) -> Value:
        return splat(i16, 2 * self.lanes, 0)

    def u4_add(self, b: Value, acc: Value, w: Value, a: Value) -> Value:
        products = call(b, self._maddubs, acc.type, w, a)
        return kept_in_order(b, b.add(acc, products))

    def u4_total(self, b: Value, acc: Value) -> Value:
        return self._pairs(b, acc)

    def load_u4_start(self, b: Value, address: Value, divisor: int) -> Value:
        """The initial value of a sum of ``u4_add``: two i16 from memory, each for two columns.

        They are multiples of ``divisor``, a power of two, and are divided by it.
        """
        n = self.lanes
        both = b.bitcast(broadcast(b, load(b, address, i32), n), vec(i16, 2 * n))
        return b.ashr(both, splat(i16, 2 * n, divisor.bit_length() - 1))

    def sub_scale(self, b: Value, words: Value, signed: bool) -> Value:
        """Two equal i16 in each word."""
        high = int(signed)  # a signed scale goes to the high byte and is shifted down with its sign
        lanes = [[self.width] * 4 for _ in range(self.lanes)]
        for word, bytes_of in enumerate(lanes):
            for half in (0, 2):
                bytes_of[half + high] = 4 * word
        mask = ir.Constant(vec(i32, self.width), [byte for word in lanes for byte in word])
        x = b.bitcast(words, vec(i8, self.width))
        x = b.shuffle_vector(x, splat(i8, self.width, 0), mask)
        pairs = b.bitcast(x, vec(i16, 2 * self.lanes))
        return b.ashr(pairs, splat(i16, 2 * self.lanes, 8)) if signed else pairs

    def scaled(self, b: Value, acc: Value, scale: Value) -> Value:
        return self.pair_dot(b, acc, scale)

    def pair_dot(self, b: Value, x: Value, y: Value) -> Value:
        return call(b, self._madd, vec(i32, self.lanes), x, y)

    def s8_prepare(self, b: Value, w: Value) -> tuple[Value, ...]:
        name = f"llvm.abs.v{self.width}i8"
        return (call(b, name, w.type, w, ir.Constant(ir.IntType(1), 0)), w)

    def s8_add(self, b: Value, acc: Value, w: tuple[Value, ...], a: Value) -> Value:
        pairs = vec(i16, 2 * self.lanes)
        products = call(b, self._maddubs, pairs, w[0], self._with_signs(b, a, w[1]))
        return b.add(acc, self._pairs(b, products))

    def s5_add(self, b: Value, acc: Value, w: tuple[Value, ...], a: Value) -> Value:
        return self.u4_add(b, acc, w[0], self._with_signs(b, a, w[1]))

    def _with_signs(self, b: Value, a: Value, signs: Value) -> Value:
        """The activations times the signs of the weights; the magnitudes are in ``s8_prepare``."""
        return call(b, self._sign, a.type, a, signs)

    def flipped(self, b: Value, w: Value) -> tuple[Value, Value]:
        """The magnitudes of int8 weights, and -1 where they are negative, for ``flipped_add``."""
        magnitude, _ = self.s8_prepare(b, w)
        return magnitude, b.ashr(w, splat(i8, self.width, 7))

    def flipped_add(self, b: Value, acc: Value, magnitude: Value, flip: Value, a: Value) -> Value:
        """``s8_add``, less the magnitudes of negative weights."""
        pairs = vec(i16, 2 * self.lanes)
        products = call(b, self._maddubs, pairs, magnitude, b.xor(a, flip))
        return kept_in_order(b, b.add(acc, self._pairs(b, products)), before_loads=True)

    def look_up(self, b: Value, values: tuple[int, ...], codes: Value) -> Value:
        table = ir.Constant(vec(i8, self.width), list(values) * (self.width // 16))
        return call(b, self._shuffle, table.type, table, codes)


class Avx2(HardwareFloats, Sse42):
    """256 bits, and multiply-adds rounded once."""

    width, float_sums = 32, 12
    _maddubs = "llvm.x86.avx2.pmadd.ub.sw"
    _madd = "llvm.x86.avx2.pmadd.wd"
    _sign = "llvm.x86.avx2.psign.b"
    _shuffle = "llvm.x86.avx2.pshuf.b"


class AvxVnni(Avx2):
    """256 bits. ``vpdpbusd`` adds four products in 32 bits without saturation."""

    u5_lines = 4
    u4_is_i16, s8_offset = False, 128

    def u4_add(self, b: Value, acc: Value, w: Value, a: Value) -> Value:
        words = vec(i32, self.lanes)
        name = f"llvm.x86.avx512.vpdpbusd.{8 * self.width}"  # 256 bits do not need AVX-512
        return call(b, name, words, acc, *(b.bitcast(x, words) for x in (w, a)))

    def pair_add(self, b: Value, acc: Value, x: Value, y: Value) -> Value:
        """The sum saturates: LLVM splits the instruction that does not into two."""
        words = acc.type
        name = f"llvm.x86.avx512.vpdpwssds.{8 * self.width}"
        return call(b, name, words, acc, *(b.bitcast(v, words) for v in (x, y)))

    u4_zero, u4_total, load_u4_start = Generic.u4_zero, Generic.u4_total, None
    sub_scale, scaled = Generic.sub_scale, Generic.scaled


class Avx512Vnni(AvxVnni):
    """512 bits."""

    width, row_sums = 64, 8
    _madd = "llvm.x86.avx512.pmaddw.d.512"
    _shuffle = "llvm.x86.avx512.pshuf.b.512"

    def float_table(self, b: Value, table: Value, index: Value) -> Value:
        """The floats of a table of 16 that the low 4 bits of each word choose."""
        return call(b, "llvm.x86.avx512.permvar.sf.512", table.type, table, index)


class Avx512Amx(Avx512Vnni):
    """512 bits, and tiles: eight registers of up to 16 rows of 64 bytes.

    A tile's number is an immediate, so LLVM neither allocates nor spills tiles. Their instructions
    keep their order among each other and among loads and stores.
    """

    has_tiles = True

    def half_to_float(self, b: Value, x: Value) -> Value:
        """Sixteen without the conversion of AVX512-FP16, which LLVM would take: it is slower."""
        if x.type != vec(i16, 16):
            return super().half_to_float(b, x)
        floats, mask = vec(f32, 16), ir.Constant(i16, -1)
        name, rounding = "llvm.x86.avx512.mask.vcvtph2ps.512", ir.Constant(i32, 4)
        return call(b, name, floats, x, splat(f32, 16, 0.0), mask, rounding)

    def configure_tiles(self, b: Value, config: bytes) -> None:
        """Give tiles the shapes of 64 bytes, see ``amx.configuration``; they become zero."""
        line = ir.Constant(vec(i8, len(config)), list(config))
        with b.goto_entry_block():
            room = b.alloca(line.type)
        b.store(line, room)
        self._tile(b, "ldtilecfg", room)

    def release_tiles(self, b: Value) -> None:
        """Release the tiles' shapes: an idle thread should have none."""
        self._tile(b, "tilerelease")

    def zero_tile(self, b: Value, tile: int) -> None:
        self._tile(b, "tilezero", tile)

    def load_tile(self, b: Value, tile: int, address: Value, stride: Value) -> None:
        """Rows from memory, ``stride`` bytes apart."""
        self._tile(b, "tileloadd64", tile, address, stride)

    def store_tile(self, b: Value, tile: int, address: Value, stride: Value) -> None:
        self._tile(b, "tilestored64", tile, address, stride)

    def multiply_tiles(self, b: Value, sums: int, x: int, y: int) -> None:
        """Tiles of int8: ``sums[m][n] += sum over k of x[m][4k..4k+3] . y[k][4n..4n+3]``, int32."""
        self._tile(b, "tdpbssd", sums, x, y)

    def multiply_float_tiles(self, b: Value, sums: int, x: int, y: int) -> None:
        """Tiles of bfloat16: ``sums[m][n] += sum over k of x[m][2k..2k+1] . y[k][2n..2n+1]``.

        The sums are float32: first those of all even and of all odd elements, each in order and
        rounded once for each element, then the two of them, then ``sums``. Denormals are zero.
        """
        self._tile(b, "tdpbf16ps", sums, x, y)

    def low_halves(self, b: Value) -> Value:
        """A mask of the bytes in the low halves of words, for ``high_halves``.

        LLVM does not know its value: of a known one it would make shuffles of three instructions.
        """
        pattern = ir.Constant(i64, 0x3333333333333333)
        with b.goto_entry_block():
            mask = b.asm(ir.FunctionType(i64, [i64]), "", "=r,0", [pattern], False)
            return b.bitcast(mask, vec(ir.IntType(1), 64))

    def high_halves(self, b: Value, x: Value, y: Value, low: Value) -> Value:
        """Words of the high halves of two vectors of words, those of x in the low halves.

        It is one instruction: a shift of bytes where the mask ``low`` is set.
        """
        x8, y8 = (b.bitcast(v, vec(i8, 64)) for v in (x, y))
        moved = lanes_of(b, x8, x8, (i // 16 * 16 + (i + 2) % 16 for i in range(64)))
        return b.bitcast(b.select(low, moved, y8), y.type)

    def add_half_products(self, b: Value, total: Value, x: Value, y: Value) -> Value:
        """``total + x * y`` of F16; postponed by LLVM, it would keep x and y in registers."""
        total = call(b, f"llvm.fma.v{x.type.count}f16", x.type, x, y, total)
        return b.asm(ir.FunctionType(x.type, [x.type]), "", "=v,0", [total], True)

    def _tile(self, b: Value, name: str, *args: Value | int) -> None:
        values = [ir.Constant(i8, a) if isinstance(a, int) else a for a in args]
        call(b, f"llvm.x86.{name}", ir.VoidType(), *values)


SETS = {
    "sse42": Sse42,
    "avx2": Avx2,
    "avxvnni": AvxVnni,
    "avx512vnni": Avx512Vnni,
    "avx512amx": Avx512Amx,
}
