"""The JSON files of a Hugging Face folder, read so that a damaged one is one clear line.

config = read_config(Path("folder"))
read_json(Path("folder") / "tokenizer_config.json")     # {} where there is none
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import ModelError

_MAX_BYTES = 256 << 20  # tokenizer.json of the largest vocabularies has about 35 MB


def parse_json(path: Path, data: bytes) -> dict[str, Any]:
    """The object in ``data``, whose keys are unique; ``path`` is for messages.

    Raises:
        ModelError: it is no JSON, or no object.
    """
    try:
        value = json.loads(data, object_pairs_hook=_unique)
    except RecursionError:
        raise ModelError(f"{path}: JSON nested too deeply: the file is damaged") from None
    except ValueError as error:  # JSONDecodeError, UnicodeDecodeError, _unique's
        raise ModelError(f"{path}: not JSON ({error}): fetch the file again") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path}: JSON {type(value).__name__}, want an object")
    return value


def read_bytes(path: Path, most: int = _MAX_BYTES) -> bytes:
    """A whole small file. Raises: ModelError."""
    try:
        size = path.stat().st_size
        if size > most:
            raise ModelError(f"{path}: {size} bytes, more than the {most} that are sensible")
        return path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from None


def read_json(path: Path, *, must: bool = False) -> dict[str, Any]:
    """The object in a JSON file; without the file {}, unless it ``must`` be. Raises: ModelError."""
    if not must and not path.is_file():
        return {}
    return parse_json(path, read_bytes(path))


def objects(value: Any) -> list[dict[str, Any]]:
    """The objects in a JSON array, or the one that ``value`` is; whatever else it is, none."""
    items = value if isinstance(value, list) else [value]
    return [item for item in items if isinstance(item, dict)]


def read_config(folder: Path) -> dict[str, Any]:
    """config.json; of a model of several media, that of its text part.

    Raises:
        ModelError: it is not such a folder, or its weights are quantized.
    """
    if not folder.exists():
        raise ModelError(f"{folder}: no such folder")
    if not folder.is_dir():
        raise ModelError(f"{folder}: is a file: name the folder of a Hugging Face checkpoint")
    path = folder / "config.json"
    if not path.is_file():
        raise ModelError(
            f"{folder}: there is no config.json: name the folder of a Hugging Face checkpoint"
        )
    config = read_json(path)
    if isinstance(config.get("quantization_config"), dict):
        method = config["quantization_config"].get("quant_method", "unknown")
        raise ModelError(
            f"{folder}: the weights are quantized already ({method}): convert the original "
            "checkpoint, in 16 or 32 bits"
        )
    if isinstance(config.get("text_config"), dict):
        config |= {k: v for k, v in config["text_config"].items() if v is not None}
    return config


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r:.80} occurs twice")
    return found
