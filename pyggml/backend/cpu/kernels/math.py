"""SQR, SQRT, LOG, SIN, COS, LEAKY_RELU and CLAMP: one function for every element.

Access: rows front to back, split inside long rows; all vectorise.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from ....dtype import GGMLType
from ....jit import Kernel, kernel
from ....tensor import Tensor
from ..abi import DST, SRC0, first_row, float_param, int_param, ne, nrows, row_address
from ..lowering import GRAIN, Lowering, lowers
from ..simd.element import put, take
from .span import columns, split
from .unary import GRAIN as FUNCTION_GRAIN
from .unary import IDS, unary_kernel

_FUNCTIONS = ("SQR", "SQRT", "LOG", "SIN", "COS")
_TYPES = (GGMLType.F32, GGMLType.F16, GGMLType.BF16)
ZERO = np.float32(0)


@cache
def leaky_relu_kernel(fmt: int) -> Kernel:
    """The kernel for a type. Parameters: parts of a row, negative slope."""

    def leaky_relu(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
        n, parts, slope = ne(node, DST, 0), int_param(node, 0), float_param(node, 1)
        units = nrows(node, DST) * parts
        for u in range(first_row(units, chunk, n_chunks), first_row(units, chunk + 1, n_chunks)):
            row = u // parts
            begin, end = columns(n, u - row * parts, parts)
            x, y = row_address(node, SRC0, row), row_address(node, DST, row)
            for i in range(begin, end):
                v = take(fmt, x, i)
                put(fmt, y, i, v if v > ZERO else slope * v)

    made = kernel(leaky_relu)
    made.name = f"leaky_relu_{GGMLType(fmt).name.lower()}"
    return made


@cache
def clamp_kernel(fmt: int) -> Kernel:
    """The kernel for a type. Parameters: parts of a row, min, max."""

    def clamp(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
        n, parts = ne(node, DST, 0), int_param(node, 0)
        low, high = float_param(node, 1), float_param(node, 2)
        units = nrows(node, DST) * parts
        for u in range(first_row(units, chunk, n_chunks), first_row(units, chunk + 1, n_chunks)):
            row = u // parts
            begin, end = columns(n, u - row * parts, parts)
            x, y = row_address(node, SRC0, row), row_address(node, DST, row)
            for i in range(begin, end):
                v = take(fmt, x, i)
                v = high if v > high else v  # NaN stays
                put(fmt, y, i, low if v < low else v)

    made = kernel(clamp)
    made.name = f"clamp_{GGMLType(fmt).name.lower()}"
    return made


def _supports(node: Tensor) -> bool:
    x = node.src[0]
    return x is not None and x.type in _TYPES and x.is_contiguous_rows()


def _lower_function(low: Lowering, node: Tensor) -> None:
    assert node.op is not None
    parts, chunks = split(low, node, FUNCTION_GRAIN)
    made = unary_kernel(IDS[node.op.name.lower()], int(node.type))
    low.launch(made, node, (parts, 0), chunks)


for _op in _FUNCTIONS:
    lowers(_op, _supports)(_lower_function)


@lowers("LEAKY_RELU", _supports)
def _lower_leaky_relu(low: Lowering, node: Tensor) -> None:
    parts, chunks = split(low, node, GRAIN)
    slope = float(node.op_params["negative_slope"])
    low.launch(leaky_relu_kernel(int(node.type)), node, (parts, slope), chunks)


@lowers("CLAMP", _supports)
def _lower_clamp(low: Lowering, node: Tensor) -> None:
    parts, chunks = split(low, node, GRAIN)
    limits = float(node.op_params["min"]), float(node.op_params["max"])
    low.launch(clamp_kernel(int(node.type)), node, (parts, *limits), chunks)
