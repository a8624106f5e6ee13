"""llama-bench's lists and its four forms of output."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import click
import pytest

from pyllama_cli.bench_table import PRINTERS
from pyllama_cli.commands.bench import IntList

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
def test_lists(text: str, values: list[int]) -> None:
    assert IntList(0).convert(text, None, None) == values


@pytest.mark.parametrize("text", ["", "x", "3-1", "0-4*2", "1-4*1", "1-4+0", "1-9999999", "-3"])
def test_lists_that_are_none(text: str) -> None:
    with pytest.raises(click.BadParameter):
        IntList(0).convert(text, None, None)


def render(form: str, *rows: dict[str, Any], extra: tuple[str, ...] = ()) -> str:
    printer = PRINTERS[form](extra)
    return printer.header() + "".join(map(printer.row, rows)) + printer.footer()


def test_markdown_is_llama_benchs() -> None:
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
