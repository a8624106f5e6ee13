"""What decoders of several formats share: codes that choose values, and signs beside magnitudes."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ....jit import inline_strict
from ..simd.element import F32, I8, put, take
from ..simd.vector import broadcast, f32, i8, i32, load, splat, store, vec


@inline_strict
def decode_nibbles(codes, values, d, y):  # type: ignore[no-untyped-def]
    """16 bytes that choose among 16 int8 ``values``, times ``d``: 32 float32 at ``y``."""
    for i in range(16):
        q = np.int64(take(I8, codes, i))
        put(F32, y, i, d * np.float32(take(I8, values, q & 15)))
        put(F32, y, 16 + i, d * np.float32(take(I8, values, q >> 4 & 15)))


@intrinsic(prefer_literal=True)
def put_signed(typingctx: Any, entry: Any, n: Any, signs: Any, d: Any, y: Any) -> Any:
    """``n`` (a literal) int8 times ``d`` at ``y``; negated where a bit of ``signs`` is set."""
    if not isinstance(n, types.IntegerLiteral):
        return None
    lanes = n.literal_value

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        entry, _, signs, d, y = args
        magnitudes = b.sitofp(load(b, entry, vec(i8, lanes)), vec(f32, lanes))
        values = b.fmul(magnitudes, broadcast(b, d, lanes))
        up = ir.Constant(vec(i32, lanes), [31 - j for j in range(lanes)])
        bits = b.shl(broadcast(b, b.trunc(signs, i32), lanes), up)
        bits = b.and_(bits, splat(i32, lanes, -(2**31)))
        signed = b.xor(b.bitcast(values, vec(i32, lanes)), bits)
        store(b, b.bitcast(signed, vec(f32, lanes)), y)
        return context.get_dummy_value()

    return types.void(types.int64, n, types.int64, types.float32, types.int64), codegen


@inline_strict
def with_eighth(seven):  # type: ignore[no-untyped-def]
    """Seven sign bits as eight: the last makes their number even."""
    odd = seven ^ seven >> 4
    odd ^= odd >> 2
    return seven | ((odd ^ odd >> 1) & 1) << 7
