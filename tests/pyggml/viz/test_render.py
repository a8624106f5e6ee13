"""SVG through graphviz: errors with advice, and files that are written completely."""

from __future__ import annotations

import shutil
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from pyggml.errors import PyggmlError
from pyggml.viz import graph_dump_dot, render_svg

from .graphs import llama_graph

SVG = "{http://www.w3.org/2000/svg}"
needs_graphviz = pytest.mark.skipif(shutil.which("dot") is None, reason="graphviz is not installed")
needs_scripts = pytest.mark.skipif(sys.platform == "win32", reason="a shell script stands for dot")


def fake_dot(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "bin" / "dot"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")


@needs_graphviz
def test_a_picture_has_every_box_and_edge(tmp_path: Path) -> None:
    graph, path = llama_graph(), tmp_path / "x.svg"
    text = graph_dump_dot(graph)
    render_svg(text, path)
    groups = [g.get("class") for g in ElementTree.parse(path).iter(f"{SVG}g")]
    assert groups.count("edge") == text.count("->") and groups.count("cluster") == 2
    assert [p.name for p in tmp_path.iterdir()] == ["x.svg"]


def test_without_graphviz(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PyggmlError, match=r"apt-get install graphviz.*brew install graphviz"):
        render_svg("digraph {}", tmp_path / "x.svg")


@needs_scripts
def test_a_failure_leaves_the_old_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.svg"
    path.write_text("old")
    fake_dot(tmp_path, "echo half; echo 'Warning: x' >&2; echo 'Error: syntax' >&2; exit 1",
             monkeypatch)  # fmt: skip
    with pytest.raises(PyggmlError, match=r"cannot draw .*x.svg: Error: syntax$"):
        render_svg("digraph {", path)
    assert path.read_text() == "old" and len(list(tmp_path.iterdir())) == 2


@needs_scripts
def test_a_layout_that_takes_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_dot(tmp_path, "exec sleep 60", monkeypatch)
    with pytest.raises(PyggmlError, match=r"did not finish within 0.2 s; draw fewer layers"):
        render_svg("digraph {}", tmp_path / "x.svg", timeout=0.2)


@needs_scripts
def test_a_place_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_dot(tmp_path, "cat", monkeypatch)
    render_svg("digraph {}", tmp_path / "x.svg")
    assert (tmp_path / "x.svg").read_text() == "digraph {}"
    with pytest.raises(FileNotFoundError):
        render_svg("digraph {}", tmp_path / "no" / "x.svg")
