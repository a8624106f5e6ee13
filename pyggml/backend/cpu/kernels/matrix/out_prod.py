"""OUT_PROD: a row of the result is a sum of rows of ``a``, weighted by a column of ``b``.

Access: the result's row stays in cache while the rows of ``a`` are read front to back; ``b`` may
have any strides. Quantized rows are decoded into scratch, again for each row of the result.
"""

from __future__ import annotations

from functools import cache

from .....compiler.jit import CpuKernel, kernel
from .....dtype import GGMLType
from .....ops.op import ALL_FLOATS
from .....tensor import Tensor
from ...abi import (
    DST,
    SRC0,
    SRC1,
    data,
    f32_ptr,
    first_row,
    load_f32,
    nb,
    ne,
    nrows,
    params_of,
    row_address,
)
from ...codec import DECODED
from ...codec.rows import Decoder, decode_columns
from ...compile.lowering import CpuLowering, lowers
from ...simd.element import F16, F32, load_elem, store_elem
from .weights import decoder_of, tile_kind


@cache
def out_prod_kernel(kind: int) -> CpuKernel:
    """The kernel of ``a``'s type, F32 for rows that are decoded."""

    def out_prod(node, chunk, n_chunks, scratch):
        m, p, n, total = ne(node, DST, 0), ne(node, DST, 1), ne(node, SRC0, 1), nrows(node, DST)
        n2, n3 = ne(node, DST, 2), ne(node, DST, 3)
        for r in range(first_row(total, chunk, n_chunks), first_row(total, chunk + 1, n_chunks)):
            rest = r // p
            i1, i2, i3 = r - rest * p, rest % n2, rest // n2
            x = data(node, SRC0) + i2 // (n2 // ne(node, SRC0, 2)) * nb(node, SRC0, 2)
            x += i3 // (n3 // ne(node, SRC0, 3)) * nb(node, SRC0, 3)
            weights = data(node, SRC1) + i1 * nb(node, SRC1, 0)
            weights += i2 * nb(node, SRC1, 2) + i3 * nb(node, SRC1, 3)
            y = row_address(node, DST, r)
            total_row = f32_ptr(y)
            for i in range(m):
                total_row[i] = 0.0
            for j in range(n):
                w = load_f32(weights + j * nb(node, SRC1, 1))
                row = x + j * nb(node, SRC0, 1)
                if kind == F32 and params_of(node, Decoder).decoder != 0:
                    decode_columns(params_of(node, Decoder).decoder, row, scratch, m, 0)
                    row = scratch
                for i in range(m):
                    store_elem(F32, y, i, total_row[i] + w * load_elem(kind, row, i))

    return kernel(out_prod, f"out_prod_{GGMLType(kind).name.lower()}")


def _supports(node: Tensor) -> bool:
    a = node.src[0]
    return int(a.type) in (F32, F16, *DECODED) and a.is_contiguous_rows()


@lowers("OUT_PROD", _supports)
def _lower_out_prod(lowering: CpuLowering, node: Tensor) -> None:
    a = node.src[0]
    chunks = lowering.mac_chunks(node, node.nelements * a.ne[1], 1 << 16)
    kernel = out_prod_kernel(tile_kind(a.type, ALL_FLOATS))
    params = Decoder(decoder_of(a.type, ALL_FLOATS))
    lowering.launch(kernel, node, params, chunks, scratch=4 * a.ne[0])
