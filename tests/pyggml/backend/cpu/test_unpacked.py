"""Tiles of unpacked weights: they must have the bits of ``q_tile`` of the same instruction set."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from pyggml.backend.cpu.simd import amx, matrix_unit, tile, unpacked
from pyggml.backend.cpu.simd.vector import Generic
from pyggml.backend.cpu.simd.x86 import Avx2, Avx512Amx, AvxVnni, Sse42
from pyggml.backend.cpu.weights.layout import QUANTIZED
from pyggml.compiler import jit
from pyggml.dtype import GGMLType
from tests.pyggml.backend.cpu.test_amx import check_tiles, compiled
from tests.pyggml.backend.cpu.test_isa import X86, assembly, spills
from tests.tiers import some


@pytest.mark.skipif("avx2" not in jit.host_isas(), reason="instructions of AVX2")
@pytest.mark.parametrize("vectors", [Avx2, Sse42], ids=["avx2", "sse42"])
@pytest.mark.parametrize("kind", some(QUANTIZED, 3), ids=lambda t: t.name)
def test_tiles_have_the_bits_of_the_register_tile(
    kind: GGMLType, vectors: type[Generic], emit_for: Callable[[type[Generic]], None]
) -> None:
    """Rows of any number of blocks, with the largest codes and activations too."""
    emit_for(vectors)
    one, keep_one = compiled(tile.q_tile, kind, 6, 1, 2)
    many, keep_many = compiled(matrix_unit.tiles, kind, 8, 2)
    size = kind.block_size
    for blocks in (1, 3) if size == 256 else (1, 7, 8, 9, 18):
        for tokens, extreme in ((4, True), (12, False)):
            check_tiles(kind, one, many, blocks, tokens, extreme, unpacked.panel_bytes)
    del keep_one, keep_many


@pytest.mark.parametrize("kind", some(QUANTIZED, 3), ids=lambda t: t.name)
def test_assembly(kind: GGMLType, emit_for: Callable[[type[Generic]], None]) -> None:
    """A tile's products unpack nothing; where weights are signed, they flip activations."""
    host = X86["avx2"]
    emit_for(host.vectors)
    text = assembly(matrix_unit.tiles, kind, 8, host, (2,))
    loops = re.split(r"^\.LBB\S+:", text, flags=re.MULTILINE)
    (products,) = (loop for loop in loops if loop.count("\tvpbroadcastd\t") >= 32)
    assert products.count("\tvpmaddubsw\t") == 64 and "vpsignb" not in products
    assert not re.search(r"\tvp(and|srlw|shufb)\t", products)
    signed = kind is GGMLType.Q8_0 or kind in (GGMLType.IQ4_NL, GGMLType.IQ4_XS)
    assert not signed or products.count("\tvpxor\t") == 64
    assert spills(products) <= 16  # integer sums of a block of 256 columns


def test_sets_whose_prompts_take_unpacked_weights(
    emit_for: Callable[[type[Generic]], None],
) -> None:
    """Those with sums of 16 bits."""
    units = []
    for vectors in (Sse42, Avx2, AvxVnni, Avx512Amx):
        emit_for(vectors)
        units.append(matrix_unit.matrix_unit())
    assert units == [unpacked, unpacked, None, amx]
    least = {unpacked.least_tokens(type, False) for type in GGMLType}
    assert least == {0, 16}
