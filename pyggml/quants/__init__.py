"""Block formats: float32 to bytes and back, for arrays and for tensors.

    blocks = quantize(x, "Q4_K")                   # float32 [..., n] -> uint8 [..., row bytes]
    y = dequantize(blocks, "Q4_K")
    x = to_float(tensor)                           # any tensor's values

The bytes and values have the bits of ggml's C functions. Supported are F32, F16, BF16 and
``BLOCK_TYPES``; those without an encoder can only be read. Thread-safe.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..dtype import GGMLType, row_size
from ..errors import ComputeError, QuantizeError, ShapeError, TypeMismatch
from . import binary, blocks_32, fp4, iq, iq4, k_quants, ternary  # noqa: F401 (register formats)
from .arrays import array_codec
from .block import BLOCK_TYPES, BlockType, Bytes, Floats
from .reference import (
    check_finite,
    check_scales,
    encodable,
    readable,
    reference_dequantize,
    reference_quantize,
    value_shape,
)
from .values import from_float, get_blocks, set_blocks, to_float

__all__ = [
    "BLOCK_TYPES",
    "BlockType",
    "dequantize",
    "from_float",
    "get_blocks",
    "quantize",
    "reference_dequantize",
    "reference_quantize",
    "set_blocks",
    "to_float",
]


_PLAIN = (GGMLType.F32, GGMLType.F16, GGMLType.BF16)  # NumPy is as fast as a kernel
_SMALL = 1 << 16  # elements; compiling a kernel does not pay for fewer


def quantize(
    x: npt.ArrayLike,
    type: GGMLType | str,
    imatrix: npt.ArrayLike | None = None,
    *,
    n_threads: int | None = None,
) -> Bytes:
    """The bytes of ``x`` in the format ``type``, a type or its name.

    Args:
        x: float32 [..., n], where n is a multiple of the block size.
        imatrix: float32 [n], the importance of each column (mean square of the activations);
            formats without a weighted search ignore it.
        n_threads: threads; None is one for each core that this process may use.

    Returns:
        uint8 [..., row_size(type, n)].

    Raises:
        QuantizeError: NaN, infinity, or a number that is too large for a block format; a negative
            or infinite weight in the importance matrix.
        ShapeError: rows that do not fill blocks, an importance matrix of another length.
        TypeMismatch: a format without an encoder.
    """
    type = _type(type)
    x = np.ascontiguousarray(x, np.float32)
    n = x.shape[-1]
    weights = None if imatrix is None else _importance(imatrix, n)
    codec = None if x.size < _SMALL or type in _PLAIN else array_codec()
    if codec is None:
        return reference_quantize(x, type, weights)
    encodable(type)
    n_bytes = row_size(type, n)
    try:
        out = codec.encode(x.reshape(-1, n), type, weights, n_threads)
    except ComputeError:
        check_finite(x, type)  # raises an error that says where
        raise
    check_scales(out, x, type)
    return out.reshape(*x.shape[:-1], n_bytes)


def dequantize(
    data: npt.ArrayLike, type: GGMLType | str, *, n_threads: int | None = None
) -> Floats:
    """The values of bytes in the format ``type``, a type or its name.

    Args:
        data: uint8 [..., row bytes], as from ``quantize`` (or flat); or ``bytes``.
        n_threads: threads; None is one for each core that this process may use.

    Returns:
        float32 [..., n].

    Raises:
        ShapeError: rows that are not whole blocks.
        TypeMismatch: an unknown format, or an array that is not of bytes.
    """
    type = _type(type)
    data = _bytes(data)
    small = data.size * type.block_size < _SMALL * type.type_size
    codec = None if small or type in _PLAIN else array_codec()
    if codec is None:
        return reference_dequantize(data, type)
    readable(type)
    shape = value_shape(data, type)
    return codec.decode(data, type, n_threads).reshape(shape)


def _type(type: GGMLType | str) -> GGMLType:
    if isinstance(type, GGMLType):
        return type
    try:
        return GGMLType[type.upper()]
    except KeyError:
        have = ", ".join(t.name for t in BLOCK_TYPES)
        raise TypeMismatch(
            f"there is no format {type!r}; there are F32, F16, BF16, {have}"
        ) from None


def _bytes(data: npt.ArrayLike) -> npt.NDArray[np.uint8]:
    if isinstance(data, bytes | bytearray | memoryview):
        return np.frombuffer(data, np.uint8)
    found = np.ascontiguousarray(data)
    if found.dtype != np.uint8:
        raise TypeMismatch(
            f"blocks are bytes: want an array of uint8, got {found.dtype}; its bytes are "
            "x.view(np.uint8)"
        )
    return found


def _importance(imatrix: npt.ArrayLike, n: int) -> Floats:
    weights = np.ascontiguousarray(imatrix, np.float32)
    if weights.shape != (n,):
        raise ShapeError(f"an importance matrix {weights.shape} for rows of {n}: want ({n},)")
    legal = (weights >= 0) & (weights < np.inf)  # [n]
    if not legal.all():
        at = int(np.argmin(legal))
        raise QuantizeError(
            f"the importance of column {at} is {weights[at]}: it must be a number from 0; "
            "make the importance matrix again"
        )
    return weights
