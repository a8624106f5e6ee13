"""The models that a router may load: what each is called, and how its process is started.

    entries = {name: Entry(name, ("--model", str(path)))}
    checked(entries.values())                      # raises for names that are used twice
    find_models(Path("models"))                    # {"tiny": Path("models/tiny.gguf"), ...}
    family_of(Path("models/tiny.gguf"))            # "llama"

A name of a request is looked up among these, and never becomes part of a path.

Source: llama.cpp, ``common_preset_context::load_from_models_dir`` and
``server_models::add_model``.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from pyggml.gguf import GGUFError, GGUFFile
from pyggml.visible import visible

from ...errors import ModelError

STOP_S = 10  # llama.cpp's DEFAULT_STOP_TIMEOUT
_MAX_FAMILY = 64  # characters
_LATER_PART = re.compile(r"-(?!00001-)\d{5}-of-\d{5}\.gguf$")
_FIRST_PART = re.compile(r"-00001-of-\d{5}\.gguf$")
_DRAFT_HEADS = ("mtp-", "eagle3-", "dspark-", "dflash-")
_log = logging.getLogger("pyllama.server")


@dataclass(frozen=True)
class CatalogEntry:
    """One model.

    Attributes:
        name: its id in the API.
        args: flags of its process.
        aliases: further names.
        tags: reported for the model, no more.
        source: where it was found: ``models_dir`` or ``preset``.
        preset: ``shown_args`` as a section of an INI file.
        file: the model's file; None if it is on the hub.
        stop_s: seconds that running requests get when it is unloaded.
        on_startup: whether it is loaded at the start.
        shown_args: ``args`` for clients: without secrets and folders.
    """

    name: str
    args: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    source: str = "preset"
    preset: str = ""
    file: Path | None = None
    stop_s: float = STOP_S
    on_startup: bool = False
    shown_args: tuple[str, ...] = ()


def checked(entries: Iterable[CatalogEntry]) -> dict[str, CatalogEntry]:
    """The entries by name.

    Raises:
        ModelError: two entries share a name or an alias.
    """
    found: dict[str, CatalogEntry] = {}
    owners: dict[str, str] = {}
    for entry in entries:
        for name in (entry.name, *entry.aliases):
            other = owners.setdefault(name, entry.name)
            if other != entry.name or (name == entry.name and name in found):
                raise ModelError(f"the name {name} belongs to two models: {other}, {entry.name}")
        found[entry.name] = entry
    return found


def find_models(folder: Path) -> dict[str, Path]:
    """The model files of a folder by name, in alphabetical order.

    A model is a ``.gguf`` file, named after it, or a sub-folder with one model, named after the
    folder. Of a split model the first part counts. Projectors and draft heads are not models.

    Raises:
        OSError: the folder cannot be read.
    """
    found: dict[str, Path] = {}
    for path in _visible_entries(folder):
        if path.is_dir():
            inside = [*filter(_is_model, _visible_entries(path))]
            first = [one for one in inside if _FIRST_PART.search(one.name)]
            chosen = (first or inside)[:1]
            if len(first or inside) > 1:
                _log.warning(
                    "%s has several models, only %s is listed", visible(str(path)),
                    visible(chosen[0].name),
                )  # fmt: skip
            name = path.name
        else:
            chosen, name = [path] if _is_model(path) else [], path.name.removesuffix(".gguf")
        if not chosen:
            continue
        if name in found:
            raise ModelError(f"{folder} has a file and a folder for the name {name}: rename one")
        found[name] = chosen[0]
    return found


def family_of(file: Path) -> str:
    """The architecture that a model's file names; empty if it cannot be read. Reads its header."""
    try:
        found = os.stat(file)
    except OSError:
        return ""
    return _family(file, (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns))


@lru_cache(maxsize=1024)
def _family(file: Path, identity: tuple[int, ...]) -> str:
    try:
        with GGUFFile(file) as opened:
            return opened.get_str("general.architecture", "")[:_MAX_FAMILY]
    except (GGUFError, OSError):
        return ""


def _visible_entries(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def _is_model(path: Path) -> bool:
    name = path.name
    if not name.endswith(".gguf") or "mmproj" in name or name.startswith(_DRAFT_HEADS):
        return False
    return not _LATER_PART.search(name) and path.is_file()
