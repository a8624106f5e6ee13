"""Half-float activations as float32 in work memory, for weights of F16, BF16 and F32.

    widened(low, x)                                # in a lowering: made once for all readers

Access: rows front to back, written without gaps.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from ....dtype import GGMLType
from ....jit import Kernel, kernel
from ....tensor import Tensor
from ..abi import SRC0, first_row, ne, nrows, params_of, row_address
from ..lowering import Lowering
from ..simd.element import F32, put, take
from ..work import WorkRange


class Widen(NamedTuple):
    """The values of a kernel that widens activations."""

    out: int  # address of the result


@cache
def widen_kernel(kind: int) -> Kernel:
    """The kernel of a half-float type."""

    def widen(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
        n, total = ne(node, SRC0, 0), nrows(node, SRC0)
        for row in range(first_row(total, chunk, n_chunks), first_row(total, chunk + 1, n_chunks)):
            x, y = row_address(node, SRC0, row), params_of(node, Widen).out + 4 * n * row
            for i in range(n):
                put(F32, y, i, take(kind, x, i))

    made = kernel(widen)
    made.name = f"widen_{GGMLType(kind).name.lower()}"
    return made


def widened(low: Lowering, x: Tensor) -> WorkRange:
    """``x`` (F16 or BF16, rows without gaps) as float32 without gaps, made once."""
    key = ("widened", x)
    known = low.known(key, x)
    if known is not None:
        return known
    out, made = low.take(4 * x.nelements), widen_kernel(int(x.type))
    low.launch(made, x, Widen(out.address), low.row_chunks(x), src=(x,), writes=out)
    return low.remember(key, out)
