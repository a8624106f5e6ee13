"""Block formats: float32 to bytes and back, for arrays and for tensors.

    blocks = quantize(x, GGMLType.Q4_0)            # float32 [..., n] -> uint8 [..., row bytes]
    y = dequantize(blocks, GGMLType.Q4_0)
    x = to_float(tensor)                           # any tensor's values

NumPy only, bit for bit what ggml's reference functions give. These are for small jobs and tests;
backends have kernels. Supported are ``BLOCK_TYPES`` and F32, F16, BF16.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..dtype import GGMLType, numpy_dtype, row_size
from ..errors import QuantizeError, ShapeError, TypeMismatch
from ..tensor import Tensor
from .block import BLOCK_TYPES, BlockType
from .half import bf16_from_float, bf16_to_float, f16_from_float
from .q4_0 import Q4_0
from .q4_1 import Q4_1
from .q5_0 import Q5_0
from .q5_1 import Q5_1
from .q8_0 import Q8_0

__all__ = [
    "BLOCK_TYPES",
    "Q4_0",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "Q8_0",
    "BlockType",
    "dequantize",
    "from_float",
    "get_blocks",
    "quantize",
    "set_blocks",
    "to_float",
]

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


def quantize(x: npt.ArrayLike, type: GGMLType, imatrix: npt.ArrayLike | None = None) -> Bytes:
    """The bytes of ``x`` in the format ``type``.

    Args:
        x: float32 [..., n], where n is a multiple of the block size.

    Returns:
        uint8 [..., row_size(type, n)].

    Raises:
        QuantizeError: NaN, infinity or a too large number for a block format.
        ShapeError: rows that do not fill blocks.
        TypeMismatch: a format that we cannot quantize to.
    """
    x = np.ascontiguousarray(x, np.float32)
    n_bytes = row_size(type, x.shape[-1])
    if type == GGMLType.F32:
        out: npt.NDArray[Any] = x
    elif type == GGMLType.F16:
        out = f16_from_float(x)
    elif type == GGMLType.BF16:
        out = bf16_from_float(x)
    else:
        out = _quantize_blocks(x, _block_type(type))
    return out.view(np.uint8).reshape(*x.shape[:-1], n_bytes)


def dequantize(data: npt.ArrayLike, type: GGMLType) -> Floats:
    """The values of bytes in the format ``type``.

    Args:
        data: uint8 [..., row bytes], as from ``quantize`` (or flat).

    Returns:
        float32 [..., n].

    Raises:
        ShapeError: rows that are not whole blocks.
        TypeMismatch: a format that we do not know.
    """
    data = np.ascontiguousarray(data, np.uint8)
    if data.shape[-1] % type.type_size:
        raise ShapeError(
            f"a row of {data.shape[-1]} bytes is not a whole number of {type.name} blocks of "
            f"{type.type_size} bytes"
        )
    n = data.shape[-1] // type.type_size * type.block_size
    if type in (GGMLType.F32, GGMLType.F16):
        dtype = numpy_dtype(type)
        assert dtype is not None
        out: Floats = data.view(dtype).astype(np.float32)
    elif type == GGMLType.BF16:
        out = bf16_to_float(data.view(np.uint16))
    else:
        block_type = _block_type(type)
        with np.errstate(over="ignore", invalid="ignore"):  # blocks of garbage are garbage
            out = block_type.dequantize_blocks(data.reshape(-1).view(block_type.dtype))
    return out.reshape(*data.shape[:-1], n)


def to_float(tensor: Tensor) -> npt.NDArray[Any]:
    """A tensor's values: float32 for F16, BF16 and quantized types, else the type's own.

    Returns:
        An array of four dimensions, ``ne`` reversed; it shares memory only where nothing is
        converted.

    Raises:
        AllocError: the tensor has no data. TypeMismatch: a format that we do not know.
    """
    if tensor.type.is_quantized:
        return dequantize(get_blocks(tensor), tensor.type)
    dtype = numpy_dtype(tensor.type)
    if tensor.is_contiguous() and dtype is not None:
        values = tensor.bytes().view(dtype).reshape(tensor.ne[::-1])  # any buffer's layout
    else:
        values = tensor.numpy(squeeze=False)
    if tensor.type == GGMLType.BF16:
        return bf16_to_float(values)
    return values.astype(np.float32) if tensor.type == GGMLType.F16 else values


def from_float(tensor: Tensor, values: npt.NDArray[Any]) -> None:
    """Write ``values`` (four dimensions, ``ne`` reversed) into a tensor, converted to its type.

    Raises:
        ShapeError: other sizes. QuantizeError, TypeMismatch: as ``quantize``.
    """
    if values.shape != tensor.ne[::-1]:
        raise ShapeError(f"'{tensor.name}': values {values.shape}, want {tensor.ne[::-1]}")
    if tensor.type.is_quantized:
        set_blocks(tensor, quantize(values, tensor.type))
        return
    target = tensor.numpy(squeeze=False)
    if tensor.type == GGMLType.BF16:
        target[...] = bf16_from_float(values.astype(np.float32))
    else:
        with np.errstate(over="ignore"):
            target[...] = values


def _quantize_blocks(x: Floats, block_type: BlockType) -> npt.NDArray[Any]:
    type = block_type.type
    finite = np.isfinite(x)
    if not finite.all():
        at = np.argwhere(~finite)[0].tolist()
        raise QuantizeError(
            f"{x.size - int(finite.sum())} of {x.size} values are NaN or infinite, the first at "
            f"{at}: {type.name} has no such values; repair the source"
        )
    with np.errstate(over="ignore"):
        blocks = block_type.quantize_blocks(x.reshape(-1, type.block_size))
    for field in ("d", "m"):
        if field in (block_type.dtype.names or ()) and not np.isfinite(blocks[field]).all():
            raise QuantizeError(
                f"values up to {np.abs(x).max():.3g} are too large for {type.name}: the scale of a "
                "block does not fit float16; scale the source down"
            )
    return blocks


def _block_type(type: GGMLType) -> BlockType:
    if type not in BLOCK_TYPES:
        have = ", ".join(t.name for t in BLOCK_TYPES)
        raise TypeMismatch(
            f"no quantization to or from {type.name}; there are F32, F16, BF16, {have}"
        )
    return BLOCK_TYPES[type]


def get_blocks(tensor: Tensor) -> Bytes:
    """The bytes of a quantized tensor of any strides, uint8 [ne3, ne2, ne1, row bytes]."""
    shape = (*tensor.ne[:0:-1], row_size(tensor.type, tensor.ne[0]))
    if tensor.is_contiguous():
        return tensor.bytes().reshape(shape)
    return _strided_rows(tensor, shape)


def set_blocks(tensor: Tensor, rows: Bytes) -> None:
    """The inverse of ``get_blocks``."""
    if tensor.is_contiguous():
        tensor.set(rows.reshape(-1))
    else:
        _strided_rows(tensor, rows.shape)[...] = rows


def _strided_rows(tensor: Tensor, shape: tuple[int, ...]) -> Bytes:
    if tensor.buffer is None or tensor.buffer.mem is None:
        raise TypeMismatch(f"'{tensor.name}' {tensor.ne} has gaps and no host memory: cont() it")
    mem = tensor.buffer.mem
    offset = tensor.data - int(mem.ctypes.data)
    return np.ndarray(shape, np.uint8, mem, offset, (*tensor.nb[:0:-1], 1))
