"""Codebooks of the IQ formats: a code is an entry of magnitudes, beside which there are signs.

    IQ2_XXS = register_codebook(Codebook(IQ2_XXS, DTYPE, TWO_BITS, 32, 1 / 8, split, join))
    IQ2_XXS.split(blocks)                          # d, steps, and a small code for each element
    x[j] = d * steps[j / sub] * unit * values[codes[j]]

A small code is a level, with the sign on top: all of these formats have two or three bits of
levels. The codebooks come from the ``gguf`` package, when they are first used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..dtype import GGMLType
from .block import Blocks, BlockType, Floats, register

Bytes = npt.NDArray[np.uint8]
TWO_BITS = (8, 25, 43, 0, -8, -25, -43, 0)
SEVENS = np.array([0, 7, 14, 21], np.uint32)
THREES = np.array([0, 3, 6, 9], np.uint16)


class Split(NamedTuple):
    """Blocks [n] taken apart: float16 d [n], steps [n, 8 or 16], and codes [n, 256] of levels."""

    d: npt.NDArray[np.float16]
    steps: npt.NDArray[Any]
    codes: Bytes


@dataclass(frozen=True)
class Codebook:
    """A format of blocks of 256 elements.

    Args:
        values: what codes stand for: those without a sign, then those with one.
        sub: elements that share a step.
        unit: what is multiplied by a block's scale and the step of a part of it.
        split: blocks [n] -> their parts.
        join: its inverse.
    """

    type: GGMLType
    dtype: np.dtype[Any]
    values: tuple[int, ...]
    sub: int
    unit: float
    split: Callable[[Blocks], Split]
    join: Callable[[Split], Blocks]

    def dequantize_blocks(self, blocks: Blocks) -> Floats:
        """Blocks [n] -> float32 [n, 256]."""
        d, steps, codes = self.split(blocks)
        scale = d.astype(np.float32)[:, None] * (steps * np.float32(self.unit)).astype(np.float32)
        values = np.array(self.values, np.float32)[codes].reshape(*scale.shape, -1)
        out: Floats = (scale[:, :, None] * values).reshape(-1, 256)
        return out


CODEBOOKS: dict[GGMLType, Codebook] = {}


def register_codebook(codebook: Codebook) -> Codebook:
    """Add a format, which is only read, to the tables."""
    CODEBOOKS[codebook.type] = codebook
    register(BlockType(codebook.type, codebook.dtype, None, codebook.dequantize_blocks))
    return codebook


@cache
def entries(type: GGMLType) -> Bytes:
    """The levels of a format's codebook, uint8 [n, 8] (of the IQ3 formats [n, 4])."""
    from gguf import quants

    source: Any = getattr(quants, type.name)
    source.init_grid()
    levels: Bytes = np.unique(source.grid[0, 0], return_inverse=True)[1].astype(np.uint8)
    return levels


@cache
def _numbers(type: GGMLType) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The entries as numbers, in order, and which of the codebook they are."""
    numbers = _number(entries(type))
    order = numbers.argsort()
    return numbers[order], order


def _number(levels: Bytes) -> npt.NDArray[np.int64]:
    """Levels [..., m] as digits of a number."""
    out: npt.NDArray[np.int64] = levels @ (8 ** np.arange(levels.shape[-1], dtype=np.int64))
    return out


def signed(type: GGMLType, entry: npt.NDArray[Any], signs: npt.NDArray[Any]) -> Bytes:
    """Codes [n, 256] of entries [n, ...] with the signs of 8 elements in each byte [n, ...]."""
    levels = entries(type)[entry].reshape(len(entry), 256)
    bits = np.unpackbits(signs.astype(np.uint8).reshape(len(entry), 32), axis=1, bitorder="little")
    codes: Bytes = levels | bits << _sign_bit(type)
    return codes


def unsigned(type: GGMLType, codes: Bytes) -> tuple[npt.NDArray[np.int64], Bytes]:
    """The inverse of ``signed``: entries [n, 32 or 64], signs [n, 32]."""
    levels = codes & np.uint8((1 << int(_sign_bit(type))) - 1)
    numbers, which = _numbers(type)
    wanted = _number(levels.reshape(len(codes), -1, entries(type).shape[1]))
    signs = np.packbits(codes >> _sign_bit(type), axis=1, bitorder="little")
    return which[np.searchsorted(numbers, wanted)], signs


def _sign_bit(type: GGMLType) -> np.uint8:
    return np.uint8(len(CODEBOOKS[type].values).bit_length() - 2)


def with_eighth(seven: npt.NDArray[Any]) -> Bytes:
    """Seven sign bits as eight: the last makes their number even."""
    seven = seven.astype(np.uint8) & np.uint8(127)
    odd = np.bitwise_count(seven) & np.uint8(1)
    eight: Bytes = seven | odd << np.uint8(7)
    return eight


def signs_and_scale(signs: Bytes, steps: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    """Words [n, 8] of four times 7 of the signs of 8 elements [n, 32], and a step's upper bits."""
    sevens = (signs.reshape(-1, 8, 4) & np.uint32(127)) << SEVENS
    scale = steps.astype(np.uint32) >> 1 << 28
    words: npt.NDArray[np.uint32] = np.bitwise_or.reduce(sevens, axis=2) | scale
    return words


def nibbles(packed: Bytes) -> Bytes:
    """Bytes [n, m] as their halves [n, 2 * m], the low one first."""
    return np.stack([packed & np.uint8(15), packed >> np.uint8(4)], axis=2).reshape(len(packed), -1)


def packed_nibbles(halves: npt.NDArray[Any]) -> Bytes:
    """The inverse of ``nibbles``."""
    packed: Bytes = (halves[:, ::2] | halves[:, 1::2] << 4).astype(np.uint8)
    return packed
