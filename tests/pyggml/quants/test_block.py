"""Declarations of formats: no bit has two meanings, and unpacking can be reversed."""

from __future__ import annotations

import numpy as np
import pytest

from pyggml.quants import BLOCK_TYPES
from pyggml.quants.block import Bits, BlockType, get, places, put
from pyggml.quants.codebook import Entries

formats = pytest.mark.parametrize("f", BLOCK_TYPES.values(), ids=lambda f: f.type.name)


def fields(f: BlockType) -> list[Bits]:
    codes = [*f.codes.entries, *f.codes.signs] if isinstance(f.codes, Entries) else f.planes
    return [*f.d, *f.low, *f.steps, *f.minima, *codes]


@formats
def test_each_bit_has_one_meaning(f: BlockType) -> None:
    taken = [np.unique(places(x))[:, None] + np.arange(x.width) for x in fields(f)]
    bits = np.concatenate([x.reshape(-1) for x in taken])
    assert len(np.unique(bits)) == len(bits)
    assert bits.min() >= 0 and bits.max() < 8 * f.type.type_size


@formats
def test_unpacking_and_packing(f: BlockType) -> None:
    blocks = np.random.default_rng(0).integers(0, 256, (3, 50, f.type.type_size), np.uint8)
    once = f.pack(f.unpack(blocks))  # makes digits and sums canonical
    assert np.array_equal(f.pack(f.unpack(once)), once)
    if f.planes and f.type.name != "Q8_K":
        assert np.array_equal(once, blocks)


@pytest.mark.parametrize(
    "field",
    [
        (Bits(3, 5, (4, 5), (40, 8)),),
        (Bits(5, 3, (7,), (5,)),),  # across bytes
        (Bits(2, 0, (4, 8), (2, 8)), Bits(4, 64, (32,), (4,), shift=2)),
        (Bits(11, 1, (6,), (13,)),),
        (Bits(1, 7, (4, 8), (8, -1)),),  # from the highest bit of each byte down
        (Bits(1, 31, (32,), (-1,)),),  # and across bytes
        (Bits(6, 0, (4,), (8,)), Bits(4, 64, (4,), (8,), first=4), Bits(2, 6, (4,), (8,), 4, 4)),
    ],
    ids=str,
)
def test_fields_of_any_strides(field: tuple[Bits, ...]) -> None:
    """Compared with an extraction of single bits."""
    blocks = np.random.default_rng(1).integers(0, 256, (9, 27), np.uint8)
    bits = np.unpackbits(blocks, axis=1, bitorder="little").astype(np.int64)
    n = max(x.first + x.n for x in field)
    want = np.zeros((9, n), np.int64)
    for x in field:
        for i, at in enumerate(places(x)):
            value = bits[:, at : at + x.width] @ (1 << np.arange(x.width))
            want[:, x.first + i] |= value << x.shift
    got = get(field, blocks)
    assert np.array_equal(got, want)
    stored = np.zeros_like(blocks)
    put(field, got, stored)
    assert np.array_equal(get(field, stored), want)
    assert not (stored & ~blocks).any()  # no other bit is set
