"""Where the self-test cannot run: nothing is recorded that other processes would trust."""

from __future__ import annotations

import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from pyggml.backend.cpu import selftest
from pyggml.compiler import jit


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYGGML_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(jit, "code_cache", lru_cache(jit.code_cache.__wrapped__))
    monkeypatch.setattr(jit, "tree_digest", lambda *names: "0")


@pytest.mark.parametrize(
    ("executable", "frozen"),
    [("", False), ("/opt/app/app", True), ("/usr/bin/uwsgi", False), (None, False)],
)
def test_a_python_that_is_no_program_of_its_own(
    executable: str | None, frozen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Starting it would start the program again."""
    monkeypatch.setattr(sys, "executable", executable)
    monkeypatch.setattr(sys, "frozen", frozen, raising=False)
    monkeypatch.setattr(selftest, "_Child", lambda *args: pytest.fail("a child was started"))
    assert selftest._first_working() == jit.host_isas()[0]
    assert [*jit.code_cache(jit.host_isas()[0]).path.iterdir()] == []


def test_what_passed_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Any] = []
    monkeypatch.setattr(selftest, "_try", lambda name: (tried.append(name), "")[1])
    for _ in range(2):
        assert selftest._first_working() == jit.host_isas()[0]
    assert tried == [jit.host_isas()[0]]
