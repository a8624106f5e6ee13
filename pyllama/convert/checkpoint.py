"""All tensors of a Hugging Face folder, from one file or many.

    tensors = read_checkpoint(Folder(Path("folder")))
    tensors["model.norm.weight"].read()            # float32

Opens safetensors before PyTorch's files. Only tables are read: values are, when asked for.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from ..errors import ModelError
from ..files.budget import Budget, shown
from .folder import Folder
from .safetensors import read_safetensors
from .stored import Stored
from .torch_files import read_torch

Reader = Callable[[Path, Budget], dict[str, Stored]]

# index, files without one, and how such files are read
_FORMS: tuple[tuple[str | None, str, Reader], ...] = (
    ("model.safetensors.index.json", "model*.safetensors", read_safetensors),
    ("pytorch_model.bin.index.json", "pytorch_model*.bin", read_torch),
    (None, "*.pt", read_torch),
)
_SHOWN = 255  # characters of a file's name: no system has longer ones
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.\w+)")


def read_checkpoint(folder: Folder) -> dict[str, Stored]:
    """The tensors of a folder, by name.

    Raises:
        ModelError: there are none, a file is missing, damaged or incomplete, or a tensor occurs
            twice.
    """
    for index, pattern, read in _FORMS:
        if index is not None and folder.has(index):
            return _read_indexed(folder, index, read)
        files = sorted(folder.path.glob(pattern))
        if files:
            _check_complete(files)
            return _read_files(files, read, folder.budget)
    names = " or ".join(pattern for _, pattern, _ in _FORMS)
    raise ModelError(f"{folder.path}: there are no weights: no {names}")


def _read_files(files: list[Path], read: Reader, budget: Budget) -> dict[str, Stored]:
    tensors: dict[str, Stored] = {}
    for file in files:
        for name, stored in read(file, budget).items():
            if name in tensors:
                raise ModelError(
                    f"{file}: tensor {shown(name)} is in {tensors[name].path.name} too: the folder "
                    "holds files of two checkpoints, keep one"
                )
            tensors[name] = stored
    if not tensors:  # a vocabulary is written only where it is asked for
        raise ModelError(
            f"{files[0]}: there are no tensors by name in it: of a training's state, save the "
            "model's state_dict alone"
        )
    return tensors


def _read_indexed(folder: Folder, name_of_index: str, read: Reader) -> dict[str, Stored]:
    index = folder.path / name_of_index
    weight_map = folder.json(name_of_index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{index}: there is no weight_map: fetch the file again")
    for file in weight_map.values():
        if not isinstance(file, str):
            raise ModelError(f"{index}: {shown(file)} is not the name of a file in the folder")
    files = sorted(set(weight_map.values()))
    for file in files:
        if Path(file).name != file or file in ("", ".."):
            raise ModelError(f"{index}: {shown(file)} is not the name of a file in the folder")
        if not os.path.exists(index.parent / file):  # no error for any name whatever
            where = index.parent / file[:_SHOWN]
            raise ModelError(f"{where}: no such file, though {index.name} names it")
    tensors = _read_files([index.parent / file for file in files], read, folder.budget)
    for name, file in weight_map.items():
        if name not in tensors or tensors[name].path.name != file:
            raise ModelError(f"{index.parent / str(file)}: tensor {shown(name)} is missing")
    return tensors


def _check_complete(files: list[Path]) -> None:
    """Files numbered 1 to n must all be there. Raises: ModelError."""
    there = {file.name for file in files}
    checked = set()  # sets of files: each is looked through once
    for file in files:
        match = _SHARD.fullmatch(file.name)
        if match is None or (match[1], match[3]) in checked:
            continue
        stem, _, count, suffix = match.groups()
        checked.add((stem, count))
        for i in range(1, int(count) + 1):
            part = file.with_name(f"{stem}-{i:05d}-of-{count}{suffix}")
            if part.name not in there:
                raise ModelError(f"{part}: no such file, though {file.name} is there")
