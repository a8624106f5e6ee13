"""Bytes of a tensor out of one kind of memory and into another.

    transfer(src, dst)                             # same type, sizes and strides
    values = to_numpy(tensor)                      # a copy, wherever the tensor lives

Both wait until the bytes are there. A backend that computes later than it is told to must have been
synchronized.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..dtype import GGMLType, numpy_dtype
from ..errors import AllocError
from ..quants import dequantize
from ..quants.half import bf16_to_float
from ..tensor import Tensor

_FLOATS = (GGMLType.F16, GGMLType.BF16)


def transfer(src: Tensor, dst: Tensor) -> None:
    """Copy the bytes of ``src``, gaps between its rows included. Raises: AllocError."""
    for tensor in (src, dst):
        if tensor.buffer is None:
            raise AllocError(f"'{tensor.name}' {tensor.ne} has no data: allocate it first")
    assert src.buffer is not None and dst.buffer is not None
    if not src.is_contiguous():
        src, dst = _flat(src), _flat(dst)
    dst.buffer.set_tensor(dst, src.buffer.get_tensor(src))  # type: ignore[union-attr]


def to_numpy(tensor: Tensor) -> npt.NDArray[Any]:
    """A copy of the values, float32 for F16, BF16 and quantized types, else the type's own.

    Returns:
        An array of four dimensions, ``ne`` reversed.

    Raises:
        AllocError: the tensor has no data. TypeMismatch: a format that we do not know.
        ShapeError: quantized rows with gaps.
    """
    if tensor.type.is_quantized:
        return dequantize(tensor.bytes(), tensor.type).reshape(tensor.ne[::-1])
    dtype = numpy_dtype(tensor.type)
    assert dtype is not None
    if tensor.nelements == 0:
        return np.empty(tensor.ne[::-1], np.float32 if tensor.type in _FLOATS else dtype)
    data = (tensor if tensor.is_contiguous() else _flat(tensor)).bytes()
    strides = tensor.nb[::-1]
    values = np.ndarray(tensor.ne[::-1], dtype, np.ascontiguousarray(data).data, 0, strides)
    if tensor.type == GGMLType.BF16:
        return bf16_to_float(values)
    return values.astype(np.float32) if tensor.type == GGMLType.F16 else values.copy()


def _flat(tensor: Tensor) -> Tensor:
    """The bytes that a tensor spans, as a row."""
    flat = Tensor(GGMLType.I8, (tensor.nbytes, 1, 1, 1)).set_name(tensor.name)
    flat.buffer, flat.data = tensor.buffer, tensor.data
    return flat
