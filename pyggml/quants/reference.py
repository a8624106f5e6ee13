"""Arrays to bytes and back in NumPy: the oracle of the jitted codecs.

    blocks = reference_quantize(x, GGMLType.Q4_0)  # float32 [..., n] -> uint8 [..., row bytes]
    y = reference_dequantize(blocks, GGMLType.Q4_0)

The results have the bits of ggml's C functions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..dtype import GGMLType, numpy_dtype, row_size
from ..errors import QuantizeError, ShapeError, TypeMismatch
from .block import BLOCK_TYPES, BlockType, Bytes, Floats
from .validity import count_invalid

MAX_E4M3 = np.float32(448 / 2)  # the largest scale ``ue4m3``


def reference_quantize(x: npt.ArrayLike, type: GGMLType, imatrix: Floats | None = None) -> Bytes:
    """The bytes of ``x`` in the format ``type``.

    Args:
        x: float32 [..., n], where n is a multiple of the block size.
        imatrix: float32 [n], how much each column matters; formats without such a search ignore it.

    Returns:
        uint8 [..., row_size(type, n)].

    Raises:
        QuantizeError: NaN, infinity or a too large number for a block format.
        ShapeError: rows that do not fill blocks.
        TypeMismatch: a format that we cannot quantize to.
    """
    x = np.ascontiguousarray(x, np.float32)
    n = x.shape[-1]
    n_bytes = row_size(type, n)
    if type == GGMLType.F32:
        out: npt.NDArray[Any] = x
    elif type == GGMLType.F16:
        with np.errstate(over="ignore"):  # too large ones become infinity
            out = x.astype(np.float16)
    elif type == GGMLType.BF16:
        out = bf16_from_float(x)
    else:
        block_type = encodable(type)
        check_finite(x, type)
        weights = None
        if imatrix is not None:
            weights = block_type.weigh(x.reshape(-1, n), imatrix).reshape(-1, type.block_size)
        assert block_type.encode is not None
        # As in C: overflows in candidates that lose; an infinite scale is found below
        with np.errstate(all="ignore"):
            out = block_type.encode(block_type, x.reshape(-1, type.block_size), weights)
        check_scales(out, x, type)
    return out.view(np.uint8).reshape(*x.shape[:-1], n_bytes)


def reference_dequantize(data: npt.ArrayLike, type: GGMLType) -> Floats:
    """The values of bytes in the format ``type``.

    Args:
        data: uint8 [..., row bytes], as from ``reference_quantize`` (or flat).

    Returns:
        float32 [..., n].

    Raises:
        ShapeError: rows that are not whole blocks.
        TypeMismatch: a format that we do not know.
    """
    data = np.ascontiguousarray(data, np.uint8)
    shape = value_shape(data, type)
    if type in (GGMLType.F32, GGMLType.F16):
        dtype = numpy_dtype(type)
        assert dtype is not None
        out: Floats = data.view(dtype).astype(np.float32)
    elif type == GGMLType.BF16:
        out = bf16_to_float(data.view(np.uint16))
    else:
        block_type = readable(type)
        with np.errstate(over="ignore", invalid="ignore"):  # blocks of garbage are garbage
            out = block_type.dequantize_blocks(data.reshape(-1, type.type_size))
    return out.reshape(shape)


def value_shape(data: Bytes, type: GGMLType) -> tuple[int, ...]:
    """The shape of the values of [..., row bytes]. Raises: ShapeError."""
    if data.shape[-1] % type.type_size:
        raise ShapeError(
            f"a row of {data.shape[-1]} bytes is not a whole number of {type.name} blocks of "
            f"{type.type_size} bytes"
        )
    return (*data.shape[:-1], data.shape[-1] // type.type_size * type.block_size)


def check_finite(x: Floats, type: GGMLType) -> None:
    """Raises: QuantizeError: NaN or infinity."""
    finite = np.isfinite(x)
    if not finite.all():
        at = np.argwhere(~finite)[0].tolist()
        raise QuantizeError(
            f"{x.size - int(finite.sum())} of {x.size} values are NaN or infinite, the first at "
            f"{at}: {type.name} has no such values; repair the source"
        )


def check_scales(blocks: Bytes, x: Floats, type: GGMLType) -> None:
    """Raises: QuantizeError: ``x`` was too large for the scales of its blocks."""
    f = BLOCK_TYPES[type]
    if f.scale == "e8m0":  # none is too large, and ggml's of tiny ones look illegal
        return
    if f.scale == "ue4m3":  # ggml's of large ones are the largest
        too_large = bool((np.abs(x) > MAX_E4M3 * f.numbers.max()).any())
    else:
        too_large = count_invalid(blocks, type)[0] > 0
    if too_large:
        kind = "E4M3" if f.scale == "ue4m3" else "float16"
        raise QuantizeError(
            f"values up to {np.abs(x).max():.3g} are too large for {type.name}: the scale of a "
            f"block does not fit {kind}; scale the source down"
        )


def readable(type: GGMLType) -> BlockType:
    """A format that we can read. Raises: TypeMismatch."""
    if type not in BLOCK_TYPES:
        have = ", ".join(t.name for t in BLOCK_TYPES)
        raise TypeMismatch(
            f"{type.name} is not a format of numbers; there are F32, F16, BF16, {have}"
        )
    return BLOCK_TYPES[type]


def encodable(type: GGMLType) -> BlockType:
    """A format that we can write. Raises: TypeMismatch."""
    if type not in BLOCK_TYPES or BLOCK_TYPES[type].encode is None:
        have = ", ".join(t.name for t, b in BLOCK_TYPES.items() if b.encode is not None)
        raise TypeMismatch(f"no quantization to {type.name}; there are F32, F16, BF16, {have}")
    return BLOCK_TYPES[type]


def bf16_from_float(x: Floats) -> npt.NDArray[np.uint16]:
    """The bits of the nearest bfloat16, ties to even, of float32; NaN becomes a quiet one."""
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (u.astype(np.uint64) + 0x7FFF + ((u >> 16) & 1)) >> 16
    quiet = (u >> 16) | 64
    return np.where(np.isnan(x), quiet, rounded).astype(np.uint16)


def bf16_to_float(bits: npt.NDArray[np.uint16]) -> Floats:
    """The float32 of bits of bfloat16."""
    return (bits.astype(np.uint32) << 16).view(np.float32)
