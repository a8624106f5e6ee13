"""Compares two files of benchmark rows: the tests they share, and the ratio of their speeds.

    for row in compare(read_rows("before.jsonl"), read_rows("after.jsonl")).rows:
        print(row.key, row.ratio)

Rows are those of `pyllama.bench.bench` or of llama-bench, as JSON or JSON lines. A setting that is
constant within each file but differs between the files (threads, model) is reported as a
difference. Rows are matched by the test and all other settings.
"""

from __future__ import annotations

import os
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyggml.files import read_regular

from ..errors import BenchFileError
from ..inputs.bounded_json import parse_json
from ..inputs.text import utf8

_MAX_BYTES, _MAX_VALUES = 64 << 20, 1 << 21  # a row has about 1 KB and 100 values
_MIN_SPEED, _MAX_SPEED = 1e-9, 1e15  # tokens per second
TEST = ("n_prompt", "n_gen", "n_depth")
SETTINGS = (
    "model_filename", "n_batch", "n_ubatch", "n_threads", "type_k", "type_v", "flash_attn",
    "load_mode", "repack",
)  # fmt: skip
_BUILD = ("cpu_info", "build_commit")
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Compared:
    """A test in both files; ``speeds`` are the medians in tokens per second."""

    key: Mapping[str, Any]
    model_type: str
    speeds: tuple[float, float]

    @property
    def ratio(self) -> float:
        """Speed in the second file / speed in the first."""
        return self.speeds[1] / self.speeds[0]


@dataclass(frozen=True)
class Comparison:
    """The comparison of two files.

    Attributes:
        rows: tests in both files, in the first file's order.
        differs: fields that are constant in each file, but different.
        alone: number of tests only in the first, and only in the second file.
    """

    rows: tuple[Compared, ...]
    differs: Mapping[str, tuple[Any, Any]]
    alone: tuple[int, int]


def read_rows(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the rows of a JSON array or of JSON lines; model paths are reduced to file names.

    Raises:
        BenchFileError: the file cannot be read, is not JSON, or a row lacks a required field.
    """
    try:
        data = utf8(read_regular(path, _MAX_BYTES))
    except OSError as e:
        raise BenchFileError(f"cannot read {path}: {e}") from e
    if not data.lstrip().startswith(b"["):
        data = b"[" + b",\n".join(filter(None, map(bytes.strip, data.splitlines()))) + b"]"
    try:
        rows = parse_json(data, _MAX_VALUES)
    except ValueError as e:
        raise BenchFileError(
            f"{path} is neither JSON nor JSON lines ({e}): create it with -o jsonl"
        ) from e
    if not rows:
        raise BenchFileError(f"{path} has no rows")
    return [_checked(row, f"{path}, row {i}") for i, row in enumerate(rows, 1)]


def _checked(row: Any, where: str) -> dict[str, Any]:
    required = (*TEST, "model_filename", "model_type", "avg_ts")
    if not isinstance(row, dict):
        raise BenchFileError(f"{where}: {type(row).__name__}, must be an object with {required}")
    for name in required:
        if name not in row:
            raise BenchFileError(
                f"{where}: {name!r} is missing; rows must be as llama-bench -o jsonl prints them"
            )
    for speed in (row["avg_ts"], *_samples(row)):
        if not (isinstance(speed, (int, float)) and _MIN_SPEED <= speed <= _MAX_SPEED):
            raise BenchFileError(
                f"{where}: {speed!r:.80} tokens per second, "
                f"must be a number from {_MIN_SPEED:g} to {_MAX_SPEED:g}"
            )
    for name in (*TEST, *SETTINGS, *_BUILD):
        if isinstance(row.get(name), (list, dict)):
            raise BenchFileError(
                f"{where}: {name!r} is {row[name]!r:.80}, must be a number or a string"
            )
    return {**row, "model_filename": Path(str(row["model_filename"])).name}


def _samples(row: Row) -> Sequence[float]:
    samples = row.get("samples_ts", [])
    return samples if isinstance(samples, list) and samples else [row["avg_ts"]]


def compare(first: Sequence[Row], second: Sequence[Row]) -> Comparison:
    """Match the rows of two files; several rows of a test give the median of all samples.

    Raises:
        BenchFileError: the files share no test.
    """
    files = (first, second)
    values = {
        name: [{row.get(name) for row in rows} for rows in files] for name in (*SETTINGS, *_BUILD)
    }
    names = (*TEST, *(n for n in SETTINGS if max(map(len, values[n])) > 1))
    a, b = (_grouped(rows, names) for rows in files)
    rows = [
        Compared(
            dict(zip(names, key, strict=True)),
            str(group[0]["model_type"]),
            (_speed(group), _speed(b[key])),
        )
        for key, group in a.items()
        if key in b
    ]
    differs = {
        name: (next(iter(x)), next(iter(y)))
        for name, (x, y) in values.items()
        if len(x) == len(y) == 1 and x != y
    }
    if not rows:
        raise BenchFileError(
            "the two files have no test in common: measure the same `n_prompt`, `n_gen` and "
            "`n_depth`"
        )
    return Comparison(tuple(rows), differs, (len(a) - len(rows), len(b) - len(rows)))


def _grouped(rows: Sequence[Row], names: Sequence[str]) -> dict[tuple[Any, ...], list[Row]]:
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(row.get(name) for name in names)].append(row)
    return groups


def _speed(rows: Sequence[Row]) -> float:
    return statistics.median(s for row in rows for s in _samples(row))
