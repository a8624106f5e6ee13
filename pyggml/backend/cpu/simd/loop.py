"""What every intrinsic needs: literal arguments, and loops that carry registers.

(n,) = counted_loop(b, count, [start], lambda i, carried: [b.add(carried[0], i)])
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from .vector import i64

Value = Any


def literals_of(*values: Any) -> tuple[int, ...] | None:
    """The values of literal integers; None asks Numba to type the call with literals."""
    if all(isinstance(v, types.IntegerLiteral) for v in values):
        return tuple(v.literal_value for v in values)
    return None


def counted_loop(b: Value, n: Value, carried: list[Value], body: Any) -> list[Value]:
    """``for i in range(n)``: ``carried = body(i, carried)``, all in registers."""
    before = b.block
    head, inside, end = (b.append_basic_block(x) for x in ("head", "body", "end"))
    b.branch(head)
    b.position_at_end(head)
    i = b.phi(i64)
    i.add_incoming(ir.Constant(i64, 0), before)
    phis = []
    for start in carried:
        phi = b.phi(start.type)
        phi.add_incoming(start, before)
        phis.append(phi)
    b.cbranch(b.icmp_signed("<", i, n), inside, end)
    b.position_at_end(inside)
    after = body(i, phis)
    i.add_incoming(b.add(i, ir.Constant(i64, 1)), b.block)
    for phi, value in zip(phis, after, strict=True):
        phi.add_incoming(value, b.block)
    b.branch(head)
    b.position_at_end(end)
    return phis
