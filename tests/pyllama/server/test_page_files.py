"""The files of the pages, and the headers that keep foreign scripts out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pyllama.server.page import files as page_files
from pyllama.server.page.files import page_file

FOLDER = Path(page_files.__file__).parent
FILES = sorted(p for p in FOLDER.rglob("*") if p.suffix in (".js", ".css", ".html", ".svg"))
OWN = [p for p in FILES if p.parent.name != "vendor"]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_every_file_is_served(path: Path) -> None:
    name = path.relative_to(FOLDER).as_posix()
    address = {"index.html": "", "graph.html": "graph"}.get(name, f"page/{name}")
    file = page_file(address)
    assert file is not None and file.body == path.read_bytes()
    assert file.headers["X-Content-Type-Options"] == "nosniff" and file.headers["ETag"]
    if path.suffix == ".html":
        policy = file.headers["Content-Security-Policy"]
        script = re.search(r"script-src ([^;]*);", policy)
        assert "default-src 'none'" in policy and script is not None
        assert "unsafe" not in script[1] and "frame-ancestors 'none'" in policy


@pytest.mark.parametrize(
    "path",
    ["page/", "page/../page_files.py", "page/index.html", "page/vendor/marked.LICENSE",
     "../page_files.py", "page//chat.js", "page/%2e%2e/options.py", "chat.js", "page\\chat.js"],
)  # fmt: skip
def test_nothing_else_is_served(path: str) -> None:
    assert page_file(path) is None


@pytest.mark.parametrize("path", OWN, ids=lambda p: p.name)
def test_pages_load_only_files_that_exist_here(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    known = re.sub(r'"http://www\.w3\.org/[^"]*"', "", text)
    assert not re.search(r"https?://", known.replace("HTTPS", ""))
    for found in re.findall(r'(?:from|import)\s*\(?"(\./[^"]+)"', text):
        assert (path.parent / found).is_file(), found
    for found in re.findall(r'(?:src|href)="(page/[^"#]+)', text):
        assert (FOLDER.parent / found).is_file(), found


def test_icons_and_ids_that_scripts_name_exist() -> None:
    icons = set(re.findall(r'symbol id="(\w+)"', (FOLDER / "icons.svg").read_text()))
    texts = [p.read_text(encoding="utf-8") for p in OWN]
    used = {
        name
        for t in texts
        for name in re.findall(r"icons\.svg#(\w+)\"|icon(?:Button)?\(\"(\w+)\"", t)
    }
    assert {a or b for a, b in used} <= icons


def test_no_script_writes_html() -> None:
    """Untrusted text becomes text nodes; nothing parses it."""
    forbidden = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|eval\("
    )
    assert not [p.name for p in OWN if forbidden.search(p.read_text(encoding="utf-8"))]
