"""LLVM vector IR for AArch64, 128 bits: Advanced SIMD without and with ``sdot``.

Unsigned codes are at most 63, so all codes fit a signed byte. Activations are never -128.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from .vector import HardwareFloats, call, concat, i8, i16, i32, part_of, splat, vec

Value = Any


class _Arm(HardwareFloats):
    """The functions of both sets; there are 32 registers."""

    row_sums, float_sums = 8, 16

    def pair_dot(self, b: Value, x: Value, y: Value) -> Value:
        name, wide = "llvm.aarch64.neon.smull.v4i32", vec(i32, 4)
        products = (call(b, name, wide, part_of(b, x, n, 4), part_of(b, y, n, 4)) for n in (0, 4))
        return call(b, "llvm.aarch64.neon.addp.v4i32", wide, *products)

    def look_up(self, b: Value, values: tuple[int, ...], codes: Value) -> Value:
        table = ir.Constant(vec(i8, 16), list(values))
        return call(b, "llvm.aarch64.neon.tbl1.v16i8", table.type, table, codes)


class Asimd(_Arm):
    """Every AArch64. ``smlal`` adds a product in 16 bits, which do not overflow in 32 columns of
    codes 0..31, nor in 16 columns of codes 0..63: 8 slices * 31 * 127 = 31496."""

    u4_is_i16 = True

    def u4_zero(self) -> Value:
        return splat(i16, 16, 0)

    def u4_add(self, b: Value, acc: Value, w: Value, a: Value) -> Value:
        low, high = self._products(b, w, a)
        return b.add(acc, concat(b, [low, high]))

    def u4_total(self, b: Value, acc: Value) -> Value:
        halves = (self._pairs(b, part_of(b, acc, n, 8)) for n in (0, 8))
        return call(b, "llvm.aarch64.neon.addp.v4i32", vec(i32, 4), *halves)

    def scaled(self, b: Value, acc: Value, scale: Value) -> Value:
        return b.mul(self.u4_total(b, acc), scale)

    def s8_add(self, b: Value, acc: Value, w: tuple[Value, ...], a: Value) -> Value:
        products = self._products(b, w[0], a)  # two of them fit 16 bits: 2 * 128 * 127 = 32512
        both = call(b, "llvm.aarch64.neon.addp.v8i16", vec(i16, 8), *products)
        return b.add(acc, self._pairs(b, both))

    def s5_add(self, b: Value, acc: Value, w: tuple[Value, ...], a: Value) -> Value:
        return self.u4_add(b, acc, w[0], a)

    def _products(self, b: Value, w: Value, a: Value) -> tuple[Value, Value]:
        """The products of the first eight bytes and of the last eight, <8 x i16> each."""
        name, wide = "llvm.aarch64.neon.smull.v8i16", vec(i16, 8)
        low, high = (call(b, name, wide, part_of(b, w, n, 8), part_of(b, a, n, 8)) for n in (0, 8))
        return low, high

    def _pairs(self, b: Value, x: Value) -> Value:
        return call(b, "llvm.aarch64.neon.saddlp.v4i32.v8i16", vec(i32, 4), x)


class Neon(_Arm):
    """``sdot`` adds four products of signed bytes in 32 bits."""

    block_sums = 16

    def _dot(self, b: Value, acc: Value, w: Value, a: Value, shift: Any) -> Value:
        return call(b, "llvm.aarch64.neon.sdot.v4i32.v16i8", acc.type, acc, w, a)


SETS = {"asimd": Asimd, "neon": Neon}
