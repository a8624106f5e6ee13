"""PowerInfer's activation files: how often each neuron of each layer was active.

    write_activations("activation", counts)        # activation/activation_{0..}.pt
    counts = read_activations("activation")        # float64 [n_layer, n_ff]

A file is a tensor {n_ff} as PyTorch saves it. Nothing of PyTorch is needed to write or to read, and
no code in a file is run. Layers are numbers, so the tenth follows the ninth.
Source: PowerInfer, ``powerinfer-py/powerinfer/solver.py`` and ``export_split.py``.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..convert.torch_files import read_torch
from ..convert.torch_writer import write_torch
from ..errors import ModelError

Counts = npt.NDArray[np.float64]
_NAME = re.compile(r"activation_(\d{1,6})\.pt")


def write_activations(folder: str | os.PathLike[str], counts: npt.NDArray[Any]) -> None:
    """Write a file a layer; the folder is made, files of layers that are not are deleted.

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
            path.unlink()  # of a model with more layers


def read_activations(folder: str | os.PathLike[str]) -> Counts:
    """What the files of a folder hold, in the order of the layers' numbers.

    Returns:
        Counts, or shares, as they are in the files: [n_layer, n_ff].

    Raises:
        ModelError: there are none, a layer is missing, sizes differ, or a value is no count.
    """
    folder = Path(folder)
    found = _files(folder)
    if not found:
        raise ModelError(
            f"{folder}: no activation_0.pt in it, or no such folder; "
            "pyllama-powerinfer stats --activation makes one"
        )
    numbers = [_number(path) for path in found]
    missing = next((i for i, number in enumerate(numbers) if i != number), None)
    if missing is not None:
        raise ModelError(
            f"{folder}: activation_{missing}.pt is missing among {len(found)} files; "
            "each layer from 0 on has one"
        )
    rows = [_read(path) for path in found]
    for path, row in zip(found, rows, strict=True):
        if row.size != rows[0].size:
            raise ModelError(
                f"{path}: {row.size} neurons, but {rows[0].size} in {found[0].name}: the files "
                "are of different models"
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
        raise ModelError(f"{path}: holds a dictionary, want one tensor of a count for each neuron")
    if not tensors[""].size:
        raise ModelError(f"{path}: an empty tensor, want a count for each neuron")
    values = tensors[""].read().ravel().astype(np.float64)
    if not (np.isfinite(values).all() and values.min() >= 0):
        raise ModelError(f"{path}: a count is negative or not a number; make the files again")
    return values
