"""Reads and checks the header of a safetensors file.

    tensors = read_safetensors(Path("model.safetensors"))
    tensors["model.norm.weight"].shape

Guarantees for any input: all tensors lie within the file and do not overlap, or ModelError.
Source: the safetensors format.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from pyggml.files import open_regular

from ...errors import ModelError
from ...inputs.budget import MAX_JSON_BYTES, ReadBudget, shown
from .folder import parse_object, unreadable
from .stored import DTYPES, StoredTensor

LFS_POINTER = b"version https://git-lfs"
INCOMPLETE = "the file is incomplete: download it again"


def lfs_error(path: Path) -> ModelError:
    """Return the error for a git-lfs pointer in place of a file."""
    return ModelError(f"{path}: is a git-lfs pointer: run 'git lfs pull' in the folder")


def read_safetensors(path: Path, budget: ReadBudget | None = None) -> dict[str, StoredTensor]:
    """Return the tensors of a file by name.

    Args:
        budget: limits the size of the header.

    Raises:
        ModelError: the file cannot be read, is damaged or incomplete.
    """
    budget = budget or ReadBudget()
    try:
        with open_regular(path) as file:
            size = file.seek(0, 2)
            file.seek(0)
            head = file.read(8)
            n = int.from_bytes(head, "little")
            if head == LFS_POINTER[:8]:
                raise lfs_error(path)
            if len(head) < 8 or n > size - 8:
                raise ModelError(
                    f"{path}: has {size} bytes, its header {n}; {INCOMPLETE}, "
                    "or it is not a safetensors file"
                )
            if n > MAX_JSON_BYTES:
                raise ModelError(f"{path}: the header has {n} bytes, the limit is {MAX_JSON_BYTES}")
            budget.take("bytes", n, path)
            header = parse_object(path, file.read(n), budget)
    except OSError as error:
        raise unreadable(path, error) from None
    header.pop("__metadata__", None)
    budget.take("tensors", len(header), path)
    tensors, ends = {}, []
    for name, entry in header.items():
        tensors[name], end = _read_entry(path, name, entry, 8 + n)
        ends.append((tensors[name].offset, end, name))
    _check_places(path, ends, size)
    return tensors


def _read_entry(path: Path, name: str, entry: Any, start: int) -> tuple[StoredTensor, int]:
    """Return a tensor and its end offset in the file."""
    who = f"{path}: tensor {shown(name)}"
    if not isinstance(entry, dict):
        raise ModelError(f"{who} is described by {shown(entry)}, must be an object")
    dtype: Any = entry.get("dtype")
    shape: Any = entry.get("shape")
    places: Any = entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ModelError(f"{who} is {shown(dtype)}, known types are {', '.join(DTYPES)}")
    if not _are_sizes(shape) or len(shape) > 8:
        raise ModelError(f"{who} has the shape {shown(shape)}, must be a list of sizes")
    if not _are_sizes(places) or len(places) != 2 or places[0] > places[1]:
        raise ModelError(f"{who} has data_offsets {shown(places)}, must be [begin, end]")
    nbytes = math.prod(shape) * DTYPES[dtype].itemsize
    if places[1] - places[0] != nbytes:
        raise ModelError(
            f"{who} has {places[1] - places[0]} bytes, {dtype} of the shape {shape} needs "
            f"{shown(nbytes)}"
        )
    return StoredTensor(path, start + places[0], dtype, tuple(shape)), start + places[1]


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 2**63 for n in value)


def _check_places(path: Path, places: list[tuple[int, int, str]], size: int) -> None:
    """Check that ranges (begin, end, name) lie in the file and do not overlap."""
    last_end, last = 0, ""
    for begin, end, name in sorted(places):
        if begin < last_end and end > begin:
            raise ModelError(f"{path}: tensors {shown(last)} and {shown(name)} overlap")
        if end > last_end:
            last_end, last = end, name
    if last_end > size:
        raise ModelError(
            f"{path}: has {size} bytes, but its tensors end at byte {last_end}: "
            f"{last_end - size} bytes are missing; {INCOMPLETE}"
        )
