"""GLU: ``activation(gate) * up``, packed or split, with the quantization of the result.

Access: both rows front to back, split inside rows at multiples of 32 columns, so that several
threads share the activations of one token.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from .....compiler.jit import CpuKernel, kernel
from .....dtype import GGMLType
from .....ops.elementwise.formulas import LIMITED
from .....ops.elementwise.glu import ACTIVATIONS, limits
from .....tensor import Tensor
from ...abi import DST, SRC0, SRC1, data, first_row, ne, nrows, params_of, row_address
from ...compile.lowering import CpuLowering, lowers
from ...simd.element import F32, load_elem, store_elem
from ...weights.layout import Q8_BLOCK
from ..quantize import BLOCK, quantize_row
from ..span import columns, split
from .elementwise import IDS, function

GLU_GRAIN = 768  # elements
_TYPES = (GGMLType.F32, GGMLType.F16)


class Glu(NamedTuple):
    """The values of GLU."""

    parts: int  # of each row, see ``span``
    swapped: int  # whether packed rows have ``up`` first
    quantize: int  # address of the quantized rows, or 0
    alpha: float
    limit: float
    shift: float  # added to ``up``


@cache
def glu_kernel(kind: int, fmt: int) -> CpuKernel:
    """The kernel of an activation or ``LIMITED``; without SRC1 the rows are packed."""
    size, is_limited = GGMLType(fmt).type_size, kind == IDS[LIMITED]

    def glu(node, chunk, n_chunks, scratch):
        p = params_of(node, Glu)
        n, parts, out = ne(node, DST, 0), p.parts, p.quantize
        alpha, limit, shift = p.alpha, p.limit, p.shift
        units = nrows(node, DST) * parts
        for u in range(first_row(units, chunk, n_chunks), first_row(units, chunk + 1, n_chunks)):
            row = u // parts
            begin, end = columns(n, u - row * parts, parts)
            y = row_address(node, DST, row)
            gate = row_address(node, SRC0, row)
            if data(node, SRC1) != 0:
                up = row_address(node, SRC1, row)
            else:
                first, second = gate, gate + n * size
                swapped = p.swapped != 0
                gate, up = (second, first) if swapped else (first, second)
            if is_limited:
                for i in range(begin, end):
                    g, u = load_elem(fmt, gate, i), load_elem(fmt, up, i)
                    v = function(kind, g, u, alpha, limit, shift)
                    store_elem(fmt, y, i, v)
            else:
                for i in range(begin, end):
                    store_elem(
                        fmt, y, i, function(kind, load_elem(fmt, gate, i)) * load_elem(fmt, up, i)
                    )
            if fmt == F32 and out != 0:
                block = row * (n // BLOCK) + begin // BLOCK
                quantize_row(y + 4 * begin, out + block * Q8_BLOCK, end - begin)

    return kernel(glu, f"glu_{[*IDS][kind]}_{GGMLType(fmt).name.lower()}")


def _supports(node: Tensor) -> bool:
    return all(s is None or (s.type in _TYPES and s.is_contiguous_rows()) for s in node.src)


@lowers("GLU", _supports)
def _lower_glu(lowering: CpuLowering, node: Tensor) -> None:
    parts, chunks = split(lowering, node, GLU_GRAIN)
    p = node.op_params
    kind = IDS[ACTIVATIONS.get(p["kind"], LIMITED)]
    alpha, limit, shift = limits(p["kind"], p["alpha"], p["limit"])
    params = Glu(parts, p["swapped"], 0, alpha, limit, shift)
    src, kernel = (*node.src, None)[:2], glu_kernel(kind, int(node.type))
    lowering.launch(kernel, node, params, chunks, src=src, quantizes=node.type is GGMLType.F32)
