"""Splits and merges GGUF files, and copies them with changed metadata.

    plans = plan_split(file, Path("x"), max_bytes=2_000_000_000)
    write_split(file, plans)                       # x-00001-of-00003.gguf ...
    merge(GGUFFile("x-00001-of-00003.gguf"), "x.gguf")

Tensors are streamed, a few megabytes at a time. Either all parts are created at the end, or none.
Source: llama.cpp, ``gguf-split``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import GGUFError
from ..files import replacing
from ..rounding import round_up
from . import limits
from .parts import SPLIT_COUNT, SPLIT_KEYS, SPLIT_NO, SPLIT_TENSORS, part_path
from .reader import GGUFFile
from .writer import Pieces, Progress, write_gguf

MAX_PARTS = 65_535  # they are counted in 16 bits


@dataclass(frozen=True)
class PartPlan:
    """A part to write: its path, and the names and total size of its tensors."""

    path: Path
    names: tuple[str, ...]
    nbytes: int


def whole_metadata(file: GGUFFile) -> dict[str, Any]:
    """Return ``typed_metadata`` without the ``split.*`` keys."""
    return {k: v for k, v in file.typed_metadata().items() if k not in SPLIT_KEYS}


def copy_gguf(
    file: GGUFFile,
    path: str | os.PathLike[str],
    metadata: Mapping[str, Any],
    *,
    names: Iterable[str] | None = None,
    data: Mapping[str, Pieces] | None = None,
    progress: Progress | None = None,
) -> None:
    """Write tensors of ``file`` with other metadata to ``path``; the magic is kept.

    Args:
        names: tensors to copy; None: all.
        data: new data of some tensors, by name; of the others the file's is copied.
        progress: called with the completed fraction.

    Raises:
        GGUFError: the metadata is invalid, or the file cannot be written.
    """
    infos = [file.tensors[name] for name in (file.tensors if names is None else names)]
    new = data or {}
    tensors = {
        t.name: (new[t.name] if t.name in new else file.chunks(t.name), t.type, t.ne[: t.n_dims])
        for t in infos
    }
    write_gguf(path, metadata, tensors, arch=None, magic=file.magic, progress=progress)


def plan_split(
    file: GGUFFile,
    prefix: Path,
    *,
    max_tensors: int = 128,
    max_bytes: int | None = None,
    tensors_in_first: bool = True,
) -> list[PartPlan]:
    """Return the parts into which a file is split.

    Args:
        prefix: prefix of the parts' names.
        max_tensors: maximum number of tensors per part.
        max_bytes: maximum size of the tensors per part, used instead of ``max_tensors``; a larger
            tensor gets its own part.
        tensors_in_first: False: the first part has only metadata.

    Raises:
        GGUFError: there would be too many parts, or the prefix is not a name.
    """
    if not prefix.name:
        raise GGUFError(f"'{prefix}' is not a prefix of file names: use one such as 'model'")
    groups: list[list[str]] = [[]] if tensors_in_first else [[], []]
    size = 0
    for i, info in enumerate(file.tensors.values()):
        nbytes = round_up(info.nbytes, limits.DEFAULT_ALIGNMENT)
        full = i % max_tensors == 0 if max_bytes is None else size + nbytes > max_bytes
        if full and groups[-1]:
            groups.append([])
            size = 0
        groups[-1].append(info.name)
        size += nbytes
    if len(groups) > MAX_PARTS:
        raise GGUFError(
            f"{file.path}: would be split into {len(groups)} parts, the limit is {MAX_PARTS}: "
            f"allow more tensors or bytes per part"
        )
    return [
        PartPlan(
            part_path(prefix, i, len(groups)),
            tuple(names),
            sum(file.tensors[name].nbytes for name in names),
        )
        for i, names in enumerate(groups)
    ]


def write_split(
    file: GGUFFile,
    plans: list[PartPlan],
    progress: Progress | None = None,
    data: Mapping[str, Pieces] | None = None,
) -> None:
    """Write all parts, or none; ``data`` as in ``copy_gguf``.

    Raises:
        GGUFError: a part cannot be written.
    """
    total, before = sum(plan.nbytes for plan in plans) or 1, 0
    try:
        with contextlib.ExitStack() as stack:
            for i, plan in enumerate(plans):
                own = {
                    SPLIT_NO: np.uint16(i),
                    SPLIT_COUNT: np.uint16(len(plans)),
                    SPLIT_TENSORS: np.int32(len(file.tensors)),
                }
                copy_gguf(
                    file,
                    stack.enter_context(replacing(plan.path)),
                    (whole_metadata(file) if i == 0 else {}) | own,
                    names=plan.names,
                    data=data,
                    progress=progress_of(progress, before / total, plan.nbytes / total),
                )
                before += plan.nbytes
    except OSError as error:
        raise GGUFError(f"{file.path}: cannot be split: {error.strerror or error}") from error


def progress_of(progress: Progress | None, done: float, share: float) -> Progress | None:
    """The progress of a file's part, as that of the whole."""
    return None if progress is None else lambda fraction: progress(done + share * fraction)


def merge(file: GGUFFile, path: str | os.PathLike[str], progress: Progress | None = None) -> None:
    """Write all parts of ``file`` as one file. Raises: GGUFError: it cannot be written."""
    copy_gguf(file, path, whole_metadata(file), progress=progress)
