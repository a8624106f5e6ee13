"""Split models: names of the files, and checks that they belong together.

    part_path(Path("x"), 1, 3)                     # x-00002-of-00003.gguf
    parts = read_parts(Path("x-00001-of-00003.gguf"), mmap=True)

The first part has the number of parts and the metadata; the tensors are distributed over the parts.
Only headers are read, and a part is opened only after the previous one was checked.
Source: llama.cpp, ``llama_split_path``, ``llama_model_loader`` and gguf-split.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from ..errors import GGUFError
from . import limits
from .header import Header, parse_header
from .mapped import Mapped, read_bytes
from .types import TensorInfo

SPLIT_NO, SPLIT_COUNT, SPLIT_TENSORS = "split.no", "split.count", "split.tensors.count"
SPLIT_KEYS = (SPLIT_NO, SPLIT_COUNT, SPLIT_TENSORS)

_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)
_OTHER = "name the first part of a model whose parts lie together in one folder"


def part_path(prefix: Path, no: int, count: int) -> Path:
    """Return the path of part ``no`` (from 0) of ``count``."""
    return prefix.with_name(f"{prefix.name}-{no + 1:05d}-of-{count:05d}.gguf")


def parts_by_name(path: Path) -> list[Path]:
    """Return the paths of all parts if the name is that of one, else the path alone."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        return [path]
    prefix, count = path.with_name(match[1]), int(match[3])
    return [part_path(prefix, i, count) for i in range(count)]


def read_parts(path: Path, *, mmap: bool) -> list[tuple[Mapped, Header]]:
    """Return the file, and the other parts in order if it is the first of a split model.

    Raises:
        GGUFError: a file is not a valid GGUF file, is missing, or is a different part.
    """
    first = _read(path, mmap)
    count, no = _number(first, SPLIT_COUNT, 0), _number(first, SPLIT_NO, 0)
    if count <= 1:  # a merged file keeps a count of 0
        return [first]
    match = _NAME.fullmatch(path.name)
    if no:
        begin = f" '{part_path(path.with_name(match[1]), 0, count).name}'" if match else ""
        raise GGUFError(f"{path}: is part {no + 1} of {count}; name the first part{begin} instead")
    if match is None or (int(match[2]), int(match[3])) != (1, count):
        raise GGUFError(
            f"{path}: is part 1 of {count}, so its name must end in -00001-of-{count:05d}.gguf, "
            f"where the others are looked for by name; rename it"
        )
    parts = [first]
    for i in range(1, count):
        other = part_path(path.with_name(match[1]), i, count)
        if not other.exists():
            raise GGUFError(
                f"{path}: part {i + 1} of {count} is missing: there is no {other}; fetch it"
            )
        parts.append(_read(other, mmap))
        _check_part(path, first, parts[-1], i)
    total, wanted = sum(len(h.tensors) for _, h in parts), _number(first, SPLIT_TENSORS, -1)
    if total != wanted:
        raise GGUFError(
            f"{path}: its {count} parts hold {total} tensors, {SPLIT_TENSORS} is {wanted}; {_OTHER}"
        )
    return parts


def all_tensors(parts: list[tuple[Mapped, Header]]) -> dict[str, TensorInfo]:
    """Return the tensors of all parts by name. Raises: GGUFError: a name occurs twice."""
    tensors = parts[0][1].tensors
    for i, (mapped, header) in enumerate(parts[1:], 1):
        double = tensors.keys() & header.tensors.keys()
        if double:
            raise GGUFError(
                f"{mapped.path}: tensor {min(double)!r} is in an earlier part too; {_OTHER}"
            )
        tensors |= {name: replace(info, part=i) for name, info in header.tensors.items()}
        if len(tensors) > limits.MAX_TENSORS:
            raise GGUFError(
                f"{mapped.path}: more than {limits.MAX_TENSORS} tensors up to here, the most that "
                f"this reader takes"
            )
    return tensors


def _read(path: Path, mmap: bool) -> tuple[Mapped, Header]:
    mapped = read_bytes(path, mmap=mmap)
    return mapped, parse_header(mapped.data, str(path))


def _number(part: tuple[Mapped, Header], key: str, default: int) -> int:
    value = part[1].metadata.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool):
        kind = part[1].value_types[key].name
        raise GGUFError(f"{part[0].path}: metadata key {key!r} is {kind}, expected an integer")
    return value


def _check_part(
    path: Path, first: tuple[Mapped, Header], part: tuple[Mapped, Header], i: int
) -> None:
    """Check that ``part`` is number ``i`` of the model of ``first``. Raises: GGUFError."""
    if part[1].magic != first[1].magic:
        raise GGUFError(
            f"{part[0].path}: does not belong to {path.name}: it starts with {part[1].magic!r}, "
            f"want {first[1].magic!r}; {_OTHER}"
        )
    wanted = {SPLIT_NO: i, **{k: _number(first, k, -1) for k in (SPLIT_COUNT, SPLIT_TENSORS)}}
    for key, value in wanted.items():
        got = _number(part, key, -1)
        if got != value:
            found = "missing" if key not in part[1].metadata else str(got)
            raise GGUFError(
                f"{part[0].path}: does not belong to {path.name}: {key} is {found}, want {value}; "
                f"{_OTHER}"
            )
    own = {k: v for k, v in part[1].metadata.items() if isinstance(v, str)}
    for key, text in own.items():  # parts may repeat the first one's metadata, never contradict it
        there = first[1].metadata.get(key, text)
        if not isinstance(there, str) or there != text:  # arrays compare item by item
            raise GGUFError(
                f"{part[0].path}: does not belong to {path.name}: {key} is {text!r:.60}, there it "
                f"is {there!r:.60}; {_OTHER}"
            )
