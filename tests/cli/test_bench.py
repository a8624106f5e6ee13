"""llama-bench's lists and output formats, and comparisons."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from pyllama_cli.commands.bench import command
from pyllama_cli.options.bench_lists import TYPE_LIST, int_list
from pyllama_cli.tables.bench import PRINTERS

ROW: dict[str, Any] = {
    "build_commit": "0.1.0",
    "build_number": 1,
    "cpu_info": 'A "fast" CPU',
    "backends": "CPU",
    "model_filename": "x.gguf",
    "model_type": "llama 135M Q4_1",
    "model_size": 96_500_000,
    "model_n_params": 134_515_008,
    "n_batch": 2048,
    "n_ubatch": 512,
    "n_threads": 2,
    "type_k": "f16",
    "type_v": "f16",
    "n_prompt": 512,
    "n_gen": 0,
    "n_depth": 0,
    "test_time": "2026-01-01T00:00:00Z",
    "avg_ns": 100,
    "stddev_ns": 1,
    "avg_ts": 1234.567,
    "stddev_ts": 1.2,
    "samples_ns": [99, 101],
    "samples_ts": [1233.0, 1236.0],
}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("512", [512]),
        ("1,2", [1, 2]),
        ("1-4", [1, 2, 3, 4]),
        ("16-64+16", [16, 32, 48, 64]),
        ("16-100*2", [16, 32, 64]),
        ("0", [0]),
        ("8-8*2", [8]),
    ],
)
def test_int_lists(text: str, values: list[int]) -> None:
    assert int_list(0).convert(text, None, None) == values


@pytest.mark.parametrize(
    "text", ["", "x", "3-1", "0-4*2", "1-4*1", "1-4+0", "1-9999999", "-3", "9" * 5000]
)
def test_invalid_int_lists(text: str) -> None:
    with pytest.raises(click.BadParameter):
        int_list(0).convert(text, None, None)


def render(form: str, *rows: dict[str, Any], extra: tuple[str, ...] = ()) -> str:
    printer = PRINTERS[form](extra)
    return next(printer) + "".join(map(printer.send, (*rows, None)))


def test_markdown_matches_llama_bench() -> None:
    deep = {**ROW, "n_gen": 64, "n_depth": 512, "model_size": 2**31, "model_n_params": 6 * 10**9}
    assert render("md", ROW, deep) == (
        "| model                          |       size |     params | backend    | threads |"
        "            test |                  t/s |\n"
        "| ------------------------------ | ---------: | ---------: | ---------- | ------: |"
        " --------------: | -------------------: |\n"
        "| llama 135M Q4_1                |  92.03 MiB |   134.52 M | CPU        |       2 |"
        "           pp512 |       1234.57 ± 1.20 |\n"
        "| llama 135M Q4_1                |   2.00 GiB |     6.00 B | CPU        |       2 |"
        " pp512+tg64 @ d512 |       1234.57 ± 1.20 |\n"
        "\nbuild: 0.1.0 (1)\n"
    )
    assert "| n_ubatch |" in render("md", ROW, extra=("n_ubatch",))


@pytest.mark.parametrize("n", [0, 1, 2])
def test_json(n: int) -> None:
    assert json.loads(render("json", *[ROW] * n)) == [ROW] * n
    assert [json.loads(line) for line in render("jsonl", *[ROW] * n).splitlines()] == [ROW] * n


def test_csv() -> None:
    rows = list(csv.DictReader(io.StringIO(render("csv", ROW, ROW))))
    assert len(rows) == 2
    assert rows[0]["cpu_info"] == 'A "fast" CPU'
    assert "samples_ns" not in rows[0]


def test_sql_output_can_be_loaded() -> None:
    rows = [ROW, {**ROW, "model_filename": "it's.gguf", "repack": True}]
    with sqlite3.connect(":memory:") as db:
        db.executescript(render("sql", rows[1], rows[1]))
        db.row_factory = sqlite3.Row
        found = db.execute("SELECT * FROM llama_bench").fetchall()
        kinds = dict(db.execute("SELECT name, type FROM pragma_table_info('llama_bench')"))
    assert len(found) == 2
    assert found[0]["model_filename"] == "it's.gguf"
    assert (found[0]["avg_ts"], found[0]["n_prompt"], found[0]["repack"]) == (1234.567, 512, 1)
    assert (kinds["avg_ts"], kinds["n_prompt"], kinds["cpu_info"]) == ("REAL", "INTEGER", "TEXT")


def test_settings_are_columns() -> None:
    row = {**ROW, "type_k": "q8_0", "flash_attn": 1}
    assert "|  fa |" in render("md", row, extra=("type_k", "flash_attn"))
    assert "|   q8_0 |" in render("md", row, extra=("type_k", "flash_attn"))


def test_cache_types() -> None:
    assert TYPE_LIST.convert("F16,q8_0", None, None) == ["f16", "q8_0"]
    with pytest.raises(click.BadParameter):
        TYPE_LIST.convert("f16,", None, None)


def compared(tmp_path: Path, first: list[dict[str, Any]], second: list[dict[str, Any]]) -> Any:
    paths = [tmp_path / "a.jsonl", tmp_path / "b.json"]
    paths[0].write_text(render("jsonl", *first))
    paths[1].write_text(render("json", *second))
    return CliRunner().invoke(command, ["--compare", *map(str, paths)])


def test_comparison(tmp_path: Path) -> None:
    slow = {**ROW, "n_prompt": 0, "n_gen": 64, "samples_ts": [10.0, 11.0, 30.0]}
    fast = {**slow, "samples_ts": [22.0], "n_threads": 4}
    result = compared(tmp_path, [ROW, slow], [fast])
    assert result.exit_code == 0, result.stderr
    assert "n_threads: 2 in A, 4 in B" in result.stdout
    assert "| llama 135M Q4_1 | tg64 | 11.00 | 22.00 | 2.00  |" in result.stdout
    assert "1 test of A is not in B" in result.stdout
    result = compared(tmp_path, [{**ROW, "repack": True}], [{**ROW, "repack": False}])
    assert "repack: True in A, False in B" in result.stdout


def test_rows_are_matched_by_the_settings_that_vary(tmp_path: Path) -> None:
    more = {**ROW, "n_threads": 1, "samples_ts": [617.25]}
    result = compared(tmp_path, [ROW, more], [ROW])
    (line,) = [x for x in result.stdout.splitlines() if "pp512" in x]
    assert "1234.50" in line and line.endswith("| 1.00  |")


@pytest.mark.parametrize(
    "bad",
    [
        {"avg_ts": 0.0}, {"avg_ts": "1"}, {"samples_ts": [float("nan")]}, {"n_gen": [1]},
        {"avg_ts": 1e-320}, {"samples_ts": [2.5, 10**400]},
    ],
)  # fmt: skip
def test_rows_that_cannot_be_compared(tmp_path: Path, bad: dict[str, Any]) -> None:
    result = compared(tmp_path, [{**ROW, **bad}], [ROW])
    assert result.exit_code == 1 and result.stderr.count("\n") == 1
    assert "row 1" in result.stderr


@pytest.mark.parametrize("text", ["", "[]", "3", "[3]", '{"n_prompt": 1}', "no json"])
def test_files_that_cannot_be_compared(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x"
    path.write_text(text)
    result = CliRunner().invoke(command, ["--compare", str(path), str(path)])
    assert result.exit_code == 1 and result.stderr.count("\n") == 1
    assert CliRunner().invoke(command, ["--compare", "none", "none"]).exit_code == 1


def test_files_with_no_test_in_common(tmp_path: Path) -> None:
    result = compared(tmp_path, [ROW], [{**ROW, "n_prompt": 256}])
    assert result.exit_code == 1 and "no test in common" in result.stderr
