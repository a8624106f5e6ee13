"""Type ids and sizes against gguf's table."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from pyggml.dtype import GGMLType, from_numpy_dtype, numpy_dtype, row_size
from pyggml.errors import PyggmlError, ShapeError


@pytest.mark.parametrize(
    "type", [t for t in GGMLType if t is not GGMLType.Q2_0], ids=lambda t: t.name
)
def test_ids_and_sizes_are_ggml(type: GGMLType) -> None:
    theirs = GGMLQuantizationType(int(type))
    assert theirs.name == type.name
    if type is GGMLType.Q8_1:  # gguf's table has 40, but ggml's block is 2 x f16 + 32
        assert type.type_size == 36
    else:
        assert GGML_QUANT_SIZES[theirs] == (type.block_size, type.type_size)


def test_q2_0() -> None:
    """gguf 0.19 has it not."""
    type = GGMLType.Q2_0
    assert (int(type), type.block_size, type.type_size) == (42, 64, 18)  # ggml.h, ggml-common.h


def test_numpy_types() -> None:
    for type in GGMLType:
        dtype = numpy_dtype(type)
        assert (dtype is None) == type.is_quantized
        if dtype is not None:
            assert dtype.itemsize == type.type_size
            if type is not GGMLType.BF16:
                assert from_numpy_dtype(dtype) is type
    assert from_numpy_dtype(np.dtype(np.uint16)) is None
    assert from_numpy_dtype(np.dtype(complex)) is None


def test_row_size() -> None:
    assert row_size(GGMLType.Q4_1, 576) == 360
    assert row_size(GGMLType.F32, 3) == 12
    with pytest.raises(ShapeError, match=r"33.*multiple of 32") as e:
        row_size(GGMLType.Q8_0, 33)
    assert isinstance(e.value, PyggmlError) and isinstance(e.value, ValueError)
