"""All tensors of a Hugging Face folder, from one file or many.

    tensors = read_checkpoint(Path("folder"))
    tensors["model.norm.weight"].read()            # float32

Opens safetensors before PyTorch's files. Only tables are read: values are, when asked for.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

from ..errors import ModelError
from .folder import read_json
from .safetensors import read_safetensors
from .stored import Stored
from .torch_files import read_torch

Reader = Callable[[Path], dict[str, Stored]]

# index, files without one, and how such files are read
_FORMS: tuple[tuple[str | None, str, Reader], ...] = (
    ("model.safetensors.index.json", "model*.safetensors", read_safetensors),
    ("pytorch_model.bin.index.json", "pytorch_model*.bin", read_torch),
    (None, "*.pt", read_torch),
)
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.\w+)")


def read_checkpoint(folder: Path) -> dict[str, Stored]:
    """The tensors of a folder, by name.

    Raises:
        ModelError: there are none, a file is missing, damaged or incomplete, or a tensor occurs
            twice.
    """
    for index, pattern, read in _FORMS:
        if index is not None and (folder / index).is_file():
            return _read_indexed(folder / index, read)
        files = sorted(folder.glob(pattern))
        if files:
            _check_complete(files)
            return _read_files(files, read)
    names = " or ".join(pattern for _, pattern, _ in _FORMS)
    raise ModelError(f"{folder}: there are no weights: no {names}")


def _read_files(files: list[Path], read: Reader) -> dict[str, Stored]:
    tensors: dict[str, Stored] = {}
    for file in files:
        for name, stored in read(file).items():
            if name in tensors:
                raise ModelError(
                    f"{file}: tensor {name!r} is in {tensors[name].path.name} too: the folder "
                    "holds files of two checkpoints, keep one"
                )
            tensors[name] = stored
    if not tensors:  # a vocabulary is written only where it is asked for
        raise ModelError(
            f"{files[0]}: there are no tensors by name in it: of a training's state, save the "
            "model's state_dict alone"
        )
    return tensors


def _read_indexed(index: Path, read: Reader) -> dict[str, Stored]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{index}: there is no weight_map: fetch the file again")
    files = sorted({str(file) for file in weight_map.values()})
    for file in files:
        if Path(file).name != file:
            raise ModelError(f"{index}: {file!r:.80} is not the name of a file in the folder")
        if not os.path.isfile(index.parent / file):  # no error for any name whatever
            raise ModelError(f"{index.parent / file}: no such file, though {index.name} names it")
    tensors = _read_files([index.parent / file for file in files], read)
    for name, file in weight_map.items():
        if name not in tensors or tensors[name].path.name != file:
            raise ModelError(f"{index.parent / str(file)}: tensor {name!r:.80} is missing")
    return tensors


def _check_complete(files: list[Path]) -> None:
    """Files numbered 1 to n must all be there. Raises: ModelError."""
    for file in files:
        match = _SHARD.fullmatch(file.name)
        if match is None:
            continue
        stem, _, count, suffix = match.groups()
        for i in range(1, min(int(count), 9999) + 1):
            part = file.with_name(f"{stem}-{i:05d}-of-{count}{suffix}")
            if not part.is_file():
                raise ModelError(f"{part}: no such file, though {file.name} is there")
