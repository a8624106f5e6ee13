"""GET_ROWS and SET_ROWS: rows by index, converted on the way.

Access: one block a row, one thread an element (or a block of 32) at a time. An index after the last
row sets the queue's error; for SET_ROWS a negative index is legal and writes nothing.
"""

from functools import cache

from numba import cuda, int32, int64

from .....dtype import GGMLType
from .....tensor import Tensor
from ...codec import (
    FLOAT_TYPES,
    block_encoder,
    decodable,
    element_loader,
    element_storer,
    encodable,
)
from ...driver import Grid
from ...intrin import load_i32, load_i64, load_u32, store_i32, store_u32
from ...kernel import U8, GpuKernel, i32, i64, kernel
from ...lowering import GpuLowering, lowers
from ..span import indices_of

_WIDE = 256  # threads of a block: rows of models have hundreds of columns


@cache
def get_rows_kernel(type: GGMLType) -> GpuKernel:
    """The kernel of a source type; the result is F32, or I32 for I32."""
    integers = type is GGMLType.I32
    load = None if integers else element_loader(type)
    store = None if integers else element_storer(GGMLType.F32)

    @kernel(f"get_rows_{type.name.lower()}")
    def get_rows(
        x: U8, ids: U8, y: U8, n: i32, n_rows: i32, y1: i64, y2: i64, y3: i64, ne1: i32, ne2: i32,
        x1: i64, x2: i64, x3: i64, ids0: i64, ids1: i64, ids2: i64, error: U8, code: i32,
    ):  # fmt: skip
        r = int32(cuda.blockIdx.x)
        i1, i2, i3 = indices_of(r, ne1, ne2)
        row = load_i32(ids, i1 * ids0 + i2 * ids1 + i3 * ids2)
        if row < 0 or row >= n_rows:
            if cuda.threadIdx.x == 0:
                store_i32(error, 0, code)
            return
        at, to = row * x1 + i2 * x2 + i3 * x3, i1 * y1 + i2 * y2 + i3 * y3
        j = int32(cuda.threadIdx.x)
        while j < n:
            if integers:
                store_u32(y, to + int64(4) * j, load_u32(x, at + int64(4) * j))
            else:
                store(y, to, j, load(x, at, j))
            j = int32(j + cuda.blockDim.x)

    return get_rows


def _supports_get_rows(node: Tensor) -> bool:
    a = node.src[0]
    return a.is_contiguous_rows() and (a.type is GGMLType.I32 or decodable(a.type))


@lowers("GET_ROWS", _supports_get_rows)
def _lower_get_rows(lowering: GpuLowering, node: Tensor) -> None:
    a, ids = node.src[:2]
    call = get_rows_kernel(a.type)(
        x=a, ids=ids, y=node, n=node.ne[0], n_rows=a.ne[1], ne1=node.ne[1], ne2=node.ne[2],
        error=lowering.error, code=lowering.error_code(node),
    )  # fmt: skip
    lowering.launch(call, Grid(node.nrows), threads=_WIDE)


@cache
def set_rows_kernel(source: GGMLType, target: GGMLType, index_bytes: int) -> GpuKernel:
    """The kernel of a source and a target type, and of I32 or I64 indices."""
    encodes, block_bytes = target.is_quantized, target.type_size
    load = element_loader(source)
    encode = block_encoder(target, source) if encodes else load
    store = load if encodes else element_storer(target)
    wide, step = index_bytes == 8, source.type_size

    @kernel(f"set_rows_{source.name.lower()}_{target.name.lower()}_{index_bytes}")
    def set_rows(
        x: U8, ids: U8, y: U8, n: i32, n_rows: i64, x1: i64, x2: i64, x3: i64, ne1: i32, ne2: i32,
        y1: i64, y2: i64, y3: i64, ids0: i64, ids1: i64, ids2: i64, ids_ne1: i32, ids_ne2: i32,
        error: U8, code: i32,
    ):  # fmt: skip
        r = int32(cuda.blockIdx.x)
        i1, i2, i3 = indices_of(r, ne1, ne2)
        where = i1 * ids0 + (i2 % ids_ne1) * ids1 + (i3 % ids_ne2) * ids2
        row = load_i64(ids, where) if wide else int64(load_i32(ids, where))
        if row < 0:
            return
        if row >= n_rows:
            if cuda.threadIdx.x == 0:
                store_i32(error, 0, code)
            return
        at, to = i1 * x1 + i2 * x2 + i3 * x3, row * y1 + i2 * y2 + i3 * y3
        j = int32(cuda.threadIdx.x)
        while j < (n // 32 if encodes else n):
            if encodes:
                encode(x, at + int64(j) * (32 * step), step, y, to + int64(j) * block_bytes)
            else:
                store(y, to, j, load(x, at, j))
            j = int32(j + cuda.blockDim.x)

    return set_rows


def _supports_set_rows(node: Tensor) -> bool:
    b = node.src[0]
    return b.type in FLOAT_TYPES and (node.type in FLOAT_TYPES or encodable(node.type))


@lowers("SET_ROWS", _supports_set_rows)
def _lower_set_rows(lowering: GpuLowering, node: Tensor) -> None:
    b, idx = node.src[:2]
    call = set_rows_kernel(b.type, node.type, idx.type.type_size)(
        x=b, ids=idx, y=node, n=node.ne[0], n_rows=node.ne[1], ne1=b.ne[1], ne2=b.ne[2],
        error=lowering.error, code=lowering.error_code(node),
    )  # fmt: skip
    lowering.launch(call, Grid(b.nrows), threads=32 if node.type.is_quantized else _WIDE)
