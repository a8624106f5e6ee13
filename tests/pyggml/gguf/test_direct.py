"""Reads past the page cache give a file's bytes."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from pyggml.gguf import GGUFError
from pyggml.gguf.direct import DirectFile, page_aligned


@pytest.fixture(params=["direct", "cached"])
def path(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if request.param == "cached":
        monkeypatch.delattr(os, "O_DIRECT", raising=False)
    path = tmp_path / "x"
    path.write_bytes(np.random.default_rng(0).bytes(3 * 4096 + 77))
    return path


def test_any_range_is_read(path: Path) -> None:
    file, data, buffer = DirectFile(path), path.read_bytes(), page_aligned(3 * 4096 + 77)
    for start, n in ((0, 1), (0, len(data)), (4095, 2), (4096, 4096), (7, 9000), (12287, 78)):
        assert file.read(start, n, buffer).tobytes() == data[start : start + n]


def test_a_shorter_file_is_an_error(path: Path) -> None:
    file, buffer = DirectFile(path), page_aligned(8192)
    os.truncate(path, 5000)
    assert len(file.read(4000, 1000, buffer)) == 1000
    with pytest.raises(GGUFError, match="ends within a tensor"):
        file.read(4000, 1001, buffer)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(GGUFError, match="cannot be opened"):
        DirectFile(tmp_path / "x")
