"""ggml's tensor types: ids, block sizes and bytes.

    >>> GGMLType.Q4_1.block_size, GGMLType.Q4_1.type_size
    (32, 20)
    >>> row_size(GGMLType.Q4_1, 576)
    360

Source: ggml, enum ``ggml_type`` and ``type_traits`` (the ids are also GGUF's on-disk ids).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np

from .errors import ShapeError


class GGMLType(IntEnum):
    """A tensor type; the value is ggml's id."""

    block_size: int
    type_size: int

    def __new__(cls, value: int, block_size: int = 1, type_size: int = 0) -> GGMLType:
        member = int.__new__(cls, value)
        member._value_ = value
        member.block_size = block_size  # elements
        member.type_size = type_size  # bytes a block
        return member

    # name = id, elements a block, bytes a block
    F32 = (0, 1, 4)
    F16 = (1, 1, 2)
    Q4_0 = (2, 32, 18)
    Q4_1 = (3, 32, 20)
    Q5_0 = (6, 32, 22)
    Q5_1 = (7, 32, 24)
    Q8_0 = (8, 32, 34)
    Q8_1 = (9, 32, 36)
    Q2_K = (10, 256, 84)
    Q3_K = (11, 256, 110)
    Q4_K = (12, 256, 144)
    Q5_K = (13, 256, 176)
    Q6_K = (14, 256, 210)
    Q8_K = (15, 256, 292)
    IQ2_XXS = (16, 256, 66)
    IQ2_XS = (17, 256, 74)
    IQ3_XXS = (18, 256, 98)
    IQ1_S = (19, 256, 50)
    IQ4_NL = (20, 32, 18)
    IQ3_S = (21, 256, 110)
    IQ2_S = (22, 256, 82)
    IQ4_XS = (23, 256, 136)
    I8 = (24, 1, 1)
    I16 = (25, 1, 2)
    I32 = (26, 1, 4)
    I64 = (27, 1, 8)
    F64 = (28, 1, 8)
    IQ1_M = (29, 256, 56)
    BF16 = (30, 1, 2)
    TQ1_0 = (34, 256, 54)
    TQ2_0 = (35, 256, 66)
    MXFP4 = (39, 32, 17)
    NVFP4 = (40, 64, 36)
    Q1_0 = (41, 128, 18)
    Q2_0 = (42, 64, 18)

    @property
    def is_quantized(self) -> bool:
        """Whether elements come in blocks (then there is no NumPy dtype)."""
        return self.block_size > 1


_NUMPY: dict[GGMLType, np.dtype[Any]] = {
    GGMLType.F32: np.dtype(np.float32),
    GGMLType.F16: np.dtype(np.float16),
    GGMLType.BF16: np.dtype(np.uint16),  # the top half of a float32; NumPy has no bfloat16
    GGMLType.F64: np.dtype(np.float64),
    GGMLType.I8: np.dtype(np.int8),
    GGMLType.I16: np.dtype(np.int16),
    GGMLType.I32: np.dtype(np.int32),
    GGMLType.I64: np.dtype(np.int64),
}
_FROM_NUMPY = {v: k for k, v in _NUMPY.items() if k is not GGMLType.BF16}


def numpy_dtype(type: GGMLType) -> np.dtype | None:
    """The NumPy dtype of an unblocked type (BF16 as its uint16 bits), None for a blocked one."""
    return _NUMPY.get(type)


def from_numpy_dtype(dtype: np.dtype) -> GGMLType | None:
    """The tensor type of a NumPy dtype, None where ggml has none."""
    return _FROM_NUMPY.get(np.dtype(dtype))


def row_size(type: GGMLType, n: int) -> int:
    """Bytes of a row of ``n`` elements.

    Raises:
        ShapeError: ``n`` is not a multiple of the block size.
    """
    if n % type.block_size:
        raise ShapeError(
            f"a {type.name} row of {n} elements: the length must be a multiple of {type.block_size}"
        )
    return type.type_size * (n // type.block_size)
