"""How benchmark rows are printed: llama-bench's Markdown, CSV, JSON, JSON lines and SQL.

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
    """One form of output; each method returns text that ends where the next one's begins.

    Args:
        extra_fields: fields that differ from their defaults, for a form that leaves some out.
    """

    def __init__(self, extra_fields: Sequence[str]) -> None:
        self.extra_fields = extra_fields

    def header(self) -> str:
        """What stands before the rows."""
        return ""

    def row(self, row: Row) -> str:
        """One case."""
        raise NotImplementedError

    def footer(self) -> str:
        """What stands after the rows."""
        return ""


class Markdown(Printer):
    """A table for people; a field that has its default is left out."""

    _WIDTHS: ClassVar = {"model": -30, "size": 10, "params": 10, "backend": -10, "n_threads": 7,
               "n_batch": 7, "n_ubatch": 8, "type_k": 6, "type_v": 6, "flash_attn": 3,
               "test": 15, "t/s": 20}  # fmt: skip
    _NAMES: ClassVar = {"n_threads": "threads", "flash_attn": "fa"}

    def __init__(self, extra_fields: Sequence[str]) -> None:
        super().__init__(extra_fields)
        self._fields = [
            *("model", "size", "params", "backend", "n_threads"),
            *extra_fields,
            *("test", "t/s"),
        ]
        self._build = ""

    def header(self) -> str:
        """Names and the line below them."""
        names = {f: self._NAMES.get(f, f) for f in self._fields}
        rule = (
            "-" * (abs(self._WIDTHS[f]) - 1) + (":" if self._WIDTHS[f] > 0 else "-")
            for f in self._fields
        )
        return self._line(names) + "|" + "|".join(f" {dashes} " for dashes in rule) + "|\n"

    def row(self, row: Row) -> str:
        """One case."""
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
        """Which build was measured."""
        return self._build

    def _line(self, values: Row) -> str:
        cells = (
            f"{values[f]!s:{'>' if self._WIDTHS[f] > 0 else '<'}{abs(self._WIDTHS[f])}}"
            for f in self._fields
        )
        return "|" + "|".join(f" {cell} " for cell in cells) + "|\n"


class Csv(Printer):
    """Comma-separated values, all quoted, with a line of names."""

    _named = False

    def row(self, row: Row) -> str:
        """One case."""
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
        """The opening bracket."""
        return "[\n"

    def row(self, row: Row) -> str:
        """One case."""
        text = json.dumps(row, indent=2, default=list).replace("\n", "\n  ")
        separator, self._separator = self._separator, ",\n"
        return f"{separator}  {text}"

    def footer(self) -> str:
        """The closing bracket."""
        return "\n]\n"


class JsonLines(Printer):
    """One object a line."""

    def row(self, row: Row) -> str:
        """One case."""
        return json.dumps(row, default=list) + "\n"


class Sql(Printer):
    """Statements that make a table and fill it."""

    _made = False

    def row(self, row: Row) -> str:
        """One case."""
        values = {name: text.replace("'", "''") for name, text in _texts(row).items()}
        names, quoted = ", ".join(values), ", ".join(f"'{text}'" for text in values.values())
        insert = f"INSERT INTO llama_bench ({names}) VALUES ({quoted});\n"
        made, self._made = self._made, True
        return insert if made else self._table({name: row[name] for name in values}) + insert

    def _table(self, row: Row) -> str:
        kinds = {str: "TEXT", float: "REAL"}
        columns = (f"  {name} {kinds.get(type(v), 'INTEGER')}" for name, v in row.items())
        return "CREATE TABLE IF NOT EXISTS llama_bench (\n" + ",\n".join(columns) + "\n);\n\n"


PRINTERS: dict[str, type[Printer]] = {
    "md": Markdown, "csv": Csv, "json": Json, "jsonl": JsonLines, "sql": Sql,
}  # fmt: skip


def comparison_table(found: Comparison, paths: tuple[Path, Path]) -> str:
    """Markdown: a line for each test of both files; above it what differs, below it what lacks."""
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
        f"{n} of {name}'s tests {'is' if n == 1 else 'are'} not in {other}"
        for n, name, other in zip(found.alone, "AB", "BA", strict=True) if n
    ]  # fmt: skip
    parts = ["\n".join(heads), "\n".join(lines), *(["\n".join(tails)] if tails else [])]
    return "\n\n".join(parts) + "\n"


def _texts(row: Row) -> dict[str, str]:
    """Values as llama-bench writes them where all is text."""

    def text(value: Any) -> str:
        if isinstance(value, float):
            return f"{value:.6f}"
        return str(int(value) if isinstance(value, bool) else value)

    return {name: text(value) for name, value in row.items() if name not in _SAMPLES}


def test_name(row: Row) -> str:
    """``pp512``, ``tg128``, ``pp512+tg128``; with `` @ d4096`` behind a filled context."""
    parts = [f"pp{row['n_prompt']}"] if row["n_prompt"] else []
    parts += [f"tg{row['n_gen']}"] if row["n_gen"] else []
    return "+".join(parts) + (f" @ d{row['n_depth']}" if row["n_depth"] else "")


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 2**20:.2f} MiB" if n_bytes < 2**30 else f"{n_bytes / 2**30:.2f} GiB"


def _count(n: int) -> str:
    return f"{n / 1e6:.2f} M" if n < 10**9 else f"{n / 1e9:.2f} B"
