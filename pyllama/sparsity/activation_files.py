"""PowerInfer's activation files: the activation counts of the neurons of each layer.

    write_activations("activation", counts)        # activation/activation_{0..}.pt
    counts = read_activations("activation")        # float64 [n_layer, n_ff]

Each file is a tensor {n_ff} saved by ``torch.save``. PyTorch is not needed to write or read it, and
no code in a file is run. Files are sorted by number.
Source: PowerInfer, ``powerinfer-py/powerinfer/solver.py`` and ``export_split.py``.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..convert.files.torch_files import read_torch
from ..convert.files.torch_writer import write_torch
from ..errors import ModelError

Counts = npt.NDArray[np.float64]
_NAME = re.compile(r"activation_(\d{1,6})\.pt")


def write_activations(folder: str | os.PathLike[str], counts: npt.NDArray[Any]) -> None:
    """Write one file per layer; creates the folder and deletes files of other layers.

    Shape:
        counts [n_layer, n_ff]

    Raises:
        OSError: a file cannot be written.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for i, row in enumerate(counts):
        write_torch(folder / f"activation_{i}.pt", row)
    for path in _files(folder):
        if _number(path) >= len(counts):
            path.unlink()  # left over from a model with more layers


def read_activations(folder: str | os.PathLike[str]) -> Counts:
    """Return the content of a folder's files, in the order of layers.

    Returns:
        Counts or shares, as in the files: [n_layer, n_ff].

    Raises:
        ModelError: there are no files, a layer is missing, sizes differ, or a value is not a count.
    """
    folder = Path(folder)
    found = _files(folder)
    if not found:
        raise ModelError(
            f"{folder}: there is no such folder, or no activation_0.pt in it; "
            "create one with pyllama-powerinfer stats --activation"
        )
    numbers = [_number(path) for path in found]
    missing = next((i for i, number in enumerate(numbers) if i != number), None)
    if missing is not None:
        raise ModelError(
            f"{folder}: activation_{missing}.pt is missing among {len(found)} files; "
            "each layer needs one"
        )
    rows = [_read(path) for path in found]
    for path, row in zip(found, rows, strict=True):
        if row.size != rows[0].size:
            raise ModelError(
                f"{path}: {row.size} neurons, but {rows[0].size} in {found[0].name}: the files "
                "belong to different models"
            )
    return np.stack(rows)


def _files(folder: Path) -> list[Path]:
    names = folder.iterdir() if folder.is_dir() else ()
    return sorted((path for path in names if _NAME.fullmatch(path.name)), key=_number)


def _number(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1])


def _read(path: Path) -> Counts:
    tensors = read_torch(path)
    if list(tensors) != [""]:
        raise ModelError(f"{path}: contains a dictionary, must be a tensor with a count per neuron")
    if not tensors[""].size:
        raise ModelError(f"{path}: an empty tensor, must have a count per neuron")
    values = tensors[""].read().ravel().astype(np.float64)
    if not (np.isfinite(values).all() and values.min() >= 0):
        raise ModelError(f"{path}: a count is negative or not a number; recreate the files")
    return values
