"""Codes of the IQ1 to IQ3 formats: entries of a codebook of magnitudes, and signs.

    codes = Entries(GGMLType.IQ2_XS, entries, signs, sign_bits=7, levels=4)
    codes.get(blocks)                              # of each column: a level, above it the sign

All of these formats have two or three bits of levels. The codebooks come from the ``gguf`` package,
when they are first used.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ..dtype import GGMLType
from .block import Bytes, Field, count, get, put


@cache
def levels_of(type: GGMLType) -> Bytes:
    """The levels of a format's codebook, uint8 [n, 8] (of the IQ3 formats [n, 4])."""
    from gguf import quants

    source: Any = getattr(quants, type.name)
    source.init_grid()
    levels: Bytes = np.unique(source.grid[0, 0], return_inverse=True)[1].astype(np.uint8)
    return levels


@cache
def _numbers(type: GGMLType) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The entries as numbers, sorted, and their places in the codebook."""
    numbers = _number(levels_of(type))
    order = numbers.argsort()
    return numbers[order], order


def _number(levels: Bytes) -> npt.NDArray[np.int64]:
    """Levels [..., m] as digits of a number."""
    out: npt.NDArray[np.int64] = levels @ (8 ** np.arange(levels.shape[-1], dtype=np.int64))
    return out


@dataclass(frozen=True)
class Entries:
    """Implements ``block.Codes``.

    Args:
        type: the format.
        entries: where the numbers of entries are, of 8 columns each or 4.
        signs: where the signs of each 8 columns are, column j in bit j.
        sign_bits: stored for 8 columns: 8; 7, if the number of minus signs is even; or 1 for all.
        levels: the number of magnitudes, a power of two.
    """

    type: GGMLType
    entries: Field
    signs: Field
    sign_bits: int
    levels: int

    @property
    def bits(self) -> int:
        """Bits of a code: a level, with the sign above."""
        return self.levels.bit_length()

    @property
    def entry_columns(self) -> int:
        """Columns of an entry."""
        return 8 * count(self.signs) // count(self.entries)

    def get(self, blocks: Bytes) -> Bytes:
        shape = *blocks.shape[:-1], 8 * count(self.signs)
        levels = levels_of(self.type)[get(self.entries, blocks)].reshape(shape)
        signs = get(self.signs, blocks)
        if self.sign_bits == 7:
            signs = signs | (np.bitwise_count(signs) & np.uint8(1)) << np.uint8(7)
        elif self.sign_bits == 1:
            signs = signs * np.uint8(255)
        bits = np.unpackbits(signs, axis=-1, bitorder="little")
        codes: Bytes = levels | bits << np.uint8(self.bits - 1)
        return codes

    def put(self, codes: Bytes, blocks: Bytes) -> None:
        """The inverse of ``get``, of codes that have an entry."""
        numbers, which = _numbers(self.type)
        levels = codes & np.uint8(self.levels - 1)
        wanted = _number(levels.reshape(*codes.shape[:-1], -1, self.entry_columns))
        put(self.entries, which[np.searchsorted(numbers, wanted)], blocks)
        signs = np.packbits(codes >> np.uint8(self.bits - 1), axis=-1, bitorder="little")
        put(self.signs, signs & np.uint8((1 << self.sign_bits) - 1), blocks)
