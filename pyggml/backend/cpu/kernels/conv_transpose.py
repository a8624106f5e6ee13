"""CONV_TRANSPOSE_1D and CONV_TRANSPOSE_2D: a row of the result gathers what reaches it.

Access: a chunk is a range of result rows; one stays in cache while rows of the image are added to
it, ``stride`` elements apart. Every element of the result sums in the same order.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from ....dtype import GGMLType
from ....jit import Kernel, kernel
from ....tensor import Tensor
from ..abi import DST, SRC0, SRC1, data, f32_ptr, first_row, nb, ne, nrows, params_of, row_address
from ..lowering import Lowering, lowers
from ..simd.element import F32, put, take

_ZERO = np.float32(0)


class ConvTranspose(NamedTuple):
    """The values of a transposed convolution."""

    stride: int


@cache
def conv_transpose_kernel(kind: int, axes: int) -> Kernel:
    """The kernel of the convolution kernel's type for images of one or two axes."""

    def conv_transpose(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
        s, w, kw = params_of(node, ConvTranspose).stride, ne(node, SRC1, 0), ne(node, SRC0, 0)
        h, kh = (ne(node, SRC1, 1), ne(node, SRC0, 1)) if axes == 2 else (1, 1)
        channels, oc = ne(node, SRC0, axes + 1), ne(node, DST, axes)
        oh, total = ne(node, DST, 1) if axes == 2 else 1, nrows(node, DST)
        for r in range(first_row(total, chunk, n_chunks), first_row(total, chunk + 1, n_chunks)):
            rest = r // oh
            n = rest // oc
            c, oy = rest - n * oc, r - rest * oh
            out = row_address(node, DST, r)
            sums = f32_ptr(out)
            for i in range(ne(node, DST, 0)):
                put(F32, out, i, _ZERO)
            for ic in range(channels):
                weights = data(node, SRC0) + c * nb(node, SRC0, axes)
                weights += ic * nb(node, SRC0, axes + 1)
                plane = data(node, SRC1) + ic * nb(node, SRC1, axes) + n * nb(node, SRC1, 3)
                for ky in range(kh):
                    y = (oy - ky) // s
                    if y < 0 or y >= h or y * s != oy - ky:
                        continue
                    x = plane + y * nb(node, SRC1, 1) if axes == 2 else plane
                    row = weights + ky * nb(node, SRC0, 1) if axes == 2 else weights
                    for kx in range(kw):
                        weight = take(kind, row, kx)
                        for i in range(w):
                            j = i * s + kx
                            put(F32, out, j, sums[j] + weight * take(F32, x, i))

    made = kernel(conv_transpose)
    made.name = f"conv_transpose_{axes}d_{GGMLType(kind).name.lower()}"
    return made


@lowers("CONV_TRANSPOSE_1D")
@lowers("CONV_TRANSPOSE_2D")
def _lower_conv_transpose(low: Lowering, node: Tensor) -> None:
    a, b = node.src
    assert a is not None and b is not None and node.op is not None
    axes = 2 if node.op.name == "CONV_TRANSPOSE_2D" else 1
    chunks = low.mac_chunks(node, a.nelements * b.nelements)
    made = conv_transpose_kernel(int(a.type), axes)
    low.launch(made, node, ConvTranspose(node.op_params["s0"]), chunks)
