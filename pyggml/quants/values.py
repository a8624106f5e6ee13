"""A tensor's values, of any type, strides and memory, as an array; and the reverse.

    x = to_float(tensor)                           # float32 for F16, BF16 and quantized types
    from_float(tensor, x)

NumPy only: the reference backend and tests read and write tensors this way.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..dtype import GGMLType, numpy_dtype, row_size
from ..errors import ShapeError, TypeMismatch
from ..tensor import Tensor
from .block import Bytes
from .reference import bf16_from_float, bf16_to_float, reference_dequantize, reference_quantize


def to_float(tensor: Tensor) -> npt.NDArray[Any]:
    """A tensor's values: float32 for F16, BF16 and quantized types, else the type's own.

    Returns:
        An array of four dimensions, ``ne`` reversed; it shares memory only where nothing is
        converted.

    Raises:
        AllocError: the tensor has no data. TypeMismatch: a format that we do not know.
    """
    if tensor.type.is_quantized:
        return reference_dequantize(get_blocks(tensor), tensor.type)
    dtype = numpy_dtype(tensor.type)
    assert dtype is not None
    values = _view(tensor, tensor.ne[::-1], dtype, tensor.nb[::-1])
    if tensor.type == GGMLType.BF16:
        return bf16_to_float(values)
    return values.astype(np.float32) if tensor.type == GGMLType.F16 else values


def from_float(tensor: Tensor, values: npt.NDArray[Any]) -> None:
    """Write ``values`` (four dimensions, ``ne`` reversed) into a tensor, converted to its type.

    Raises:
        ShapeError: other sizes. QuantizeError, TypeMismatch: as ``reference_quantize``.
    """
    if values.shape != tensor.ne[::-1]:
        raise ShapeError(f"'{tensor.name}': values {values.shape}, want {tensor.ne[::-1]}")
    if tensor.type.is_quantized:
        set_blocks(tensor, reference_quantize(values, tensor.type))
        return
    target = tensor.numpy(squeeze=False)
    if tensor.type == GGMLType.BF16:
        target[...] = bf16_from_float(values.astype(np.float32))
    else:
        with np.errstate(over="ignore"):
            target[...] = values


def get_blocks(tensor: Tensor) -> Bytes:
    """The bytes of a quantized tensor of any strides, uint8 [ne3, ne2, ne1, row bytes]."""
    shape = (*tensor.ne[:0:-1], row_size(tensor.type, tensor.ne[0]))
    return _view(tensor, shape, np.uint8, (*tensor.nb[:0:-1], 1))


def set_blocks(tensor: Tensor, rows: Bytes) -> None:
    """The inverse of ``get_blocks``."""
    if tensor.is_contiguous():
        tensor.set(rows.reshape(-1))
        return
    if tensor.buffer is None or tensor.buffer.mem is None:
        raise TypeMismatch(f"'{tensor.name}' {tensor.ne} has gaps and no host memory: cont() it")
    get_blocks(tensor)[...] = rows


def _view(
    tensor: Tensor, shape: tuple[int, ...], dtype: npt.DTypeLike, strides: tuple[int, ...]
) -> npt.NDArray[Any]:
    """A tensor's bytes, those of its own memory on the host, else a copy, as an array."""
    if tensor.nelements == 0:
        return np.empty(shape, dtype)
    data = (tensor if tensor.is_contiguous() else tensor.span()).bytes()
    return np.ndarray(shape, dtype, np.ascontiguousarray(data).data, 0, strides)
