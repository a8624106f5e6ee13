"""Finds all tensors of a Hugging Face folder, in one file or many.

    tensors = read_checkpoint(Folder(Path("folder")))
    tensors["model.norm.weight"].read()            # float32

Prefers safetensors to PyTorch files. Reads only the tables of tensors; values are read on demand.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from ...errors import ModelError
from ...inputs.budget import ReadBudget, shown
from .folder import Folder
from .safetensors import read_safetensors
from .stored import StoredTensor
from .torch_files import read_torch

Reader = Callable[[Path, ReadBudget], dict[str, StoredTensor]]

# (index file, file names without an index, reader)
_FORMS: tuple[tuple[str | None, str, Reader], ...] = (
    ("model.safetensors.index.json", "model*.safetensors", read_safetensors),
    ("pytorch_model.bin.index.json", "pytorch_model*.bin", read_torch),
    ("consolidated.safetensors.index.json", "consolidated*.safetensors", read_safetensors),
    (None, "*.pt", read_torch),
)
_SHOWN = 255  # characters of a file name in messages; no file system allows longer names
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.\w+)")


def read_checkpoint(folder: Folder) -> dict[str, StoredTensor]:
    """Return the tensors of a folder by name.

    Raises:
        ModelError: there are no tensors, a file is missing, damaged or incomplete, or a tensor
            occurs twice.
    """
    for index, pattern, read in _FORMS:
        if index is not None and folder.has(index):
            return _read_indexed(folder, index, read)
        files = sorted(folder.path.glob(pattern))
        if files:
            _check_complete(files)
            return _read_files(files, read, folder.budget)
    names = " or ".join(pattern for _, pattern, _ in _FORMS)
    raise ModelError(f"{folder.path}: there are no weights: no file matches {names}")


def _read_files(files: list[Path], read: Reader, budget: ReadBudget) -> dict[str, StoredTensor]:
    tensors: dict[str, StoredTensor] = {}
    for file in files:
        for name, stored in read(file, budget).items():
            if name in tensors:
                raise ModelError(
                    f"{file}: tensor {shown(name)} is also in {tensors[name].path.name}: the "
                    "folder contains two checkpoints, keep one"
                )
            tensors[name] = stored
    if not tensors:
        raise ModelError(
            f"{files[0]}: it contains no named tensors: if it is a training checkpoint, save only "
            "the model's state_dict"
        )
    return tensors


def _read_indexed(folder: Folder, name_of_index: str, read: Reader) -> dict[str, StoredTensor]:
    index = folder.path / name_of_index
    weight_map = folder.json(name_of_index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{index}: there is no weight_map: download the file again")
    for file in weight_map.values():
        if not isinstance(file, str):
            raise ModelError(f"{index}: {shown(file)} is not the name of a file in the folder")
    files = sorted(set(weight_map.values()))
    for file in files:
        if Path(file).name != file or file in ("", ".."):
            raise ModelError(f"{index}: {shown(file)} is not the name of a file in the folder")
        if not os.path.exists(index.parent / file):  # False for invalid names too, no exception
            where = index.parent / file[:_SHOWN]
            raise ModelError(f"{where}: no such file, but {index.name} lists it")
    tensors = _read_files([index.parent / file for file in files], read, folder.budget)
    for name, file in weight_map.items():
        if name not in tensors or tensors[name].path.name != file:
            raise ModelError(f"{index.parent / str(file)}: tensor {shown(name)} is missing")
    return tensors


def _check_complete(files: list[Path]) -> None:
    """Check that no shard of a numbered set is missing. Raises: ModelError."""
    names = {file.name for file in files}
    checked = set()  # (name, number of shards) of each set
    for file in files:
        match = _SHARD.fullmatch(file.name)
        if match is None or (match[1], match[3]) in checked:
            continue
        stem, _, count, suffix = match.groups()
        checked.add((stem, count))
        for i in range(1, int(count) + 1):
            part = file.with_name(f"{stem}-{i:05d}-of-{count}{suffix}")
            if part.name not in names:
                raise ModelError(f"{part}: no such file, but {file.name} exists")
