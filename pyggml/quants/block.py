"""What a block format is, and the table of those that exist.

    Q8_0 = register(BlockType(GGMLType.Q8_0, dtype, quantize_blocks, dequantize_blocks))
    BLOCK_TYPES[GGMLType.Q8_0].dtype["qs"]

A format is one file of this package with two NumPy functions, bit for bit ggml's C ones; they are
the oracle of every kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..dtype import GGMLType

Floats = npt.NDArray[np.float32]
Blocks = npt.NDArray[Any]  # structured, one entry a block


class QuantizeBlocks(Protocol):
    """float32 [n, block_size] -> blocks [n].

    ``weights``, float32 as ``x``, say how much an error of each value matters; None is the
    search without them, which is another one. Formats whose search takes none ignore them.
    """

    def __call__(self, x: Floats, weights: Floats | None = None) -> Blocks: ...


def column_weights(x: Floats, imatrix: Floats) -> Floats:
    """The weights of rows [n_rows, n]: those of the columns [n]."""
    return np.broadcast_to(imatrix, x.shape)


def row_weights(x: Floats, imatrix: Floats) -> Floats:
    """The weights of rows [n_rows, n]: the columns' times sqrt(mean square of the row + x^2)."""
    squares = x * x
    power = np.add.accumulate(squares, axis=1)[:, -1:] / np.float32(x.shape[1])  # front to back
    out: Floats = imatrix * np.sqrt(power + squares)
    return out


@dataclass(frozen=True)
class BlockType:
    """A block format.

    Args:
        type: its tensor type.
        dtype: the fields of a block; ``itemsize`` is the type's ``type_size``.
        quantize_blocks: see ``QuantizeBlocks``; None for a format that is only read.
        dequantize_blocks: ``dtype`` [n] -> float32 [n, block_size].
        weigh: rows [n_rows, n] and an importance matrix's columns [n] -> the weights of the values,
            as ``quantize_blocks`` takes them.
    """

    type: GGMLType
    dtype: np.dtype[Any]
    quantize_blocks: QuantizeBlocks | None
    dequantize_blocks: Callable[[Blocks], Floats]
    weigh: Callable[[Floats, Floats], Floats] = column_weights


BLOCK_TYPES: dict[GGMLType, BlockType] = {}


def register(block_type: BlockType) -> BlockType:
    """Add a format to the table and return it."""
    assert block_type.dtype.itemsize == block_type.type.type_size
    assert block_type.type not in BLOCK_TYPES
    BLOCK_TYPES[block_type.type] = block_type
    return block_type


def inverse(d: Floats) -> Floats:
    """``1 / d`` in float32, 0 where ``d`` is 0 or so small that float32 does not hold it."""
    out = np.zeros_like(d)
    with np.errstate(over="ignore"):
        np.divide(np.float32(1), d, out=out, where=d != 0)
    out[np.isinf(out)] = 0  # ggml has undefined codes there; as a half float d is 0 anyway
    return out


def pack_nibbles(q: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Codes [n, 32] -> [n, 16]: element j in the low half of byte j, j + 16 in the high half."""
    return q[:, :16] | q[:, 16:] << np.uint8(4)


def unpack_nibbles(qs: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """The inverse of ``pack_nibbles``."""
    return np.concatenate([qs & np.uint8(15), qs >> np.uint8(4)], axis=1)


def pack_fives(q: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint8]]:
    """Codes [n, 32] -> their fifth bits [n], element j in bit j, and their nibbles [n, 16]."""
    fifth = np.packbits(q >> np.uint8(4), axis=1, bitorder="little").view("<u4")[:, 0]
    return fifth, pack_nibbles(q & np.uint8(15))


def unpack_fives(qh: npt.NDArray[np.uint32], qs: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """The inverse of ``pack_fives``."""
    fifth = np.ascontiguousarray(qh, "<u4").view(np.uint8).reshape(-1, 4)
    bits = np.unpackbits(fifth, axis=1, bitorder="little")
    return unpack_nibbles(qs) | bits << np.uint8(4)
