"""The models of a folder, and names that are used twice."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from pyllama.errors import ModelError
from pyllama.server.router.catalog import CatalogEntry, checked, find_models


def touch(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")


def test_the_models_of_a_folder(tmp_path: Path, caplog: Any) -> None:
    touch(
        tmp_path,
        "b.gguf", "A.Q4_0.gguf", "mmproj-b.gguf", "mtp-b.gguf", "notes.txt", "._b.gguf",
        "big-00001-of-00003.gguf", "big-00002-of-00003.gguf", "big-00003-of-00003.gguf",
        "split/x-00001-of-00002.gguf", "split/x-00002-of-00002.gguf", "split/other.gguf",
        "seeing/model.gguf", "seeing/mmproj-F16.gguf",
        "empty/readme.md", "deep/er/x.gguf", ".hidden/x.gguf",
        "two/m.gguf", "two/n.gguf",
    )  # fmt: skip
    (tmp_path / "folder.gguf").mkdir()
    os.mkfifo(tmp_path / "pipe.gguf")
    (tmp_path / "link.gguf").symlink_to(tmp_path / "b.gguf")
    (tmp_path / "dangling.gguf").symlink_to(tmp_path / "nothing")
    found = {name: str(path.relative_to(tmp_path)) for name, path in find_models(tmp_path).items()}
    assert found == {
        "A.Q4_0": "A.Q4_0.gguf",
        "b": "b.gguf",
        "big-00001-of-00003": "big-00001-of-00003.gguf",
        "link": "link.gguf",
        "seeing": "seeing/model.gguf",
        "split": "split/x-00001-of-00002.gguf",
        "two": "two/m.gguf",
    }
    assert "two has several models, only m.gguf is listed" in caplog.text


def test_a_folder_and_a_file_of_one_name(tmp_path: Path) -> None:
    touch(tmp_path, "a.gguf", "a/x.gguf")
    with pytest.raises(ModelError, match="a file and a folder for the name a"):
        find_models(tmp_path)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="missing"):
        find_models(tmp_path / "missing")


def test_names_are_used_once() -> None:
    fine = [CatalogEntry("a", aliases=("b", "a")), CatalogEntry("c")]
    assert list(checked(fine)) == ["a", "c"]
    for wrong in (
        [CatalogEntry("a"), CatalogEntry("a")],
        [CatalogEntry("a", aliases=("b",)), CatalogEntry("b")],
        [CatalogEntry("a", aliases=("x",)), CatalogEntry("b", aliases=("x",))],
    ):
        with pytest.raises(ModelError, match="belongs to two models: a, "):
            checked(wrong)
