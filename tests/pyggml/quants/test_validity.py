"""The place of illegal weights is found, in every format that the gguf package can read."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from pyggml.dtype import GGMLType
from pyggml.quants.validity import count_invalid

PLAIN = {GGMLType.F32: "<f4", GGMLType.F16: "<f2", GGMLType.F64: "<f8"}
OTHERS = (GGMLType.Q8_1, GGMLType.Q8_K, GGMLType.MXFP4, GGMLType.NVFP4, GGMLType.Q1_0)
KNOWN = [t for t in GGMLType if t.name in gguf.GGMLQuantizationType.__members__]
QUANTIZED = [t for t in KNOWN if t.is_quantized and t not in OTHERS]


@pytest.mark.parametrize("type", PLAIN, ids=lambda t: t.name)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_plain_numbers(type: GGMLType, bad: float) -> None:
    values = np.linspace(-1, 1, 50).astype(PLAIN[type])
    values[0] = np.finfo(PLAIN[type]).max
    assert count_invalid(values.view(np.uint8), type) == (0, -1)
    values[[7, 30]] = bad
    assert count_invalid(values.view(np.uint8), type) == (2, 7)


def test_bfloat16() -> None:
    values = np.array([0x3F80, 0x7F80, 0x7F7F, 0xFFC0], np.uint16)
    assert count_invalid(values.view(np.uint8), GGMLType.BF16) == (2, 1)


@pytest.mark.parametrize("type", QUANTIZED, ids=lambda t: t.name)
def test_blocks_are_illegal_where_their_values_are(type: GGMLType) -> None:
    """Random bytes: some scales, and so their values, are NaN or infinite."""
    rng = np.random.default_rng(1)
    blocks = rng.integers(0, 256, (4000, type.type_size), np.uint8)
    with np.errstate(all="ignore"):
        values = gguf.dequantize(blocks, gguf.GGMLQuantizationType(int(type)))
    bad = ~np.isfinite(values.reshape(len(blocks), -1)).all(axis=1)
    n, first = count_invalid(blocks.reshape(-1), type)
    assert n and (n, first) == (int(bad.sum()), int(bad.argmax()))


def test_activation_formats() -> None:
    blocks = np.zeros((3, 292), np.uint8)
    blocks[2, :4] = np.frombuffer(np.float32(np.nan).tobytes(), np.uint8)
    assert count_invalid(blocks.reshape(-1), GGMLType.Q8_K) == (1, 2)
    blocks = np.zeros((3, 36), np.uint8)
    blocks[1, 2:4] = np.frombuffer(np.float16(np.inf).tobytes(), np.uint8)
    assert count_invalid(blocks.reshape(-1), GGMLType.Q8_1) == (1, 1)


def test_mxfp4() -> None:
    blocks = np.zeros((256, 17), np.uint8)
    blocks[:, 0] = np.arange(256)
    assert count_invalid(blocks.reshape(-1), GGMLType.MXFP4) == (1, 255)


@pytest.mark.parametrize("type", [GGMLType.I8, GGMLType.I64, GGMLType.NVFP4])
def test_formats_in_which_everything_is_legal(type: GGMLType) -> None:
    assert count_invalid(np.full(72, 255, np.uint8), type) == (0, -1)
