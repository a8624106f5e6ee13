"""Prints benchmark rows in llama-bench's formats: Markdown, CSV, JSON, JSON lines and SQL.

    printer = PRINTERS["md"](extra_fields=["n_batch"])
    print(printer.header() + printer.row(row) + printer.footer(), end="")

A row is a mapping with llama-bench's field names, in its order.
Source: llama.cpp, ``llama-bench.cpp``, ``markdown_printer`` and its siblings.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from pyllama.bench.compare import Comparison

Row = Mapping[str, Any]
_SAMPLES = ("samples_ns", "samples_ts")  # not in CSV and SQL


class Printer:
    """Base of the output formats; the output is header, rows and footer, concatenated.

    Args:
        extra_fields: fields with values other than the default, for a format with few columns.
    """

    def __init__(self, extra_fields: Sequence[str]) -> None:
        self.extra_fields = extra_fields

    def header(self) -> str:
        """Return the text before the rows."""
        return ""

    def row(self, row: Row) -> str:
        """Return the text of one row."""
        raise NotImplementedError

    def footer(self) -> str:
        """Return the text after the rows."""
        return ""


class Markdown(Printer):
    """A Markdown table; fields with default values are left out."""

    _WIDTHS: ClassVar = {"model": -30, "size": 10, "params": 10, "backend": -10, "n_threads": 7,
               "n_batch": 7, "n_ubatch": 8, "type_k": 6, "type_v": 6, "flash_attn": 3,
               "no_kv_offload": 4, "test": 15, "t/s": 20}  # fmt: skip
    _NAMES: ClassVar = {"n_threads": "threads", "flash_attn": "fa", "no_kv_offload": "nkvo"}

    def __init__(self, extra_fields: Sequence[str]) -> None:
        super().__init__(extra_fields)
        self._fields = [
            *("model", "size", "params", "backend", "n_threads"),
            *extra_fields,
            *("test", "t/s"),
        ]
        self._build = ""

    def header(self) -> str:
        """Return the column names and the rule below them."""
        names = {f: self._NAMES.get(f, f) for f in self._fields}
        rule = (
            "-" * (abs(self._WIDTHS[f]) - 1) + (":" if self._WIDTHS[f] > 0 else "-")
            for f in self._fields
        )
        return self._line(names) + "|" + "|".join(f" {dashes} " for dashes in rule) + "|\n"

    def row(self, row: Row) -> str:
        """Return one line of the table."""
        self._build = f"\nbuild: {row['build_commit']} ({row['build_number']})\n"
        return self._line(
            {
                **row,
                "model": row["model_type"],
                "size": _size(row["model_size"]),
                "params": _count(row["model_n_params"]),
                "backend": row["backends"],
                "test": test_name(row),
                "t/s": f"{row['avg_ts']:.2f} ± {row['stddev_ts']:.2f}",
            }
        )

    def footer(self) -> str:
        """Return the line with the measured build."""
        return self._build

    def _line(self, values: Row) -> str:
        cells = (
            f"{_plain(values[f])!s:{'>' if self._WIDTHS[f] > 0 else '<'}{abs(self._WIDTHS[f])}}"
            for f in self._fields
        )
        return "|" + "|".join(f" {cell} " for cell in cells) + "|\n"


class Csv(Printer):
    """Comma-separated values, all quoted, with a header line."""

    _named = False

    def row(self, row: Row) -> str:
        """Return one line, after the first also the header."""
        values = _texts(row)
        text = io.StringIO()
        csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerow(values.values())
        names = "" if self._named else ",".join(values) + "\n"
        self._named = True
        return names + text.getvalue()


class Json(Printer):
    """One array of objects."""

    _separator = ""

    def header(self) -> str:
        """Return the opening bracket."""
        return "[\n"

    def row(self, row: Row) -> str:
        """Return one object, with a separator before all but the first."""
        text = json.dumps(row, indent=2, default=list).replace("\n", "\n  ")
        separator, self._separator = self._separator, ",\n"
        return f"{separator}  {text}"

    def footer(self) -> str:
        """Return the closing bracket."""
        return "\n]\n"


class JsonLines(Printer):
    """One JSON object per line."""

    def row(self, row: Row) -> str:
        """Return one line."""
        return json.dumps(row, default=list) + "\n"


class Sql(Printer):
    """SQL statements that create a table and insert the rows."""

    _has_table = False

    def row(self, row: Row) -> str:
        """Return an INSERT statement; the first call also creates the table."""
        values = {name: text.replace("'", "''") for name, text in _texts(row).items()}
        names, quoted = ", ".join(values), ", ".join(f"'{text}'" for text in values.values())
        insert = f"INSERT INTO llama_bench ({names}) VALUES ({quoted});\n"
        has_table, self._has_table = self._has_table, True
        return insert if has_table else self._table({name: row[name] for name in values}) + insert

    def _table(self, row: Row) -> str:
        kinds = {str: "TEXT", float: "REAL"}
        columns = (f"  {name} {kinds.get(type(v), 'INTEGER')}" for name, v in row.items())
        return "CREATE TABLE IF NOT EXISTS llama_bench (\n" + ",\n".join(columns) + "\n);\n\n"


PRINTERS: dict[str, type[Printer]] = {
    "md": Markdown, "csv": Csv, "json": Json, "jsonl": JsonLines, "sql": Sql,
}  # fmt: skip


def comparison_table(found: Comparison, paths: tuple[Path, Path]) -> str:
    """Return a Markdown table of the tests in both files.

    Different settings are listed before the table, tests of only one file after it.
    """
    heads = [f"A: {paths[0]}", f"B: {paths[1]}"]
    heads += [f"{name}: {a} in A, {b} in B" for name, (a, b) in found.differs.items()]
    settings = [name for name in found.rows[0].key if name not in ("n_prompt", "n_gen", "n_depth")]
    table = [("model", *settings, "test", "A t/s", "B t/s", "B / A")]
    for row in found.rows:
        speeds = (f"{speed:.2f}" for speed in row.speeds)
        cells = (str(row.key[name]) for name in settings)
        table.append((row.model_type, *cells, test_name(row.key), *speeds, f"{row.ratio:.2f}"))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["| " + " | ".join(map(str.ljust, cells, widths)) + " |" for cells in table]
    lines.insert(1, "| " + " | ".join("-" * width for width in widths) + " |")
    tails = [
        f"{n} {'test' if n == 1 else 'tests'} of {name} {'is' if n == 1 else 'are'} not in {other}"
        for n, name, other in zip(found.alone, "AB", "BA", strict=True) if n
    ]  # fmt: skip
    parts = ["\n".join(heads), "\n".join(lines), *(["\n".join(tails)] if tails else [])]
    return "\n\n".join(parts) + "\n"


def _texts(row: Row) -> dict[str, str]:
    """Return the values as text, as llama-bench writes them to CSV and SQL."""

    def text(value: Any) -> str:
        if isinstance(value, float):
            return f"{value:.6f}"
        return str(int(value) if isinstance(value, bool) else value)

    return {name: text(value) for name, value in row.items() if name not in _SAMPLES}


def test_name(row: Row) -> str:
    """Return ``pp512``, ``tg128`` or ``pp512+tg128``, with `` @ d4096`` for a filled KV cache."""
    parts = [f"pp{row['n_prompt']}"] if row["n_prompt"] else []
    parts += [f"tg{row['n_gen']}"] if row["n_gen"] else []
    return "+".join(parts) + (f" @ d{row['n_depth']}" if row["n_depth"] else "")


def _plain(value: object) -> object:
    """Return a truth value as llama-bench prints it, others unchanged."""
    return int(value) if isinstance(value, bool) else value


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 2**20:.2f} MiB" if n_bytes < 2**30 else f"{n_bytes / 2**30:.2f} GiB"


def _count(n: int) -> str:
    return f"{n / 1e6:.2f} M" if n < 10**9 else f"{n / 1e9:.2f} B"
