"""The ``general.*`` keys: what the folder, its README and config.json say about the model.

    general = read_general(Folder(path), arch="llama", tensors={"token_embd.weight": (512, 64)})
    general.keys["general.name"], general.file_name("F16")

The ``gguf`` package guesses, by llama.cpp's conventions; the files are read here, in a budget.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ModelError
from ..files.budget import shown
from .folder import Folder, read_json
from .mapping import float32
from .model_card import read_card

if TYPE_CHECKING:
    import gguf

log = logging.getLogger(__name__)

_LONGEST_NAME = 128  # characters of a default file name
_NUMBERS: dict[str, Callable[[Any], Any]] = {
    "UINT32": np.uint32,
    "INT32": np.int32,
    "FLOAT32": float32,
}

_SAMPLING = {"temperature": "temp"}  # generation_config.json's names, where GGUF has others
_MAX_NAME = 1024  # characters


@dataclass(frozen=True)
class General:
    """Keys, and the parts of a default file name."""

    keys: dict[str, Any]
    name_parts: tuple[str | None, ...]  # name, base name, fine-tune, version, size

    def file_name(self, outtype: str | None, ending: str = "") -> str:
        """``Name-Size-FineTune-Version-TYPE[ending].gguf``; without a type: of a vocabulary."""
        import gguf

        name, base, finetune, version, size = self.name_parts
        if outtype is None:
            stem = gguf.naming_convention(name, base, finetune, version, None, None, "vocab")
        else:
            stem = gguf.naming_convention(name, base, finetune, version, size, outtype)
        plain = (c if c.isprintable() and c != "/" else "-" for c in stem[:_LONGEST_NAME])
        return "".join(plain) + f"{ending}.gguf"


def read_general(
    folder: Folder,
    arch: str,
    tensors: Mapping[str, tuple[int, ...]],
    model_name: str | None = None,
    metadata: Path | None = None,
) -> General:
    """The keys of a folder.

    Args:
        tensors: shapes by name, to count parameters.
        model_name: in place of the name that is guessed.
        metadata: a JSON file of ``general.*`` keys that take precedence.

    Raises:
        ModelError: ``metadata`` cannot be read, or has other keys or values.
    """
    import gguf  # slow to import

    given: dict[str, Any] = {}
    if metadata is not None:
        given = read_json(metadata, folder.budget)
        unknown = [key for key in given if not key.startswith("general.")]
        if unknown:
            raise ModelError(f"{metadata}: {shown(unknown[0])} is no general.* key")
    counts = _count(tensors)
    writer = gguf.GGUFWriter(None, arch)
    found = _guess(folder, counts[0])
    _set(found, given)
    found.name = model_name or found.name or folder.path.absolute().name
    if found.size_label is None and counts[0]:
        found.size_label = gguf.size_label(*counts)
    writer.add_type(gguf.GGUFType.MODEL)
    try:
        found.set_gguf_meta_model(writer)
        keys = {k: _plain(v.type.name, v.value) for k, v in writer.kv_data[0].items()}
    except (AttributeError, OverflowError, TypeError, ValueError) as error:
        raise ModelError(
            f"{metadata or folder.path}: a general.* key is not as it must be: {error!s:.200}"
        ) from None
    parts = (found.name, found.basename, found.finetune, found.version, found.size_label)
    return General(keys, tuple(None if part is None else str(part) for part in parts))


def _guess(folder: Folder, n_params: int) -> gguf.Metadata:
    """What the folder says; a README that cannot be understood says nothing."""
    import gguf

    where = folder.path.absolute()
    path = folder.json("config.json").get("_name_or_path")
    names = {"_name_or_path": path} if isinstance(path, str) and len(path) < _MAX_NAME else {}
    guess = gguf.Metadata.apply_metadata_heuristic
    try:
        found = guess(gguf.Metadata(), read_card(folder), names, where, n_params)
    except Exception as error:  # values of any type in a README
        readme = folder.path / "README.md"
        reason = str(error).removeprefix(f"{readme}: ")
        log.warning("%s: left out, since it cannot be read: %.200s", readme, reason)
        found = guess(gguf.Metadata(), {}, names, where, n_params)
    sampling = folder.json("generation_config.json")
    _set(found, {f"general.sampling.{_SAMPLING.get(k, k)}": v for k, v in sampling.items()})
    return found


def _set(found: gguf.Metadata, given: Mapping[str, Any]) -> None:
    """Take over what ``general.*`` keys say; others are none of the model's."""
    known = {field.name for field in fields(found)}
    for key, value in given.items():
        name = key.removeprefix("general.").replace(".", "_")
        if name in known:
            setattr(found, name, value)


def _plain(kind: str, value: Any) -> Any:
    """A value of the type that its key has; YAML makes dates of versions and False of Norwegian."""
    if kind in _NUMBERS:
        return _NUMBERS[kind](value)
    if isinstance(value, list):
        return ["no" if item is False else str(item) for item in value]
    return str(value)


def _count(tensors: Mapping[str, tuple[int, ...]]) -> tuple[int, int, int, int]:
    """Parameters in all, without the experts', of one expert of each layer, and experts."""
    sizes = {name: prod(shape) for name, shape in tensors.items()}
    experts = {name: tensors[name][0] for name in tensors if "_exps." in name}
    total = sum(sizes.values())
    of_experts = sum(sizes[name] for name in experts)
    n = max(experts.values(), default=0)
    return total, total - of_experts, of_experts // n if n else 0, n
