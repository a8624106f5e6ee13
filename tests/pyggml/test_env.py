"""Environment variables: values, cache folders, and the page made from the table."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from pyggml import env, host
from pyggml.errors import PyggmlError

ROOT = Path(__file__).resolve().parents[2]


def test_values_are_read_at_each_access(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYGGML_ISA", raising=False)
    assert env.ISA.get() is None
    monkeypatch.setenv("PYGGML_ISA", "avx2")
    assert env.ISA.get() == "avx2"


@pytest.mark.parametrize(
    ("text", "on"), [("1", True), ("yes", True), ("0", False), ("OFF", False), ("", True)]
)
def test_switches(monkeypatch: pytest.MonkeyPatch, text: str, on: bool) -> None:
    monkeypatch.setenv("PYGGML_FUSION", text)
    assert env.FUSION.enabled() is on


def test_wrong_values_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of switches and numbers; other variables are checked where they are used."""
    switches = [one for one in env.VARIABLES if one.default in ("0", "1")]
    assert env.FUSION in switches and env.TRACEBACK in switches
    for one in switches:
        for text in ("maybe", "2", "-1", "o"):
            monkeypatch.setenv(one.name, text)
            with pytest.raises(PyggmlError, match=f"{one.name} is '{text}', must be 1 or 0"):
                one.enabled()
    for text in ("abc", "0", "-1", "1.5", "4 threads", "9" * 5000, "\u0663"):
        monkeypatch.setenv("PYGGML_NUM_THREADS", text)
        with pytest.raises(PyggmlError, match=r"PYGGML_NUM_THREADS is '.*must be a whole number"):
            host.default_threads()
    monkeypatch.setenv("PYGGML_NUM_THREADS", " 3 ")
    assert host.default_threads() == 3
    monkeypatch.setenv("PYGGML_NUM_THREADS", "")
    assert host.default_threads() > 0


def test_unknown_names(monkeypatch: pytest.MonkeyPatch) -> None:
    assert env.unknown() == []
    monkeypatch.setenv("PYGGML_THREADS", "3")
    monkeypatch.setenv("PYGGML_ISA", "")
    assert env.unknown() == ["PYGGML_THREADS"]


@pytest.mark.parametrize(
    ("platform", "variables", "folder"),
    [
        ("linux", {"XDG_CACHE_HOME": "/x"}, "/x/app"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, "/home/me/.cache/app"),
        ("darwin", {}, "/home/me/Library/Caches/app"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/app"),
        ("win32", {}, "/home/me/AppData/Local/app"),
    ],
)
@pytest.mark.skipif(sys.platform == "win32", reason="POSIX paths")
def test_cache_folder(
    monkeypatch: pytest.MonkeyPatch, platform: str, variables: dict[str, str], folder: str
) -> None:
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/home/me", **variables}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    assert env.user_cache_dir("app") == Path(folder)


def test_folder_of_compiled_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder that the user names is not ours: it may be the home folder."""
    monkeypatch.setenv("PYGGML_CACHE_DIR", str(tmp_path))
    assert env.code_dir() == tmp_path / "pyggml-code"
    monkeypatch.delenv("PYGGML_CACHE_DIR")
    assert env.code_dir() == env.user_cache_dir("pyggml") / "code"


def test_the_page_is_up_to_date() -> None:
    page = (ROOT / "docs" / "env.md").read_text(encoding="utf-8")
    assert page.endswith(env.markdown_table()), "run: python -m pyggml.env > docs/env.md"


def test_variables_are_read_in_env_only() -> None:
    """Except Python's own PYTHONPATH, which cli/__init__ reads before any import."""
    read = re.compile(r"environ\.get\(|environ\[[^]]+\](?! *=[^=])|getenv\(")
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for package in ("pyggml", "pyllama", "cli")
        for path in (ROOT / package).rglob("*.py")
        if path not in (ROOT / "pyggml" / "env.py", ROOT / "cli" / "__init__.py")
        for match in read.finditer(path.read_text(encoding="utf-8"))
    ]
    assert not found


def test_every_variable_is_in_the_table() -> None:
    declared = {v for v in vars(env).values() if isinstance(v, env.Variable)}
    assert declared == set(env.VARIABLES)
