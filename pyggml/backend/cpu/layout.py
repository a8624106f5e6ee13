"""The interleaved layout of weights ("x16"): 16 rows side by side, so that one load feeds 16 sums.

    group_bytes(Q4_1, 576)                         # bytes of 16 rows of 576 columns: 5760

A group is 16 rows; within it, blocks of 32 columns follow each other. A block holds the 16 scales
(float16; MXFP4's exponents in a byte), for Q4_1 and Q5_1 the 16 minima, then lines of 64 bytes:
line j has 4 bytes of each row, the codes of columns 4j..4j+3 (nibbles: in the low ones, with
16+4j.. in the high ones). Five-bit formats have a line of fifth bits before: 32 bits of each row,
where bit j of byte i is column 4j+i, so that a shift puts four of them where they belong. F16, BF16
and F32 are columns of 16 values. The bits are ggml's, only their order differs. K-quants, IQ and TQ
formats (not IQ4_NL) have blocks of 256 columns, some of them unpacked: see ``superblock``. Bytes
of TQ1_0 come back as ggml writes those digits. Rows past the last full group are padded with zeros.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...dtype import GGMLType
from .superblock import FORMATS, deinterleave_blocks, interleave_blocks
from .superblock import ROWS as ROWS

# Bytes of quantized activations by the columns of a block; see ``kernels/quantize.py``.
ACTIVATION_BYTES = {32: 44, 256: 384}
Q8_BLOCK, Q8K_BLOCK = ACTIVATION_BYTES[32], ACTIVATION_BYTES[256]
_HEADER = {  # bytes before a block's codes
    GGMLType.Q8_0: 2,
    GGMLType.Q4_0: 2,
    GGMLType.Q4_1: 4,
    GGMLType.Q5_0: 2,
    GGMLType.Q5_1: 4,
    GGMLType.IQ4_NL: 2,
    GGMLType.MXFP4: 1,
}
QUANTIZED = (*_HEADER, *FORMATS)
INTERLEAVED = (GGMLType.F32, GGMLType.F16, GGMLType.BF16, *QUANTIZED)
FIVE_BITS = (GGMLType.Q5_0, GGMLType.Q5_1)


def block_bytes(type: int) -> int:
    """Bytes of one block of a group."""
    if type in FORMATS:
        return FORMATS[GGMLType(type)].block_bytes
    return GGMLType(type).type_size * ROWS


def group_bytes(type: GGMLType, n: int) -> int:
    """Bytes of a group of rows of ``n`` columns."""
    return n // type.block_size * block_bytes(type)


def activation_bytes(type: int, n: int) -> int:
    """Bytes of ``n`` quantized activations for weights of a type."""
    columns = GGMLType(type).block_size
    return n // columns * ACTIVATION_BYTES[columns]


def interleave(type: GGMLType, rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Rows in ggml's layout, uint8[n_rows, row_bytes], as groups (the reference of the kernels)."""
    n_rows, row_bytes = rows.shape
    groups = -(-n_rows // ROWS)
    padded = np.zeros((groups * ROWS, row_bytes), np.uint8)
    padded[:n_rows] = rows
    blocks = padded.reshape(groups, ROWS, -1, type.type_size).transpose(0, 2, 1, 3)
    if type in FORMATS:
        return interleave_blocks(type, blocks).reshape(groups, -1)
    out = np.empty((groups, blocks.shape[1], block_bytes(type)), np.uint8)
    at = 0
    for start, stop in _fields(type):
        width = stop - start
        part = blocks[:, :, :, start:stop]
        if type in FIVE_BITS and start == _HEADER[type]:
            part = _transpose_bits(part, 8, 4)
        out[:, :, at : at + ROWS * width] = part.reshape(*out.shape[:2], -1)
        at += ROWS * width
    return out.reshape(groups, -1)


def deinterleave(
    type: GGMLType, groups: npt.NDArray[np.uint8], n_rows: int
) -> npt.NDArray[np.uint8]:
    """The inverse of ``interleave``: uint8[n_groups, group_bytes] as uint8[n_rows, row_bytes]."""
    n_groups = groups.shape[0]
    source = groups.reshape(n_groups, -1, block_bytes(type))
    blocks = np.empty((n_groups, source.shape[1], ROWS, type.type_size), np.uint8)
    if type in FORMATS:
        blocks = deinterleave_blocks(type, source)
        return blocks.transpose(0, 2, 1, 3).reshape(n_groups * ROWS, -1)[:n_rows]
    at = 0
    for start, stop in _fields(type):
        width = stop - start
        part = source[:, :, at : at + ROWS * width].reshape(*source.shape[:2], ROWS, width)
        if type in FIVE_BITS and start == _HEADER[type]:
            part = _transpose_bits(part, 4, 8)
        blocks[:, :, :, start:stop] = part
        at += ROWS * width
    return blocks.transpose(0, 2, 1, 3).reshape(n_groups * ROWS, -1)[:n_rows]


def _fields(type: GGMLType) -> list[tuple[int, int]]:
    """Byte ranges of a ggml block that are laid side by side for 16 rows, in order."""
    if type not in _HEADER:
        return [(0, type.type_size)]
    header = _HEADER[type]
    scales = [(i, min(i + 2, header)) for i in range(0, header, 2)]
    return scales + [(i, i + 4) for i in range(header, type.type_size, 4)]


def _transpose_bits(words: npt.NDArray[np.uint8], n: int, m: int) -> npt.NDArray[np.uint8]:
    """Words of 4 bytes: bit m * j + i becomes bit n * i + j (j < n, i < m)."""
    bits = np.unpackbits(words, axis=-1, bitorder="little")
    bits = bits.reshape(*words.shape[:-1], n, m).swapaxes(-1, -2)
    return np.packbits(bits.reshape(*words.shape[:-1], 32), axis=-1, bitorder="little")
