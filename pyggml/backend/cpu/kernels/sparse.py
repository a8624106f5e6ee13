"""MUL_MAT_SPARSE: MUL_MAT's dot products of the rows that any token needs; zeros elsewhere.

A chunk is a part of the list of active rows. Its rows are gathered 16 at a time, packed and pass
through MUL_MAT's tile, so active results have MUL_MAT's bits.
"""

from __future__ import annotations

from functools import cache

from ....dtype import GGMLType
from ....jit import Kernel, kernel
from ....tensor import Tensor
from ..abi import (
    DST,
    SRC0,
    SRC1,
    SRC2,
    SRC3,
    data,
    f32_ptr,
    first_row,
    float_param,
    i32_ptr,
    i64_ptr,
    int_param,
    nb,
    ne,
    nrows,
    row_address,
)  # fmt: skip
from ..buffer import is_repacked
from ..layout import INTERLEAVED, Q8_BLOCK, QUANTIZED, ROWS, block_bytes, group_bytes
from ..lowering import Launch, Lowering, byte_range, lowers
from ..simd.element import I8, put, take, zero_run
from ..simd.interleave import pack_group
from ..simd.tile import float_tile, q_tile
from .quantize import add_quantize
from .sparse_active import ROW0, active_rows, neuron_of

_TILE_BYTES = 4 * ROWS * 4
ACTIVATIONS, LIST, BUCKET, THRESHOLD = range(4)


@kernel
def zero_f32(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
    """Zeros: rows of the result, front to back."""
    total = nrows(node, DST)
    for r in range(first_row(total, chunk, n_chunks), first_row(total, chunk + 1, n_chunks)):
        zero_run(row_address(node, DST, r), ne(node, DST, 0))


@cache
def mul_mat_sparse_kernel(kind: int) -> Kernel:
    """The kernel of a weight type."""
    quantized = kind in QUANTIZED
    block = block_bytes(kind)
    columns = GGMLType(kind).block_size

    def mul_mat_sparse(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
        n, k, row_bytes = ne(node, DST, 1), ne(node, SRC0, 0), nb(node, SRC0, 1)
        listed, threshold = int_param(node, LIST), float_param(node, THRESHOLD)
        bucket = data(node, SRC3) if int_param(node, BUCKET) != 0 else 0
        used = k // columns * GGMLType(kind).type_size if False else k // columns * (block // ROWS)
        count, rows = i64_ptr(listed)[0] + 0, i32_ptr(listed + ROW0)
        first, end = first_row(count, chunk, n_chunks), first_row(count, chunk + 1, n_chunks)
        gathered = scratch + _TILE_BYTES
        packed = gathered + ROWS * used
        if quantized:
            stride = k // 32 * Q8_BLOCK
            x = int_param(node, ACTIVATIONS)
        else:
            stride, x = nb(node, SRC1, 1), data(node, SRC1)
        while first < end:
            m = min(ROWS, end - first)
            for i in range(m):
                source = data(node, SRC0) + (rows[first + i] + 0) * row_bytes
                for j in range(used):
                    put(I8, gathered + i * used, j, take(I8, source, j))
            pack_group(kind, gathered, used, m, k, packed)
            for t in range(n):
                if quantized:
                    q_tile(kind, 1, packed, x + t * stride, stride, scratch, k // columns, 0)
                else:
                    float_tile(kind, 1, packed, block, x + t * stride, stride, scratch, 64, k)
                y = f32_ptr(data(node, DST) + t * nb(node, DST, 1))
                scores = f32_ptr(data(node, SRC2) + t * nb(node, SRC2, 1))
                for i in range(m):
                    neuron = neuron_of(rows[first + i] + 0, bucket)
                    if scores[neuron] >= threshold:
                        y[neuron] = f32_ptr(scratch)[i]
            first += m

    made = kernel(mul_mat_sparse)
    made.name = f"mul_mat_sparse_{GGMLType(kind).name.lower()}"
    return made


def supports_sparse(node: Tensor) -> bool:
    """Plain rows of the formats that matmuls know."""
    a = node.src[0]
    assert a is not None
    return a.type in INTERLEAVED and not is_repacked(a)


@lowers("MUL_MAT_SPARSE", supports_sparse)
def _lower_mul_mat_sparse(low: Lowering, node: Tensor) -> None:
    w, x, *_ = node.src
    assert w is not None and x is not None
    act = [low.quantized(x, add_quantize)] if w.type in QUANTIZED else []
    for made in act:
        made.use(len(low.launches) + 2)
    listed = active_rows(low, node)
    assert listed is not None
    listed.use(len(low.launches) + 1)
    low.launches.append(
        Launch(zero_f32, node, [], low.row_chunks(node), node, (), [], [byte_range(node)])
    )
    params = [
        act[0].address if act else 0, listed.address, int(node.op_params["bucket"]),
        node.op_params["threshold"],
    ]  # fmt: skip
    low.launch(
        mul_mat_sparse_kernel(int(w.type)), node, params, 4 * low.n_threads, work=[*act, listed],
        scratch=_TILE_BYTES + 2 * group_bytes(w.type, w.ne[0]),
    )  # fmt: skip
