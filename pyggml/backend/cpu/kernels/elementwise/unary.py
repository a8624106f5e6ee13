"""UNARY, SQR, SQRT, LOG, SIN, COS, LEAKY_RELU, CLAMP and SCALE: a function of every element.

There is a kernel for each function and type; the result is quantized on the way where a matmul
reads it. Access: rows front to back, split inside long rows.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from .....compiler.jit import CpuKernel, kernel
from .....dtype import GGMLType
from .....ops.elementwise.formulas import PARAMETERS
from .....ops.op import ALL_FLOATS
from .....tensor import Tensor
from ...abi import DST, SRC0, first_row, ne, nrows, params_of, row_address
from ...compile.lowering import GRAIN, CpuLowering, lowers
from ...simd.element import F32, load_elem, store_elem
from ...weights.layout import Q8_BLOCK
from ..quantize import BLOCK, quantize_row
from ..span import columns, split
from .elementwise import IDS, MATH_GRAIN, function


class Element(NamedTuple):
    """The values of a function of every element."""

    parts: int  # of each row, see ``span``
    quantize: int = 0  # address of the quantized rows, or 0
    a: float = 0.0  # parameters of the function
    b: float = 0.0
    c: float = 0.0
    d: float = 0.0


@cache
def element_kernel(name: str, fmt: int) -> CpuKernel:
    """The kernel of a function for a type."""
    kind = IDS[name]

    def element(node, chunk, n_chunks, scratch):
        p = params_of(node, Element)
        n, parts, out = ne(node, DST, 0), p.parts, p.quantize
        a, b, c, d = p.a, p.b, p.c, p.d
        units = nrows(node, DST) * parts
        for u in range(first_row(units, chunk, n_chunks), first_row(units, chunk + 1, n_chunks)):
            row = u // parts
            begin, end = columns(n, u - row * parts, parts)
            x, y = row_address(node, SRC0, row), row_address(node, DST, row)
            for i in range(begin, end):
                store_elem(fmt, y, i, function(kind, load_elem(fmt, x, i), a, b, c, d))
            if fmt == F32 and out != 0:
                block = row * (n // BLOCK) + begin // BLOCK
                quantize_row(y + 4 * begin, out + block * Q8_BLOCK, end - begin)

    return kernel(element, f"{name}_{GGMLType(fmt).name.lower()}")


def _supports(node: Tensor) -> bool:
    """Floats in rows without gaps."""
    x = node.src[0]
    return x is not None and x.type in ALL_FLOATS and x.is_contiguous_rows()


def _lower_element(lowering: CpuLowering, node: Tensor) -> None:
    p = node.op_params
    name = p["kind"] if node.op.name == "UNARY" else node.op.name.lower()
    cheap = name in ("leaky_relu", "clamp", "scale")
    parts, chunks = split(lowering, node, GRAIN if cheap else MATH_GRAIN)
    params = Element(parts, 0, *(float(p[key]) for key in PARAMETERS.get(name, ())))
    kernel = element_kernel(name, int(node.type))
    lowering.launch(kernel, node, params, chunks, quantizes=node.type is GGMLType.F32)


for _op in ("UNARY", "SQR", "SQRT", "LOG", "SIN", "COS", "LEAKY_RELU", "CLAMP", "SCALE"):
    lowers(_op, _supports)(_lower_element)
