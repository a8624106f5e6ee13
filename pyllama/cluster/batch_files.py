"""Inputs of a batch, its finished parts, and its output: files, without Ray.

    source = scan("in.jsonl")                      # checks each line, BatchFileError names it
    parts = PartFolder("out.jsonl", {"input": source.digest, "--temp": "0.0"})
    with parts.locked():
        todo = parts.unfinished(source)            # [Part(number=0, first=0, n_rows=64, ...), ...]
        parts.write(todo[0], lines)                # a temporary file, synced, renamed
        parts.finish("out.jsonl")                  # all parts, in order, as one file

A part is a range of rows. A file of a part is whole or absent, so a run that was killed continues
with the parts that have none, and each row has one line in the output.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyggml.files import open_regular, read_regular, replacing, write_whole

from ..errors import BatchFileError
from ..inputs.bounded_json import parse_json

COLUMNS = ("prompt", "messages", "body")
"""Of which a row has one: a text, a conversation, or the body of a request (OpenAI's batches)."""
_MAX_LINE, _MAX_VALUES = 64 << 20, 1 << 20
_DESCRIPTION = "run.json"
_PART = re.compile(r"part-[0-9]{8}\.jsonl")


@dataclass(frozen=True)
class Part:
    """A range of rows.

    Attributes:
        number: of the part.
        first: index of its first row.
        n_rows: number of rows.
        offset: byte in a JSONL file at which its first row begins.
    """

    number: int
    first: int
    n_rows: int
    offset: int


@dataclass(frozen=True)
class Source:
    """An input file that was looked through.

    Attributes:
        path: of the file.
        n_rows: number of inputs.
        digest: of the content.
        offsets: bytes at which rows begin, empty for parquet.
    """

    path: str
    n_rows: int
    digest: str
    offsets: Sequence[int]

    def parts(self, n_rows: int) -> list[Part]:
        """The input in parts of ``n_rows`` rows."""
        return [
            Part(
                number,
                first,
                min(n_rows, self.n_rows - first),
                self.offsets[first] if self.offsets else 0,
            )
            for number, first in enumerate(range(0, self.n_rows, n_rows))
        ]


def is_parquet(path: str | Path) -> bool:
    """Whether a file's name ends with ``.parquet``."""
    return str(path).endswith(".parquet")


def scan(path: str, limit: int | None = None) -> Source:
    """Look through an input file.

    Args:
        path: JSON lines, or parquet if its name ends so.
        limit: number of rows that count; None for all.

    Raises:
        BatchFileError: a line that is no JSON object, or the first row has no known column.
        OSError: it cannot be read.
    """
    return _scan_parquet(path, limit) if is_parquet(path) else _scan_lines(path, limit)


def _scan_lines(path: str, limit: int | None) -> Source:
    digest, offsets = hashlib.blake2b(digest_size=16), list[int]()
    for number, offset, line in _lines(path, 0):
        if limit is not None and len(offsets) >= limit:
            break
        if not line.strip():
            continue
        row = _parsed(path, number, line)
        if not offsets:
            _check_columns(path, list(row))
        digest.update(line)
        offsets.append(offset)
    return Source(path, len(offsets), digest.hexdigest(), offsets)


def _lines(path: str, offset: int) -> Iterator[tuple[int, int, bytes]]:
    """Number (from 1), offset and bytes of each line from ``offset`` on."""
    with open_regular(path) as raw, open(raw.fileno(), "rb", closefd=False) as file:
        file.seek(offset)
        number = 0
        while line := file.readline(_MAX_LINE):
            number += 1
            if len(line) == _MAX_LINE:
                raise BatchFileError(f"{path}: line {number} has more than {_MAX_LINE >> 20} MiB")
            yield number, offset, line
            offset += len(line)


def _parsed(path: str, number: int, line: bytes) -> dict[str, Any]:
    try:
        row = parse_json(line, _MAX_VALUES)
    except (ValueError, MemoryError) as error:
        text = " ".join(str(error).split())[:200]
        raise BatchFileError(f"{path}: line {number} is not JSON: {text}") from None
    if not isinstance(row, dict):
        raise BatchFileError(f"{path}: line {number} is {type(row).__name__}, not a JSON object")
    return row


def _check_columns(path: str, columns: Sequence[str]) -> None:
    if not set(COLUMNS) & set(columns):
        found = ", ".join(map(str, columns[:20])) or "none"
        raise BatchFileError(
            f"{path}: no column is named {', '.join(COLUMNS[:-1])} or {COLUMNS[-1]}; "
            f"the columns are: {found}"
        )


def _scan_parquet(path: str, limit: int | None) -> Source:
    import pyarrow.parquet

    digest = hashlib.blake2b(digest_size=16)
    with open_regular(path) as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    try:
        table = pyarrow.parquet.ParquetFile(path)
    except (OSError, ValueError) as error:
        text = " ".join(str(error).split())[:200]
        raise BatchFileError(f"{path}: not a parquet file: {text}") from None
    _check_columns(path, table.schema_arrow.names)
    n_rows = table.metadata.num_rows
    return Source(path, n_rows if limit is None else min(n_rows, limit), digest.hexdigest(), ())


def read_part(path: str, part: Part) -> list[dict[str, Any]]:
    """The rows of a part. Raises: BatchFileError, OSError."""
    rows = list(_parquet_rows(path, part) if is_parquet(path) else _line_rows(path, part))
    if len(rows) != part.n_rows:
        raise BatchFileError(f"{path}: the file has changed since the run began")
    return rows


def _line_rows(path: str, part: Part) -> Iterator[dict[str, Any]]:
    n_left = part.n_rows
    for number, _, line in _lines(path, part.offset):
        if line.strip():
            yield _parsed(path, number, line)
            n_left -= 1
        if not n_left:
            return


def _parquet_rows(path: str, part: Part) -> Iterator[dict[str, Any]]:
    """The rows of a part, from the row groups that have some of them."""
    import pyarrow.parquet

    table = pyarrow.parquet.ParquetFile(path)
    names = [name for name in table.schema_arrow.names if name in (*COLUMNS, *IDS, "url", "method")]
    begin, end = 0, part.first + part.n_rows
    for group in range(table.num_row_groups):
        n = table.metadata.row_group(group).num_rows
        first, last = max(part.first, begin), min(end, begin + n)
        if first < last:
            rows = table.read_row_group(group, columns=names)
            yield from rows.slice(first - begin, last - first).to_pylist()
        begin += n


IDS = ("custom_id", "id")
"""Columns whose value an output line repeats; without one it has the row's number."""


class PartFolder:
    """The finished parts of a run, in a folder beside its output.

    Args:
        output: the output file; the folder has its name and ``.parts``.
        key: what the result depends on, by names that a message can show.
    """

    def __init__(self, output: str | Path, key: Mapping[str, str]) -> None:
        self.output, self.key = Path(output), dict(key)
        self.folder = self.output.with_name(self.output.name + ".parts")
        self.n_rows = 0  # of a part

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder against another run. Raises: BatchFileError, OSError."""
        import fcntl

        self.folder.mkdir(exist_ok=True)
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BatchFileError(f"{self.folder}: another run is writing there") from None
            yield
        finally:
            os.close(descriptor)

    @property
    def begun(self) -> bool:
        """Whether the folder has a run's description."""
        return (self.folder / _DESCRIPTION).exists()

    def restart(self) -> None:
        """Delete the finished parts and the output."""
        self._delete_parts()
        self.output.unlink(missing_ok=True)

    def unfinished(self, source: Source, n_rows: int) -> list[Part]:
        """The parts without a file.

        Args:
            n_rows: rows of a part, if the run has not begun yet.

        Raises:
            BatchFileError: the folder belongs to other inputs or options.
        """
        path = self.folder / _DESCRIPTION
        if not self.begun:
            text = json.dumps({"key": self.key, "rows_per_part": n_rows}, indent=1)
            write_whole(path, text.encode())
        found = json.loads(read_regular(path, 1 << 20))
        before = found["key"]
        names = sorted({*before, *self.key})
        other = [name for name in names if before.get(name) != self.key.get(name)]
        if other:
            raise BatchFileError(
                f"{self.folder} has parts of a run with another {', '.join(other)}; give the "
                "options of that run to continue it, or delete the folder to begin again"
            )
        self.n_rows = found["rows_per_part"]
        return [part for part in source.parts(self.n_rows) if not self._path(part).exists()]

    def write(self, part: Part, lines: Sequence[str]) -> None:
        """Write a part. Raises: OSError, such as a full disk."""
        assert len(lines) == part.n_rows
        text = "".join(f"{line}\n" for line in lines)
        write_whole(self._path(part), text.encode("utf-8", "replace"))

    def finish(self, source: Source) -> None:
        """Write the output and delete the parts, and the folder if nothing else is in it.

        Raises:
            OSError: the output cannot be written.
        """
        parts = source.parts(self.n_rows)
        with replacing(self.output) as temporary:
            if is_parquet(self.output):
                _write_parquet(temporary, [self._path(part) for part in parts])
            else:
                with open(temporary, "wb") as file:
                    for part in parts:
                        with open_regular(self._path(part)) as raw:
                            shutil.copyfileobj(raw, file)
        self._delete_parts()
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def _delete_parts(self) -> None:
        for path in self.folder.iterdir():
            if path.name == _DESCRIPTION or _PART.fullmatch(path.name):
                path.unlink()

    def _path(self, part: Part) -> Path:
        return self.folder / f"part-{part.number:08d}.jsonl"


def _write_parquet(path: Path, parts: Sequence[Path]) -> None:
    """Write the lines of parts as rows; values that are no numbers or texts are JSON texts."""
    import pyarrow
    import pyarrow.parquet

    texts = ("id", "text", "finish_reason", "error", "custom_id", "response")
    numbers = ("prompt_tokens", "completion_tokens")
    schema = pyarrow.schema(
        [*((name, pyarrow.string()) for name in texts), *((n, pyarrow.int64()) for n in numbers)]
    )
    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        for part in parts:
            rows = [json.loads(line) for line in part.read_bytes().splitlines()]
            columns = {
                name: [_cell(row.get(name), is_text=name in texts) for row in rows]
                for name in schema.names
            }
            writer.write_table(pyarrow.table(columns, schema=schema))


def _cell(value: Any, *, is_text: bool) -> Any:
    if value is None or not is_text or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)
