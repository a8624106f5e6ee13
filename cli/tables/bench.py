"""Prints benchmark rows in llama-bench's formats: Markdown, CSV, JSON, JSON lines and SQL.

    printer = PRINTERS["md"](extra_fields=["n_batch"])
    print(next(printer) + printer.send(row) + printer.send(None), end="")

A printer is a generator of texts: of what is before the rows, of each row sent, and for None of
what is after them. A row is a mapping with llama-bench's field names, in its order.
Source: llama.cpp, ``llama-bench.cpp``, ``markdown_printer`` and its siblings.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyllama.bench.compare import Comparison

Row = Mapping[str, Any]
Printer = Generator[str, Row | None, None]
_SAMPLES = ("samples_ns", "samples_ts")  # not in CSV and SQL
_WIDTHS = {
    "model": -30, "size": 10, "params": 10, "backend": -10, "n_threads": 7, "n_batch": 7,
    "n_ubatch": 8, "type_k": 6, "type_v": 6, "flash_attn": 3, "no_kv_offload": 4, "test": 15,
    "t/s": 20,
}  # fmt: skip
_NAMES = {"n_threads": "threads", "flash_attn": "fa", "no_kv_offload": "nkvo"}


def _markdown(extra_fields: Sequence[str]) -> Printer:
    """A table of some fields, and of ``extra_fields``, which are not the default."""
    fields = ("model", "size", "params", "backend", "n_threads", *extra_fields, "test", "t/s")
    widths = {name: _WIDTHS[name] for name in fields}

    def line(values: Row) -> str:
        cells = (
            f"{_plain(values[name])!s:{'>' if width > 0 else '<'}{abs(width)}}"
            for name, width in widths.items()
        )
        return "|" + "|".join(f" {cell} " for cell in cells) + "|\n"

    rule = ("-" * (abs(width) - 1) + (":" if width > 0 else "-") for width in widths.values())
    names = line({name: _NAMES.get(name, name) for name in fields})
    row = yield names + "|" + "|".join(f" {dashes} " for dashes in rule) + "|\n"
    build = ""
    while row is not None:
        build = f"\nbuild: {row['build_commit']} ({row['build_number']})\n"
        shown = {
            "model": row["model_type"],
            "size": _size(row["model_size"]),
            "params": _count(row["model_n_params"]),
            "backend": row["backends"],
            "test": test_name(row),
            "t/s": f"{row['avg_ts']:.2f} ± {row['stddev_ts']:.2f}",
        }
        row = yield line({**row, **shown})
    yield build


def _csv(extra_fields: Sequence[str]) -> Printer:
    """Values in quotes, with a line of names."""
    row, names = (yield ""), True
    while row is not None:
        values, text = _texts(row), io.StringIO()
        csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerow(values.values())
        head, names = (",".join(values) + "\n" if names else ""), False
        row = yield head + text.getvalue()
    yield ""


def _json(extra_fields: Sequence[str]) -> Printer:
    """One array of objects."""
    row, separator = (yield "[\n"), "  "
    while row is not None:
        text = json.dumps(row, indent=2, default=list).replace("\n", "\n  ")
        row, separator = (yield separator + text), ",\n  "
    yield "\n]\n"


def _json_lines(extra_fields: Sequence[str]) -> Printer:
    """An object per line."""
    row = yield ""
    while row is not None:
        row = yield json.dumps(row, default=list) + "\n"
    yield ""


def _sql(extra_fields: Sequence[str]) -> Printer:
    """Statements that create a table and insert the rows."""
    row, table = (yield ""), ""
    while row is not None:
        values = {name: text.replace("'", "''") for name, text in _texts(row).items()}
        names, quoted = ", ".join(values), ", ".join(f"'{text}'" for text in values.values())
        insert = f"INSERT INTO llama_bench ({names}) VALUES ({quoted});\n"
        if not table:
            kinds = {str: "TEXT", float: "REAL"}
            columns = (f"  {name} {kinds.get(type(row[name]), 'INTEGER')}" for name in values)
            table = "CREATE TABLE IF NOT EXISTS llama_bench (\n" + ",\n".join(columns) + "\n);\n\n"
            insert = table + insert
        row = yield insert
    yield ""


PRINTERS: dict[str, Callable[[Sequence[str]], Printer]] = {
    "md": _markdown, "csv": _csv, "json": _json, "jsonl": _json_lines, "sql": _sql,
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
    plain = {name: _plain(value) for name, value in row.items() if name not in _SAMPLES}
    return {k: f"{v:.6f}" if isinstance(v, float) else str(v) for k, v in plain.items()}


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
