"""The values of a tensor in any kind of memory.

    values = to_numpy(tensor)                      # a copy, wherever the tensor lives

Synchronize backends that queue their work first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..backend.interface import flat
from ..dtype import GGMLType, numpy_dtype, row_size
from ..quants import dequantize
from ..quants.reference import bf16_to_float
from ..tensor import Tensor

_FLOATS = (GGMLType.F16, GGMLType.BF16)


def to_numpy(tensor: Tensor) -> npt.NDArray[Any]:
    """A copy of the values: float32 for F16, BF16 and quantized types, else of the tensor's type.

    Returns:
        An array of four dimensions, ``ne`` reversed.

    Raises:
        AllocError: the tensor has no data. TypeMismatch: an unknown format.
    """
    if tensor.type.is_quantized:
        return dequantize(_rows(tensor), tensor.type).reshape(tensor.ne[::-1])
    dtype = numpy_dtype(tensor.type)
    assert dtype is not None
    if tensor.nelements == 0:
        return np.empty(tensor.ne[::-1], np.float32 if tensor.type in _FLOATS else dtype)
    data = (tensor if tensor.is_contiguous() else flat(tensor)).bytes()
    strides = tensor.nb[::-1]
    values = np.ndarray(tensor.ne[::-1], dtype, np.ascontiguousarray(data).data, 0, strides)
    if tensor.type == GGMLType.BF16:
        return bf16_to_float(values)
    return values.astype(np.float32) if tensor.type == GGMLType.F16 else values.copy()


def _rows(tensor: Tensor) -> npt.NDArray[np.uint8]:
    """The bytes of all rows in order, without the gaps between them."""
    if tensor.is_contiguous():
        return tensor.bytes()
    shape = (*tensor.ne[:0:-1], row_size(tensor.type, tensor.ne[0]))
    data = np.ascontiguousarray(flat(tensor).bytes()).data
    return np.ndarray(shape, np.uint8, data, 0, (*tensor.nb[:0:-1], 1)).reshape(-1)
