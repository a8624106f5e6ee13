"""What the formats with codebooks share: blocks taken apart, which are then decoded or packed.

    split_iq2_xxs(block, parts)                    # in jitted code
    decode_iq2_xxs = decoder(IQ2_XXS, split_iq2_xxs)

The parts of a block are its scale (float16), from byte STEPS_AT on int8 steps, each for as many
columns as the format says, and from CODES_AT on a byte for each column: a level with a sign above.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ....dtype import GGMLType
from ....jit import inline_strict
from ....quants.grids import CODEBOOKS, entries
from ..abi import u8_ptr, u16_ptr
from ..simd.lanes import stack
from ..simd.super_decode import decode_parts
from ..simd.vector import at, broadcast, i8, i64, load, splat, store, vec
from ..superblock import CODES_AT, PARTS_BYTES, STEPS_AT


@inline_strict
def put_half(parts, block):  # type: ignore[no-untyped-def]
    """The scale that a block begins with."""
    u16_ptr(parts)[0] = u16_ptr(block)[0]


@inline_strict
def put_step(parts, i, bits):  # type: ignore[no-untyped-def]
    """The ``i``-th step; all formats have odd ones."""
    u8_ptr(parts + STEPS_AT)[i] = 2 * bits + 1


@intrinsic(prefer_literal=True)
def put_codes(typingctx: Any, kind: Any, entry: Any, signs: Any, parts: Any, i: Any) -> Any:
    """The levels of the ``i``-th entry of a block, with a sign where a bit of ``signs`` is set."""
    if not isinstance(kind, types.IntegerLiteral):
        return None
    type = GGMLType(kind.literal_value)

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        n, with_sign = entries(type).shape[1], len(CODEBOOKS[type].values) // 2
        _, entry, signs, parts, i = args
        bits = ir.Constant(vec(i8, n), [1 << j for j in range(n)])
        minus = b.and_(broadcast(b, b.trunc(signs, i8), n), bits)
        minus = b.icmp_unsigned("!=", minus, splat(i8, n, 0))
        sign = b.select(minus, splat(i8, n, with_sign), splat(i8, n, 0))
        place = b.add(at(b, parts, CODES_AT), b.mul(i, ir.Constant(i64, n)))
        store(b, b.or_(load(b, entry, vec(i8, n)), sign), place)
        return context.get_dummy_value()

    return types.void(kind, *[types.int64] * 4), codegen


@inline_strict
def with_eighth(seven):  # type: ignore[no-untyped-def]
    """Seven sign bits as eight: the last makes their number even."""
    odd = seven ^ seven >> 4
    odd ^= odd >> 2
    return seven | ((odd ^ odd >> 1) & 1) << 7


def decoder(kind: GGMLType, split: Any) -> Any:
    """``decode(block, y)`` of a format."""
    number = int(kind)

    @inline_strict
    def decode(block, y):  # type: ignore[no-untyped-def]
        parts = stack(PARTS_BYTES)
        split(block, parts)
        decode_parts(number, parts, y)

    return decode
