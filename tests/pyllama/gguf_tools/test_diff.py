"""Differences between files, also in different formats, against NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyggml.dtype import GGMLType
from pyggml.gguf import GGUFFile, write_gguf
from pyggml.quants import dequantize, quantize
from pyllama.gguf_tools import diff as module
from pyllama.gguf_tools.diff import diff


def write(path: Path, metadata: dict[str, Any], **tensors: Any) -> GGUFFile:
    write_gguf(path, metadata, tensors)
    return GGUFFile(path)


@pytest.mark.parametrize("type", [GGMLType.F16, GGMLType.BF16, GGMLType.Q8_0, GGMLType.Q4_1])
def test_values_in_different_formats(
    tmp_path: Path, type: GGMLType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_STEP", 64)  # many chunks
    x = np.random.default_rng(0).standard_normal((7, 96)).astype(np.float32)
    blocks = quantize(x, type)
    found = diff(
        write(tmp_path / "a", {}, w=x), write(tmp_path / "b", {}, w=(blocks, type, (96, 7)))
    )
    y = dequantize(blocks, type).astype(np.float64)
    change = found.values["w"]
    assert change.n_changed == np.count_nonzero(x != y)
    assert change.max_abs == np.abs(x - y).max()
    assert change.nmse == pytest.approx(np.mean((x - y) ** 2) / np.mean(x.astype(np.float64) ** 2))
    assert found.tensors_changed["w"][1].type is type and found.n_equal == 0


def test_integers_and_doubles(tmp_path: Path) -> None:
    a = write(tmp_path / "a", {}, i=np.array([1, 2], np.int32), d=np.array([0.0, 1.0]))
    b = write(tmp_path / "b", {}, i=np.array([1, 5], np.int32), d=np.array([0.0, 1.0]))
    found = diff(a, b)
    assert found.values == {"i": module.ValueChange(1, 3.0, 9 / 5)} and found.n_equal == 1


def test_zeros_nan_and_unreadable_formats(tmp_path: Path) -> None:
    q = np.zeros(36, np.uint8)
    a = write(tmp_path / "a", {}, z=np.zeros(2), n=np.ones(2), q=(q, GGMLType.Q8_1, (32,)))
    b = write(
        tmp_path / "b", {}, z=np.ones(2), n=np.array([1, np.nan]), q=(q + 1, GGMLType.Q8_1, (32,))
    )
    found = diff(a, b)
    assert found.values["z"] == module.ValueChange(2, 1.0, np.inf)
    assert found.values["n"].n_changed == 1 and np.isnan(found.values["n"].max_abs)
    assert found.values["q"].n_changed == -1


def test_metadata_with_another_type_counts_as_changed(tmp_path: Path) -> None:
    a = write(tmp_path / "a", {"k": 1, "l": [1, 2], "m": "x", "nan": float("nan")})
    b = write(tmp_path / "b", {"k": np.uint8(1), "l": [1, 3], "m": "x", "nan": float("nan")})
    found = diff(a, b)
    assert list(found.metadata_changed) == ["k", "l"] and not found.same
    assert diff(a, a).same
