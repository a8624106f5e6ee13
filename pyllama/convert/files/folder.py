"""Reads the small files of a Hugging Face folder; a damaged file gives a one-line error.

folder = Folder(Path("Llama-3.2-1B"))
config = read_config(folder)
folder.json("tokenizer_config.json")                    # {} if the file does not exist

Each file is read and parsed once. All files, and the tables of the checkpoint, share one budget.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

from pyggml.files import open_regular, read_regular

from ...errors import ModelError
from ...inputs.bounded_json import count_values, parse_json
from ...inputs.budget import LIMITS, MAX_JSON_BYTES, ReadBudget


class Folder:
    """A Hugging Face folder and its cache of parsed files.

    Attributes:
        path: the folder.
        budget: limits everything that is read from it.
    """

    def __init__(self, path: Path, budget: ReadBudget | None = None) -> None:
        self.path, self.budget = path, budget or ReadBudget()
        self._parsed: dict[str, dict[str, Any]] = {}

    def has(self, name: str) -> bool:
        """Return whether the name exists; it may be something other than a file."""
        return os.path.exists(self.path / name)

    def read(self, name: str, max_bytes: int = MAX_JSON_BYTES) -> bytes:
        """Return the content of a small file. Raises: ModelError."""
        return read_small(self.path / name, self.budget, max_bytes)

    def head(self, name: str, n_bytes: int) -> bytes:
        """Return the first bytes of a file. Raises: ModelError."""
        path = self.path / name
        self.budget.take("bytes", n_bytes, path)
        try:
            with open_regular(path) as file:
                return file.read(n_bytes)
        except OSError as error:
            raise unreadable(path, error) from None

    def check_output(self, path: Path) -> None:
        """Raise ModelError if a file to write is one of the folder's, unless that is GGUF."""
        mine = (one for one in self.path.iterdir() if one.suffix != ".gguf" and one.is_file())
        if path.is_file() and any(path.samefile(one) for one in mine):
            raise ModelError(
                f"{path}: is a file of the checkpoint; choose another name for the new file"
            )

    def json(self, name: str) -> dict[str, Any]:
        """Return the object in a JSON file, {} without the file; it must not be modified.

        Raises:
            ModelError: the file cannot be read, or is not a JSON object.
        """
        if name not in self._parsed:
            path = self.path / name
            exists = self.has(name)
            self._parsed[name] = read_json(path, self.budget) if exists else {}
        return self._parsed[name]

    def json_objects(self, name: str) -> list[dict[str, Any]]:
        """Return the objects in a JSON array, [] without the file.

        Raises:
            ModelError: the file cannot be read, or is not JSON.
        """
        path = self.path / name
        if not self.has(name):
            return []
        return objects(_json_value(path, read_small(path, self.budget), self.budget))


def unreadable(path: Path, error: OSError) -> ModelError:
    """Return the error for a file that cannot be opened or read."""
    return ModelError(f"{path}: cannot be read: {error.strerror or error}")


def read_small(path: Path, budget: ReadBudget, max_bytes: int = MAX_JSON_BYTES) -> bytes:
    """Return the content of a file. Raises: ModelError: it cannot be read, or is too large."""
    try:
        data = read_regular(path, min(max_bytes, max(budget.left["bytes"], 0)))
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise ModelError(
                f"{path}: {error.strerror}: no checkpoint needs as many, download the file again"
            ) from None
        raise unreadable(path, error) from None
    budget.take("bytes", len(data), path)
    return data


def parse_object(path: Path, data: bytes, budget: ReadBudget) -> dict[str, Any]:
    """Return the JSON object in ``data``; ``path`` is for messages.

    Raises:
        ModelError: it is not JSON, not an object, has a duplicate key, or too many values or
            levels.
    """
    value = _json_value(path, data, budget)
    if not isinstance(value, dict):
        raise ModelError(f"{path}: JSON {type(value).__name__}, expected an object")
    return value


def _json_value(path: Path, data: bytes, budget: ReadBudget) -> Any:
    """Return the value of JSON ``data``. Raises: ModelError."""
    budget.take("values", count_values(data), path)
    try:
        return parse_json(data, LIMITS["values"], unique=True)
    except ValueError as error:  # JSONDecodeError, UnicodeDecodeError, a key that occurs twice
        raise ModelError(f"{path}: not JSON ({error}): download the file again") from None


def read_json(path: Path, budget: ReadBudget) -> dict[str, Any]:
    """Return the object in a JSON file. Raises: ModelError."""
    return parse_object(path, read_small(path, budget), budget)


def objects(value: Any) -> list[dict[str, Any]]:
    """Return the objects in a JSON array, or ``[value]`` if it is an object; else an empty list."""
    items = value if isinstance(value, list) else [value]
    return [item for item in items if isinstance(item, dict)]


def read_config(folder: Folder) -> dict[str, Any]:
    """Return config.json; ``text_config`` of multimodal models is merged into it.

    So is ``transformer_layer_config`` of EAGLE-3 heads (speculators).

    Raises:
        ModelError: the folder is not a checkpoint.
    """
    path = folder.path
    if not path.exists():
        raise ModelError(f"{path}: no such folder")
    if not path.is_dir():
        raise ModelError(f"{path}: is a file: give the folder of a Hugging Face checkpoint")
    if not folder.has("config.json"):
        raise ModelError(
            f"{path}: there is no config.json: give the folder of a Hugging Face checkpoint"
        )
    config = dict(folder.json("config.json"))
    thinker = config.get("thinker_config")  # of Qwen-Omni
    for text in (config, thinker):
        if isinstance(text, dict) and isinstance(text.get("text_config"), dict):
            config |= {k: v for k, v in text["text_config"].items() if v is not None}
    if isinstance(config.get("transformer_layer_config"), dict):
        layer, classes = config["transformer_layer_config"], config.get("architectures")
        config |= {k: v for k, v in layer.items() if v is not None} | {"architectures": classes}
    return config
