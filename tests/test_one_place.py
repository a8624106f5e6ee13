"""docs/architecture.md says which files a change touches; an example of each proves it."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| (an? [^|]+) \| (\d+) \| ([^|]+) \| `([^`]+)` \|", re.MULTILINE)
ROWS = ROW.findall(PAGE)


@cache
def sources() -> dict[str, str]:
    """The text of every module by its path."""
    return {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for package in ("pyggml", "pyllama", "cli")
        for path in sorted((ROOT / package).rglob("*.py"))
    }


def touched(example: str) -> list[str]:
    """The files in which a name is written, as one word, with hyphens or underscores."""
    word = re.sub("[-_]", "[-_]", re.escape(example).replace(r"\-", "-"))
    name = re.compile(rf"(?<![\w-]){word}(?![\w-])", re.IGNORECASE)
    return [path for path, text in sources().items() if name.search(text)]


def listed(places: str) -> re.Pattern[str]:
    """The paths of a cell: ``<name>`` stands for any name."""
    paths = re.findall(r"`([^`]+\.py)`", places)
    return re.compile("|".join(re.sub("<[a-z_]+>", r"[^/]+", re.escape(path)) for path in paths))


def test_the_table_is_read() -> None:
    assert len(ROWS) == len(re.findall(r"^\| an? ", PAGE, re.MULTILINE)) >= 8


@pytest.mark.parametrize(("change", "n_files", "places", "example"), ROWS, ids=lambda x: x[:20])
def test_a_change_touches_the_files_that_the_page_lists(
    change: str, n_files: str, places: str, example: str
) -> None:
    files = touched(example)
    assert files and len(files) <= int(n_files), files
    assert not [file for file in files if not listed(places).fullmatch(file)], change
