"""ARANGE and FILL: tensors from numbers."""

from functools import cache

from numba import cuda, float32, int64

from .....dtype import GGMLType
from .....tensor import Tensor
from ...codec import FLOAT_TYPES, element_storer
from ...intrin import mul_rounded
from ...kernel import U8, GpuKernel, f32, i64, kernel
from ...lowering import GpuLowering, blocks, lowers


@cache
def fill_kernel(type: GGMLType) -> GpuKernel:
    """Element i becomes ``start + step * i``, computed in float32 with two roundings."""
    store = element_storer(type)

    @kernel(f"fill_{type.name.lower()}")
    def fill(y: U8, n: i64, start: f32, step: f32):
        i = int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
        if i < n:
            store(y, int64(0), i, start + mul_rounded(step, float32(i)))

    return fill


def _supports(node: Tensor) -> bool:
    return node.type in FLOAT_TYPES and node.is_contiguous()


@lowers("ARANGE", _supports)
def _lower_arange(lowering: GpuLowering, node: Tensor) -> None:
    n, p = node.nelements, node.op_params
    lowering.launch(
        fill_kernel(node.type)(y=node, n=n, start=p["start"], step=p["step"]), blocks(n)
    )


@lowers("FILL", _supports)
def _lower_fill(lowering: GpuLowering, node: Tensor) -> None:
    n, c = node.nelements, node.op_params["c"]
    lowering.launch(fill_kernel(node.type)(y=node, n=n, start=c, step=0.0), blocks(n))
