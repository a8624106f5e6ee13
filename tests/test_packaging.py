"""The installed files: every package, the types, the scripts."""

from __future__ import annotations

import ast
import importlib
import re
import sys
import tomllib
from pathlib import Path

import click
import pytest

from .statements import statements

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_every_folder_with_code_is_a_package() -> None:
    """``find_packages`` leaves out a folder without ``__init__.py``, and only a wheel shows it."""
    folders = {
        p.parent for name in ("pyggml", "pyllama", "cli") for p in (ROOT / name).rglob("*.py")
    }
    assert not [f.relative_to(ROOT) for f in folders if not (f / "__init__.py").exists()]


def test_types_are_shipped() -> None:
    assert all((ROOT / name / "py.typed").exists() for name in ("pyggml", "pyllama"))


def test_files_that_are_not_code_are_shipped() -> None:
    """Data files that modules read are listed in package-data."""
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    shipped = tool["setuptools"]["package-data"]
    for name in ("pyggml", "pyllama"):
        assert all((ROOT / name / path).exists() for path in shipped[name])
        found = {p for p in (ROOT / name).rglob("*") if p.suffix in (".js", ".css", ".html")}
        assert {p.relative_to(ROOT / name).as_posix() for p in found} <= set(shipped[name])


@pytest.mark.parametrize("script", PROJECT["scripts"].items(), ids=lambda s: s[0])
def test_scripts_are_commands(script: tuple[str, str]) -> None:
    module, _, attribute = script[1].partition(":")
    assert isinstance(getattr(importlib.import_module(module), attribute), click.Command)


def test_imported_packages_are_dependencies() -> None:
    """All of them, so that a plain install is complete, except those of extras."""
    imported = set()
    for path in (p for name in ("pyggml", "pyllama", "cli") for p in (ROOT / name).rglob("*.py")):
        for node in statements(path.read_text(encoding="utf-8")):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                imported.add(node.module.split(".")[0])
    imported = {"pyyaml" if name == "yaml" else name for name in imported}
    imported -= {*sys.stdlib_module_names, "pyggml", "pyllama", "pyllama_cli"}
    extras = [
        d for name in ("hf", "server", "cluster") for d in PROJECT["optional-dependencies"][name]
    ]
    optional = {re.split(r"[\[>]", d)[0].replace("-", "_") for d in extras}
    assert imported - optional - {"cuda"} == {d.split(">=")[0] for d in PROJECT["dependencies"]}


def test_llvmlite_and_numba_are_pinned_below_their_next_minor() -> None:
    bounds = {d.split(">=")[0]: d for d in PROJECT["dependencies"]}
    for name in ("llvmlite", "numba"):
        low, high = re.findall(r"0\.(\d+)", bounds[name])
        assert int(high) == int(low) + 1


def test_the_changelog_has_an_unreleased_section() -> None:
    assert "## Unreleased" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
