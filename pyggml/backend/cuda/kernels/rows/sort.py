"""ARGSORT and TOP_K: the order of a row's elements.

A key orders as the floats do, NaN above all; equal keys keep their order. A row is sorted in shared
memory (bitonic), so it has at most ``MOST`` elements.

Access: one block a row.
"""

from functools import cache

from numba import cuda, int32, int64, uint32, uint64

from .....dtype import GGMLType
from .....tensor import Tensor
from ...driver import Grid
from ...intrin import device, load_u32, store_i32, u32
from ...kernel import U8, GpuKernel, i32, i64, kernel
from ...lowering import GpuLowering, lowers
from ..span import row_at

MOST = 4096  # elements of a row: 32 KB of shared memory
_LAST = 0xFFFFFFFFFFFFFFFF


@device
def key_of(bits):
    """A float's bits as an unsigned number that orders as the floats do; -0 as 0, NaN by sign."""
    if u32(bits << uint32(1)) == uint32(0):
        bits = uint32(0)
    if u32(bits & uint32(0x7FFFFFFF)) > uint32(0x7F800000):
        return uint32(0xFFFFFFFF)
    if u32(bits >> uint32(31)) != uint32(0):
        return u32(~bits)
    return u32(bits | uint32(0x80000000))


@cache
def sort_kernel(size: int, descending: bool) -> GpuKernel:
    """The kernel of rows of at most ``size`` elements, a power of two; the first ``k`` are kept."""
    threads = min(256, max(32, size // 2))

    @kernel(f"argsort_{size}_{'desc' if descending else 'asc'}", threads=threads)
    def sort(x: U8, y: U8, n: i32, k: i32, ne1: i32, ne2: i32, x1: i64, x2: i64, x3: i64):
        keys = cuda.shared.array(size, uint64)
        row = int32(cuda.blockIdx.x)
        at = row_at(row, ne1, ne2, x1, x2, x3)
        i = int32(cuda.threadIdx.x)
        while i < size:
            value = uint64(_LAST)
            if i < n:
                key = key_of(load_u32(x, at + int64(4) * i))
                if descending:
                    key = u32(~key)
                value = (uint64(key) << uint64(32)) | uint64(i)
            keys[i] = value
            i = int32(i + cuda.blockDim.x)
        cuda.syncthreads()
        width = int32(2)
        while width <= size:
            step = int32(width >> 1)
            while step > 0:
                i = int32(cuda.threadIdx.x)
                while i < size:
                    j = int32(i ^ step)
                    if j > i:
                        a, b = keys[i], keys[j]
                        if (a > b) == ((i & width) == 0):
                            keys[i] = b
                            keys[j] = a
                    i = int32(i + cuda.blockDim.x)
                cuda.syncthreads()
                step = int32(step >> 1)
            width = int32(width << 1)
        i = int32(cuda.threadIdx.x)
        while i < k:
            place = int32(keys[i] & uint64(0xFFFFFFFF))
            store_i32(y, (int64(row) * k + i) * 4, place)
            i = int32(i + cuda.blockDim.x)

    return sort


def _supports(node: Tensor) -> bool:
    x = node.src[0]
    plain = x.type is GGMLType.F32 and x.is_contiguous_rows() and node.is_contiguous()
    return plain and x.ne[0] <= MOST


@lowers("ARGSORT", _supports)
@lowers("TOP_K", _supports)
def _lower_sort(lowering: GpuLowering, node: Tensor) -> None:
    x, descending = node.src[0], node.op_params.get("order") != "asc"
    size = max(2, 1 << (x.ne[0] - 1).bit_length())
    call = sort_kernel(size, descending)(
        x=x, y=node, n=x.ne[0], k=node.ne[0], ne1=x.ne[1], ne2=x.ne[2]
    )
    lowering.launch(call, Grid(node.nrows))
