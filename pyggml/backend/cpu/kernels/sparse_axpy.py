"""AXPY: sums of active rows, each times its value, in the order of the rows.

A chunk is a stripe of columns of one token. Access: a stripe of each active row, once a token.
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
)  # fmt: skip
from ..lowering import Lowering, lowers
from ..simd.block import BLOCK, BLOCKS, decode_block
from ..simd.element import F32, take
from .sparse import supports_sparse
from .sparse_active import ROW0, active_rows, neuron_of

LIST, BUCKET, STRIPES, THRESHOLD = range(4)


@cache
def axpy_kernel(kind: int) -> Kernel:
    """The kernel of a weight type."""
    blocks = kind in BLOCKS
    columns, block_bytes = GGMLType(kind).block_size, GGMLType(kind).type_size

    def axpy(node, chunk, n_chunks, scratch):  # type: ignore[no-untyped-def]
        stripes, listed, threshold = (
            int_param(node, STRIPES), int_param(node, LIST), float_param(node, THRESHOLD),
        )  # fmt: skip
        bucket = data(node, SRC3) if int_param(node, BUCKET) != 0 else 0
        units = ne(node, DST, 0) // columns
        t, stripe = chunk // stripes, chunk % stripes
        first, end = first_row(units, stripe, stripes), first_row(units, stripe + 1, stripes)
        values = f32_ptr(data(node, SRC1) + t * nb(node, SRC1, 1))
        scores = f32_ptr(data(node, SRC2) + t * nb(node, SRC2, 1))
        total = f32_ptr(data(node, DST) + t * nb(node, DST, 1))
        rows = i32_ptr(listed + ROW0)
        count = ne(node, SRC0, 1) if listed == 0 else i64_ptr(listed)[0] + 0
        for i in range(first * columns, end * columns):
            total[i] = 0.0
        for p in range(count):
            row = p if listed == 0 else rows[p] + 0
            neuron = neuron_of(row, bucket)
            value = values[neuron] + 0
            if value == 0 or (data(node, SRC2) != 0 and not scores[neuron] >= threshold):
                continue
            x = data(node, SRC0) + row * nb(node, SRC0, 1)
            for i in range(first, end):
                if blocks:
                    decode_block(kind, x + i * block_bytes, scratch)
                    for j in range(BLOCK):
                        total[BLOCK * i + j] += value * take(F32, scratch, j)
                else:
                    total[i] += value * take(kind, x, i)

    made = kernel(axpy)
    made.name = f"axpy_{GGMLType(kind).name.lower()}"
    return made


@lowers("AXPY", supports_sparse)
def _lower_axpy(low: Lowering, node: Tensor) -> None:
    w = node.src[0]
    assert w is not None
    listed = active_rows(low, node)
    units = w.ne[0] // w.type.block_size
    stripes = max(1, min(units, 4 * low.n_threads))
    params = [
        listed.address if listed else 0, int(node.op_params["bucket"]), stripes,
        node.op_params["threshold"],
    ]  # fmt: skip
    low.launch(
        axpy_kernel(int(w.type)), node, params, stripes * node.ne[1],
        work=[listed] if listed else [], scratch=4 * BLOCK,
    )  # fmt: skip
