"""Files for PyTorch written without it: our reader and PyTorch's read the same values."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from pyggml.errors import TypeMismatch
from pyllama.convert.files.torch_files import read_torch
from pyllama.convert.files.torch_writer import write_torch

NAMED = {
    "fc1.weight": np.arange(24, dtype=np.float32).reshape(4, 6) / 8,
    "fc2.weight": np.arange(32, dtype=np.float16).reshape(8, 4),
    "scalar": np.float64(2.5),
    "empty": np.zeros((0, 3), np.int8),
    "bool": np.array([True, False]),
}
SEEN = {  # checked with torch 2.13, see tests/data/torch/check_written.py
    "one.pt": "b9e88d5473ca67030dc9e250e16611eae08ac16aff58e2358641391447236d5a",
    "named.pt": "1e2950391bd6fa1360b52627b0f7beb24ef96d7324fd52687b4d7db8eb1c8413",
}


@pytest.mark.parametrize("name", SEEN)
def test_bytes_equal_files_checked_with_torch(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    write_torch(path, NAMED if name == "named.pt" else np.arange(8, dtype=np.int64) * 3)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == SEEN[name]


def test_round_trip(tmp_path: Path) -> None:
    write_torch(tmp_path / "x.pt", NAMED)
    tensors = read_torch(tmp_path / "x.pt")
    assert list(tensors) == list(NAMED)
    for name, stored in tensors.items():
        assert stored.shape == NAMED[name].shape
        np.testing.assert_array_equal(stored.read(), NAMED[name])


@given(arrays.arrays(st.sampled_from([np.float32, np.int64, np.uint8]), arrays.array_shapes()))
def test_round_trip_of_any_array(tmp_path_factory: pytest.TempPathFactory, x: np.ndarray) -> None:
    path = tmp_path_factory.mktemp("t") / "x.pt"
    write_torch(path, x.T)
    np.testing.assert_array_equal(read_torch(path)[""].read(), x.T.astype(np.float32))


def test_unsupported_types_and_missing_directory(tmp_path: Path) -> None:
    with pytest.raises(
        TypeMismatch, match="no storage for NumPy's complex64; supported are float64"
    ):
        write_torch(tmp_path / "x.pt", np.zeros(2, np.complex64))
    assert not list(tmp_path.iterdir())
    with pytest.raises(OSError, match="no such directory"):
        write_torch(tmp_path / "a" / "x.pt", np.zeros(2))
