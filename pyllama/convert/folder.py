"""The small files of a Hugging Face folder, read so that a damaged one is one clear line.

folder = Folder(Path("Llama-3.2-1B"))
config = read_config(folder)
folder.json("tokenizer_config.json")                    # {} where there is none

A file is read and parsed once; all of them, and the checkpoint's tables, share one budget.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

from pyggml.files import open_regular, read_regular

from ..errors import ModelError
from ..files.bounded_json import count_values, parse_json
from ..files.budget import LIMITS, MAX_JSON_BYTES, Budget, shown


class Folder:
    """A folder, and what reading it has cost.

    Attributes:
        path: where it is.
        budget: of all that is read of it.
    """

    def __init__(self, path: Path, budget: Budget | None = None) -> None:
        self.path, self.budget = path, budget or Budget()
        self._parsed: dict[str, dict[str, Any]] = {}

    def has(self, name: str) -> bool:
        """Whether anything has this name; if it is no file, reading it will say so."""
        return os.path.exists(self.path / name)

    def read(self, name: str, max_bytes: int = MAX_JSON_BYTES) -> bytes:
        """A whole small file. Raises: ModelError."""
        return read_small(self.path / name, self.budget, max_bytes)

    def head(self, name: str, n_bytes: int) -> bytes:
        """The first bytes of a file. Raises: ModelError."""
        path = self.path / name
        self.budget.take("bytes", n_bytes, path)
        try:
            with open_regular(path) as file:
                return file.read(n_bytes)
        except OSError as error:
            raise unreadable(path, error) from None

    def json(self, name: str) -> dict[str, Any]:
        """The object in a JSON file, not to be changed; {} without it. Raises: ModelError."""
        if name not in self._parsed:
            path = self.path / name
            there = self.has(name)
            self._parsed[name] = read_json(path, self.budget) if there else {}
        return self._parsed[name]


def unreadable(path: Path, error: OSError) -> ModelError:
    """What to say of a file that the system does not open."""
    return ModelError(f"{path}: cannot be read: {error.strerror or error}")


def read_small(path: Path, budget: Budget, max_bytes: int = MAX_JSON_BYTES) -> bytes:
    """A whole file. Raises: ModelError: it cannot be read, or is too large."""
    try:
        data = read_regular(path, min(max_bytes, max(budget.left["bytes"], 0)))
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise ModelError(
                f"{path}: {error.strerror}: no checkpoint has as many, fetch the file again"
            ) from None
        raise unreadable(path, error) from None
    budget.take("bytes", len(data), path)
    return data


def parse_object(path: Path, data: bytes, budget: Budget) -> dict[str, Any]:
    """The object in ``data``, whose keys are unique; ``path`` is for messages.

    Raises:
        ModelError: it is no JSON, no object, or has too many values or levels.
    """
    budget.take("values", count_values(data), path)
    try:
        value = parse_json(data, LIMITS["values"], make_object=_unique)
    except ValueError as error:  # JSONDecodeError, UnicodeDecodeError, _unique's
        raise ModelError(f"{path}: not JSON ({error}): fetch the file again") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path}: JSON {type(value).__name__}, want an object")
    return value


def read_json(path: Path, budget: Budget) -> dict[str, Any]:
    """The object in a JSON file. Raises: ModelError."""
    return parse_object(path, read_small(path, budget), budget)


def objects(value: Any) -> list[dict[str, Any]]:
    """The objects in a JSON array, or the one that ``value`` is; whatever else it is, none."""
    items = value if isinstance(value, list) else [value]
    return [item for item in items if isinstance(item, dict)]


def read_config(folder: Folder) -> dict[str, Any]:
    """config.json; of a model of several media, that of its text part.

    Raises:
        ModelError: it is not such a folder, or its weights are quantized.
    """
    path = folder.path
    if not path.exists():
        raise ModelError(f"{path}: no such folder")
    if not path.is_dir():
        raise ModelError(f"{path}: is a file: name the folder of a Hugging Face checkpoint")
    if not folder.has("config.json"):
        raise ModelError(
            f"{path}: there is no config.json: name the folder of a Hugging Face checkpoint"
        )
    config = dict(folder.json("config.json"))
    if isinstance(config.get("quantization_config"), dict):
        method = config["quantization_config"].get("quant_method", "unknown")
        how = method if isinstance(method, str) and len(method) < 80 else shown(method)
        raise ModelError(
            f"{path}: the weights are quantized already ({how}): convert the original "
            "checkpoint, in 16 or 32 bits"
        )
    if isinstance(config.get("text_config"), dict):
        config |= {k: v for k, v in config["text_config"].items() if v is not None}
    return config


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"the key {shown(name)} occurs twice")
            seen.add(name)
    return found
