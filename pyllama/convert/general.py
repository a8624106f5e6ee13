"""The ``general.*`` keys, from the folder's name, README.md and config.json.

    general = read_general(Folder(path), arch="llama", tensors={"token_embd.weight": (512, 64)})
    general.keys["general.name"], general.file_name("F16")

The ``gguf`` package derives them by llama.cpp's conventions; the files are read here, within a
budget.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ModelError
from ..inputs.budget import shown
from ..mapping.rules import float32
from .files.folder import Folder, read_json
from .model_card import read_card

if TYPE_CHECKING:
    import gguf

log = logging.getLogger(__name__)

_MAX_FILE_NAME = 128  # characters of a default file name
_NUMBERS: dict[str, Callable[[Any], Any]] = {
    "UINT32": np.uint32,
    "INT32": np.int32,
    "FLOAT32": float32,
}

_SAMPLING = {"temperature": "temp"}  # name in generation_config.json -> name in GGUF
_MAX_NAME = 1024  # characters of a model's name


@dataclass(frozen=True)
class General:
    """The ``general.*`` keys, and the parts of the default file name."""

    keys: dict[str, Any]
    name_parts: tuple[str | None, ...]  # name, base name, fine-tune, version, size

    def file_name(self, outtype: str | None, ending: str = "") -> str:
        """Return ``Name-Size-FineTune-Version-TYPE[ending].gguf``; no ``outtype``: vocab only."""
        import gguf

        name, base, finetune, version, size = self.name_parts
        if outtype is None:
            stem = gguf.naming_convention(name, base, finetune, version, None, None, "vocab")
        else:
            stem = gguf.naming_convention(name, base, finetune, version, size, outtype)
        plain = (c if c.isprintable() and c != "/" else "-" for c in stem[:_MAX_FILE_NAME])
        return "".join(plain) + f"{ending}.gguf"


def fill_file_name(name: str, outtype: str) -> str:
    """Return the name of a file with the type in place of ``{ftype}``, or ``{FTYPE}`` in capitals.

    Other braces are kept.

    Source: gguf-py, ``fill_templated_filename``.
    """

    def fill(match: re.Match[str]) -> str:
        return outtype.upper() if match[1].isupper() else outtype.lower()

    return re.sub(r"\{(ftype|outtype|FTYPE|OUTTYPE|0|)\}", fill, name)


def read_general(
    folder: Folder,
    arch: str,
    tensors: Mapping[str, tuple[int, ...]],
    model_name: str | None = None,
    metadata: Path | None = None,
    n_adapted: int = 0,
) -> General:
    """Return the ``general.*`` keys of a folder.

    Args:
        tensors: shapes by name, to count parameters.
        model_name: replaces the derived name.
        metadata: a JSON file of ``general.*`` keys that override derived ones.
        n_adapted: of an adapter, the parameters of the matrices that it changes.

    Raises:
        ModelError: ``metadata`` cannot be read, or has other keys or invalid values.
    """
    import gguf  # slow to import

    given: dict[str, Any] = {}
    if metadata is not None:
        given = read_json(metadata, folder.budget)
        unknown = [key for key in given if not key.startswith("general.")]
        if unknown:
            raise ModelError(f"{metadata}: {shown(unknown[0])} is not a general.* key")
    counts = _count(tensors)
    writer = gguf.GGUFWriter(None, arch)
    found = _guess(folder, counts[0] - n_adapted)
    _set(found, given)
    found.name = model_name or found.name or _folder_name(folder.path)
    if found.size_label is None and counts[0]:
        found.size_label = gguf.size_label(*counts)
    writer.add_type(gguf.GGUFType.MODEL)
    try:
        found.set_gguf_meta_model(writer)
        keys = {k: _plain(v.type.name, v.value) for k, v in writer.kv_data[0].items()}
    except (AttributeError, OverflowError, TypeError, ValueError) as error:
        raise ModelError(
            f"{metadata or folder.path}: a general.* key has an invalid value: {error!s:.200}"
        ) from None
    parts = (found.name, found.basename, found.finetune, found.version, found.size_label)
    return General(keys, tuple(None if part is None else str(part) for part in parts))


def _folder_name(path: Path) -> str:
    """Return the name of a folder, or of the repository if it is a snapshot in the hub's cache.

    There it is ``models--USER--NAME/snapshots/COMMIT``.
    """
    path = path.absolute()
    repo = path.parent.parent.name
    if path.parent.name == "snapshots" and repo.startswith("models--"):
        return repo.rpartition("--")[2]
    return path.name


def _guess(folder: Folder, n_params: int) -> gguf.Metadata:
    """Return the metadata derived from the folder; an invalid README is skipped with a warning."""
    import gguf

    where = Path(_folder_name(folder.path))
    path = folder.json("config.json").get("_name_or_path")
    names = {"_name_or_path": path} if isinstance(path, str) and len(path) < _MAX_NAME else {}
    guess = gguf.Metadata.apply_metadata_heuristic
    try:
        found = guess(gguf.Metadata(), read_card(folder), names, where, n_params)
    except Exception as error:  # a README may have values of any type
        readme = folder.path / "README.md"
        reason = str(error).removeprefix(f"{readme}: ")
        log.warning("%s: ignored, since it cannot be read: %.200s", readme, reason)
        found = guess(gguf.Metadata(), {}, names, where, n_params)
    sampling = folder.json("generation_config.json")
    _set(found, {f"general.sampling.{_SAMPLING.get(k, k)}": v for k, v in sampling.items()})
    return found


def _set(found: gguf.Metadata, given: Mapping[str, Any]) -> None:
    """Set the fields of ``found`` named by ``general.*`` keys; ignore unknown keys."""
    field_names = {field.name for field in fields(found)}
    for key, value in given.items():
        name = key.removeprefix("general.").replace(".", "_")
        if name in field_names:
            setattr(found, name, value)


def _plain(kind: str, value: Any) -> Any:
    """Return a value in the type of its key. YAML parses some versions as dates, "no" as False."""
    if kind in _NUMBERS:
        return _NUMBERS[kind](value)
    if isinstance(value, list):
        return ["no" if item is False else str(item) for item in value]
    return str(value)


def _count(tensors: Mapping[str, tuple[int, ...]]) -> tuple[int, int, int, int]:
    """Return the numbers of: all parameters, those shared by experts, those of one expert, experts.

    "One expert" counts one expert in each layer.
    """
    sizes = {name: prod(shape) for name, shape in tensors.items()}
    experts = {name: tensors[name][0] for name in tensors if "_exps." in name}
    total = sum(sizes.values())
    of_experts = sum(sizes[name] for name in experts)
    n = max(experts.values(), default=0)
    return total, total - of_experts, of_experts // n if n else 0, n
