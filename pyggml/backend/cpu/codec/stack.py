"""A little memory of a kernel's own, on the stack.

sums = f32_ptr(stack(64))                      # 64 bytes, a literal; not initialised
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ..abi import i8, i64


@intrinsic(prefer_literal=True)
def stack(typingctx: Any, n_bytes: Any) -> Any:
    """The address of ``n_bytes`` (a literal), aligned to 64, until the kernel returns."""
    if not isinstance(n_bytes, types.IntegerLiteral):
        return None
    memory = ir.ArrayType(i8, n_bytes.literal_value)

    def codegen(context: Any, b: Any, sig: Any, args: Any) -> Any:
        made = cgutils.alloca_once(b, memory)
        made.align = 64
        return b.ptrtoint(made, i64)

    return types.int64(n_bytes), codegen
