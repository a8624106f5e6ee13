"""The files of the web pages, with the headers that they are served with.

    page_addresses()                               # "", "graph", "page/chat.js", ...
    file = page_file("")                           # index.html; "graph": graph.html
    file.body, file.media_type, file.headers

All files are in the folder ``page`` of this package. They need no build step, and load nothing from
other servers. Their addresses are relative, so any prefix of the server's paths works.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

from pyggml.viz.html import page_script

_PAGES = {"": "index.html", "index.html": "index.html", "graph": "graph.html"}
_MEDIA_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


@dataclass(frozen=True)
class PageFile:
    """A file of the pages.

    Attributes:
        headers: to send besides the content type. ``ETag`` is of the content.
    """

    body: bytes
    media_type: str
    headers: dict[str, str] = field(default_factory=dict)


@cache
def page_file(path: str) -> PageFile | None:
    """Return the file at an address of the server, or None.

    Only names that exist are looked up, so no path leaves the folder.

    Args:
        path: without the prefix of the server and the first slash.
    """
    name = _files().get(path)
    if name is None:
        return None
    body = resources.files(__package__).joinpath(*name.split("/")).read_bytes()
    suffix = name.rpartition(".")[2]
    headers = {
        "Cache-Control": "no-cache",
        "ETag": f'"{hashlib.sha256(body).hexdigest()[:32]}"',
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
    }
    if suffix == "html":
        headers["Content-Security-Policy"] = _policy(drawings=name == "graph.html")
    return PageFile(body, _MEDIA_TYPES[suffix], headers)


def page_addresses() -> list[str]:
    """Return the addresses of all files, for a table of routes."""
    return [*_files()]


@cache
def _files() -> dict[str, str]:
    """Return the names of the files by address: ``page/chat.js`` -> ``chat.js``."""
    found = dict(_PAGES)

    def visit(folder: Traversable, prefix: str) -> None:
        for entry in folder.iterdir():
            name = f"{prefix}{entry.name}"
            if entry.is_dir():
                visit(entry, f"{name}/")
            elif name.rpartition(".")[2] in ("css", "js", "svg"):
                found[f"page/{name}"] = name

    visit(resources.files(__package__), "")
    return found


def _policy(*, drawings: bool) -> str:
    """Return the Content-Security-Policy: scripts, styles and requests of this server only.

    Args:
        drawings: allow the script and styles of ``pyggml.viz.graph_html`` in a sandboxed frame,
            which has the policy of the page around it.
    """
    script, style = "'self'", "'self'"
    if drawings:
        digest = base64.b64encode(hashlib.sha256(page_script().encode()).digest()).decode()
        script += f" 'sha256-{digest}'"
        style += " 'unsafe-inline'"
    return (
        f"default-src 'none'; script-src {script}; style-src {style}; img-src 'self' data:; "
        "connect-src 'self'; frame-src 'self'; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    )
