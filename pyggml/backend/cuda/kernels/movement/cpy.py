"""CPY, CONT, DUP, REPEAT and CONCAT: copies that convert type and layout.

Access: one thread an element (or a block of 32) of the result, in the result's order, so writes are
coalesced and reads as far as the source's strides allow.
"""

from functools import cache

from numba import cuda, float32, int32, int64

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
from ...intrin import (
    device,
    load_i32,
    load_i64,
    load_u8,
    load_u16,
    load_u32,
    store_i32,
    store_i64,
    store_u8,
    store_u16,
    store_u32,
)
from ...kernel import U8, GpuKernel, i64, kernel
from ...lowering import GpuLowering, blocks, lowers

I32 = GGMLType.I32
_LOADS = {1: load_u8, 2: load_u16, 4: load_u32, 8: load_i64}
_STORES = {1: store_u8, 2: store_u16, 4: store_u32, 8: store_i64}


@device
def offset_of(i, ne0, ne1, ne2, nb0, nb1, nb2, nb3):
    """The byte offset of element ``i``, counted in order, of a tensor with these strides."""
    row = i // ne0
    i0 = i - row * ne0
    plane = row // ne1
    i1 = row - plane * ne1
    i3 = plane // ne2
    i2 = plane - i3 * ne2
    return i0 * nb0 + i1 * nb1 + i2 * nb2 + i3 * nb3


@device
def _load_integer(x, at, j):
    return float32(load_i32(x, at))


@device
def _store_integer(y, to, j, x):
    store_i32(y, to, int32(x))


@cache
def _move(source: GGMLType, target: GGMLType):
    """A device function: (x, byte offset, column from there, y, byte offset) copies an element."""
    if source is target:
        size = source.type_size
        load, store = _LOADS[size], _STORES[size]

        @device
        def move_bits(x, at, column, y, to):
            store(y, to, load(x, at))

        return move_bits
    load_number = _load_integer if source is I32 else element_loader(source)
    store_number = _store_integer if target is I32 else element_storer(target)

    @device
    def move_number(x, at, column, y, to):
        store_number(y, to, 0, load_number(x, at, column))

    return move_number


@cache
def copy_elements(source: GGMLType, target: GGMLType) -> GpuKernel:
    """The kernel of ``n`` elements in order, from and to any sizes and strides.

    Of blocks ``as0`` is 0: an element is a column of its row.
    """
    move, blocks = _move(source, target), source.is_quantized

    @kernel(f"cpy_{source.name.lower()}_{target.name.lower()}")
    def copy(
        x: U8, y: U8, n: i64, a0: i64, a1: i64, a2: i64, as0: i64, as1: i64, as2: i64, as3: i64,
        b0: i64, b1: i64, b2: i64, bs0: i64, bs1: i64, bs2: i64, bs3: i64,
    ):  # fmt: skip
        i = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        if i < n:
            at = offset_of(i, a0, a1, a2, as0, as1, as2, as3)
            column = int32(i % a0) if blocks else int32(0)
            move(x, at, column, y, offset_of(i, b0, b1, b2, bs0, bs1, bs2, bs3))

    return copy


@cache
def encode_blocks(source: GGMLType, target: GGMLType) -> GpuKernel:
    """The kernel of ``n`` blocks of 32 elements, which lie in a row of the source."""
    encode, n_bytes = block_encoder(target, source), target.type_size

    @kernel(f"cpy_{source.name.lower()}_{target.name.lower()}")
    def encode_all(
        x: U8, y: U8, n: i64, a0: i64, a1: i64, a2: i64, as0: i64, as1: i64, as2: i64, as3: i64,
        b0: i64, b1: i64, b2: i64, bs1: i64, bs2: i64, bs3: i64,
    ):  # fmt: skip
        i = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        if i < n:
            at = offset_of(i * 32, a0, a1, a2, as0, as1, as2, as3)
            to = offset_of(i, b0 // 32, b1, b2, n_bytes, bs1, bs2, bs3)
            encode(x, at, as0, y, to)

    return encode_all


def _supports(node: Tensor) -> bool:
    a = node.src[0]
    if node.type.is_quantized:
        return a.type in FLOAT_TYPES and encodable(node.type) and a.ne[0] % 32 == 0
    if a.type.is_quantized:
        return node.type in FLOAT_TYPES and decodable(a.type)
    if a.type is node.type:
        return a.type.type_size in _LOADS
    return a.type in (*FLOAT_TYPES, I32) and node.type in (*FLOAT_TYPES, I32)


def copy(lowering: GpuLowering, a: Tensor, b: Tensor, y: object = None, n: int = 0) -> None:
    """Launch a copy of all elements of ``a`` into ``b``, or into memory with its sizes."""
    sizes = {
        "x": a, "y": b if y is None else y, "n": n or a.nelements,
        "a0": a.ne[0], "a1": a.ne[1], "a2": a.ne[2], "b0": b.ne[0], "b1": b.ne[1], "b2": b.ne[2],
        "as0": 0 if a.type.is_quantized else a.nb[0], "as1": a.nb[1], "as2": a.nb[2],
        "as3": a.nb[3], "bs1": b.nb[1], "bs2": b.nb[2], "bs3": b.nb[3],
    }  # fmt: skip
    if b.type.is_quantized:
        sizes["n"] //= 32
        call = encode_blocks(a.type, b.type)(**sizes)
    else:
        call = copy_elements(a.type, b.type)(**sizes, bs0=b.nb[0])
    lowering.launch(call, blocks(sizes["n"]))


@lowers("CPY", _supports)
@lowers("CONT", _supports)
@lowers("DUP", _supports)
def _lower_copy(lowering: GpuLowering, node: Tensor) -> None:
    copy(lowering, node.src[0], node)


@cache
def repeat_kernel(size: int) -> GpuKernel:
    """The kernel of elements of ``size`` bytes; the result has no gaps."""
    load, store = _LOADS[size], _STORES[size]

    @kernel(f"repeat_{size}")
    def repeat(
        x: U8, y: U8, n: i64, y_ne0: i64, y_ne1: i64, y_ne2: i64, x_ne0: i64, x_ne1: i64,
        x_ne2: i64, x_ne3: i64, x0: i64, x1: i64, x2: i64, x3: i64,
    ):  # fmt: skip
        i = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        if i < n:
            row = i // y_ne0
            plane = row // y_ne1
            i3 = plane // y_ne2
            at = (i - row * y_ne0) % x_ne0 * x0 + (row - plane * y_ne1) % x_ne1 * x1
            at += (plane - i3 * y_ne2) % x_ne2 * x2 + i3 % x_ne3 * x3
            store(y, i * size, load(x, at))

    return repeat


def _same_size(node: Tensor) -> bool:
    a = node.src[0]
    return not a.type.is_quantized and a.type.type_size in _LOADS and node.is_contiguous()


@lowers("REPEAT", _same_size)
def _lower_repeat(lowering: GpuLowering, node: Tensor) -> None:
    a = node.src[0]
    call = repeat_kernel(a.type.type_size)(x=a, y=node, n=node.nelements)
    lowering.launch(call, blocks(node.nelements))


@lowers("CONCAT", _same_size)
def _lower_concat(lowering: GpuLowering, node: Tensor) -> None:
    dim, start = node.op_params["dim"], node.data
    for part in node.src[:2]:
        if part.nelements:
            window = Tensor(node.type, part.ne, node.nb)
            copy(lowering, part, window, start)
        start += part.ne[dim] * node.nb[dim]
