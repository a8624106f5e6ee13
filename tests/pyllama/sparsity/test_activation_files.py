"""PowerInfer's activation files: sorted by layer number, all of one model."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from pyllama.convert.files.torch_writer import write_torch
from pyllama.errors import ModelError
from pyllama.sparsity.activation_files import read_activations, write_activations

TORCHS = Path(__file__).parents[2] / "data" / "torch" / "activation_0.pt"
COUNTS = np.random.default_rng(0).integers(0, 1 << 20, (12, 7))


def test_layers_are_sorted_by_number(tmp_path: Path) -> None:
    write_activations(tmp_path / "a" / "activation", COUNTS)
    names = sorted(path.name for path in (tmp_path / "a" / "activation").iterdir())
    assert names[:4] == [f"activation_{i}.pt" for i in (0, 1, 10, 11)]  # sorted as text
    np.testing.assert_array_equal(read_activations(tmp_path / "a" / "activation"), COUNTS)


def test_file_written_by_torch(tmp_path: Path) -> None:
    shutil.copyfile(TORCHS, tmp_path / "activation_0.pt")
    assert read_activations(tmp_path).tolist() == [[0, 3, 6, 9, 12, 15, 18, 21]]


def test_old_files_of_further_layers_are_deleted(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    write_activations(tmp_path, COUNTS)
    write_activations(tmp_path, COUNTS[:2])
    assert read_activations(tmp_path).shape == (2, 7)
    assert (tmp_path / "notes.txt").exists()


def test_invalid_folders_are_refused(tmp_path: Path) -> None:
    def refused(message: str) -> None:
        with pytest.raises(ModelError, match=message) as error:
            read_activations(tmp_path)
        assert str(tmp_path) in str(error.value) and "\n" not in str(error.value)

    refused("no such folder, or no activation_0.pt in it")
    write_activations(tmp_path, COUNTS)
    (tmp_path / "activation_3.pt").rename(tmp_path / "activation_30.pt")
    refused("activation_3.pt is missing among 12 files")
    write_activations(tmp_path, COUNTS)
    write_torch(tmp_path / "activation_5.pt", COUNTS[5, :6])
    refused("6 neurons, but 7 in activation_0.pt: the files belong to different models")
    for values in (np.array([1.0, np.nan]), np.array([1, -1])):
        write_activations(tmp_path, values[None])
        refused("a count is negative or not a number")
    write_torch(tmp_path / "activation_0.pt", {"w": COUNTS})
    refused("contains a dictionary, must be a tensor")
    write_torch(tmp_path / "activation_0.pt", COUNTS[:0])
    refused("an empty tensor")
    (tmp_path / "activation_0.pt").write_bytes(b"x")
    refused("not PyTorch's zip format")
