"""ADD, SUB, MUL, DIV: element by element, the second source repeating over the first.

Access: rows front to back. Tuned for rows of equal length (bias, residual, gate); a second source
with shorter rows takes a scalar loop.
"""

from __future__ import annotations

from functools import cache

from ....dtype import GGMLType
from ....jit import Kernel, inline_strict, kernel
from ....tensor import Tensor
from ..abi import DST, SRC0, SRC1, first_row, int_param, ne, nrows, row_address
from ..lowering import GRAIN, Lowering, lowers
from ..simd.element import put, take
from .span import columns, repeated_row, split

ADD, SUB, MUL, DIV = range(4)
_OPS = {"ADD": ADD, "SUB": SUB, "MUL": MUL, "DIV": DIV}
_TYPES = (GGMLType.F32, GGMLType.F16)


@inline_strict
def combine(op, a, b):  # type: ignore[no-untyped-def]
    """``a op b``; ``op`` is a constant where this is inlined."""
    if op == ADD:
        return a + b
    if op == SUB:
        return a - b
    if op == MUL:
        return a * b
    return a / b


@cache
def binary_kernel(op: int, a: int, b: int) -> Kernel:
    """The kernel of an op for the sources' types; the result has the first one's."""

    def binary(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
        n, period, parts = ne(node, DST, 0), ne(node, SRC1, 0), int_param(node, 0)
        units = nrows(node, DST) * parts
        for u in range(first_row(units, chunk, n_chunks), first_row(units, chunk + 1, n_chunks)):
            row = u // parts
            begin, end = columns(n, u - row * parts, parts)
            x, y = row_address(node, SRC0, row), row_address(node, DST, row)
            z = repeated_row(node, DST, SRC1, row)
            if period == n:
                for i in range(begin, end):
                    put(a, y, i, combine(op, take(a, x, i), take(b, z, i)))
            else:
                j = begin % period
                for i in range(begin, end):
                    put(a, y, i, combine(op, take(a, x, i), take(b, z, j)))
                    j = j + 1 if j + 1 < period else 0

    made = kernel(binary)
    made.name = f"{[*_OPS][op].lower()}_{GGMLType(a).name.lower()}_{GGMLType(b).name.lower()}"
    return made


def _supports(node: Tensor) -> bool:
    tensors = [s for s in node.src if s is not None]
    return all(t.type in _TYPES and t.is_contiguous_rows() for t in tensors)


def _lower(low: Lowering, node: Tensor) -> None:
    assert node.op is not None and node.src[0] is not None and node.src[1] is not None
    parts, chunks = split(low, node, GRAIN)
    made = binary_kernel(_OPS[node.op.name], int(node.src[0].type), int(node.src[1].type))
    low.launch(made, node, (parts,), chunks)


for _op in _OPS:
    lowers(_op, _supports)(_lower)
