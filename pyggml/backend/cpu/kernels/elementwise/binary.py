"""ADD, SUB, MUL, DIV, ADD1: element by element, the second source repeating over the first.

SILU_BACK and its like are functions of two sources too, of equal sizes.

Access: rows front to back. Tuned for rows of equal length (bias, residual, gate) and for one number
a row; a second source with shorter or strided rows takes a scalar loop.
"""

from __future__ import annotations

from functools import cache

from .....compiler.jit import CpuKernel, kernel
from .....dtype import GGMLType
from .....ops.elementwise.formulas import SMOOTH
from .....ops.op import ALL_FLOATS
from .....tensor import Tensor
from ...abi import DST, SRC0, SRC1, first_row, nb, ne, nrows, params_of, row_address
from ...compile.lowering import GRAIN, CpuLowering, lowers
from ...simd.element import load_elem, store_elem
from ..span import Parts, columns, repeated_row, split
from .elementwise import IDS, MATH_GRAIN, function


@cache
def binary_kernel(op: str, a: int, b: int, result: int) -> CpuKernel:
    """The kernel of an op for the types of the sources and of the result."""
    size, kind = GGMLType(b).type_size, IDS[op]

    def binary(node, chunk, n_chunks, scratch):
        n, period, parts = ne(node, DST, 0), ne(node, SRC1, 0), params_of(node, Parts).parts
        stride = nb(node, SRC1, 0)
        units = nrows(node, DST) * parts
        for u in range(first_row(units, chunk, n_chunks), first_row(units, chunk + 1, n_chunks)):
            row = u // parts
            begin, end = columns(n, u - row * parts, parts)
            x, y = row_address(node, SRC0, row), row_address(node, DST, row)
            z = repeated_row(node, DST, SRC1, row)
            if period == 1:
                v = load_elem(b, z, 0)
                for i in range(begin, end):
                    store_elem(result, y, i, function(kind, load_elem(a, x, i), v))
            elif period == n and stride == size:
                for i in range(begin, end):
                    store_elem(result, y, i, function(kind, load_elem(a, x, i), load_elem(b, z, i)))
            else:
                j = begin % period
                for i in range(begin, end):
                    v = load_elem(b, z + j * stride, 0)
                    store_elem(result, y, i, function(kind, load_elem(a, x, i), v))
                    j = j + 1 if j + 1 < period else 0

    names = "_".join(GGMLType(t).name.lower() for t in (a, b))
    return kernel(binary, f"{op}_{names}")


def _supports(node: Tensor) -> bool:
    a, b = node.src
    return a.type in ALL_FLOATS and b.type in ALL_FLOATS and a.is_contiguous_rows()


def _lower(lowering: CpuLowering, node: Tensor) -> None:
    name = node.op.name.lower().removesuffix("1")
    parts, chunks = split(lowering, node, MATH_GRAIN if name.endswith("_back") else GRAIN)
    types = (int(t.type) for t in (node.src[0], node.src[1], node))
    lowering.launch(binary_kernel(name, *types), node, Parts(parts), chunks)


for _op in ("ADD", "SUB", "MUL", "DIV", "ADD1", *(f"{kind.upper()}_BACK" for kind in SMOOTH)):
    lowers(_op, _supports)(_lower)
