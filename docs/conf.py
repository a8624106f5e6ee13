"""How Sphinx builds the site: ``sphinx-build -W docs build/site``, with the extra ``docs``.

Pages are the Markdown files of this folder. Two groups of pages are written before a build, from
the code: ``api/``, a page for each package that has public names, and ``commands/``, a page for
each command-line tool. Nothing is fetched from the network.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
import re
import shutil
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from types import ModuleType
from typing import Any, get_origin

import click
from sphinx.application import Sphinx

from pyllama_cli.help_pages import SECTIONS, examples, in_sections

DOCS = Path(__file__).resolve().parent
SCRIPTS = "pyllama_cli.main:pyllama"

project = "pyggml and pyllama"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_click"]
root_doc = "README"
exclude_patterns = ["examples"]
html_theme = "alabaster"
html_theme_options = {"page_width": "1100px", "sidebar_width": "260px", "fixed_sidebar": True}
html_sidebars = {"**": ["about.html", "searchfield.html", "navigation.html"]}
html_show_copyright = html_show_sourcelink = toc_object_entries = False
smartquotes = False  # they would make "–" of the "--" of flags
myst_heading_anchors = 3
autodoc_member_order = "bysource"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_custom_sections = [("Shape", "notes_style"), ("Source", "notes_style")]
default_role = "literal"  # docstrings write `name` for code
suppress_warnings = ["ref.python"]  # "Context" in an annotation may be that of either package

_LISTS = re.compile(r"^##? (.+)\n((?:.*\n)*?)(?=^## |\Z)", re.MULTILINE)
_PAGE = re.compile(r"^[-|] *\[[^]]+\]\(([\w/-]+)\.md\)", re.MULTILINE)


def setup(app: Sphinx) -> None:
    """Connect the steps below to a build."""
    app.connect("builder-inited", write_generated_pages)
    app.connect("source-read", adapt_page)
    app.connect("autodoc-process-docstring", adapt_docstring, priority=400)  # before napoleon
    app.connect("sphinx-click-process-usage", add_examples)
    app.connect("sphinx-click-process-options", arrange_options)


def adapt_page(app: Sphinx, docname: str, source: list[str]) -> None:
    """Edit a page's text as Sphinx reads it; GitHub shows the same file unedited.

    Links to files outside of this folder become text. A folder's README gets the tables of contents
    that Sphinx wants: one for each of its sections, with the pages listed there.
    """
    text = source[0]
    depth = docname.count("/") + 1
    outside = rf"\[([^]]+)\]\((?:\.\./){{{depth}}}([^)]*)\)"
    text = re.sub(outside, r"\1 (`\2` in the repository)", text)
    if docname.endswith("README"):
        sections = [(title, _PAGE.findall(body)) for title, body in _LISTS.findall(text)]
        if docname == root_doc:
            sections.append(("Made from the code", ["api/index", "commands/index"]))
        for title, pages in sections:
            if pages:
                lines = ["", "```{toctree}", ":hidden:", f":caption: {title}", *pages, "```", ""]
                text += "\n".join(lines)
    source[0] = text


_GPU = ("pyggml.backend.cuda.kernels", "pyggml.backend.cuda.kernels.sparse")


def write_generated_pages(app: Sphinx) -> None:
    """Write ``api/`` and ``commands/`` into the folder that is built."""
    for name, pages in (("api", api_pages()), ("commands", command_pages())):
        folder = Path(app.srcdir) / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for page, text in pages:
            (folder / f"{page}.rst").write_text(text, encoding="utf-8")


def api_pages() -> Iterator[tuple[str, str]]:
    """Name and text of a page for each public package; an object is described on one of them."""
    home: dict[int, str] = {}
    names = []
    for package in public_packages():
        module = importlib.import_module(package)
        names.append(package)
        body, elsewhere = [], []
        for name in public_names(module):
            value = getattr(module, name)
            kind = _kind(value)
            if kind != "data" and home.setdefault(id(value), package) != package:
                elsewhere.append(f"* :py:obj:`{name} <{home[id(value)]}.{name}>`")
                continue
            body.append(f".. auto{kind}:: {package}.{name}")
            body += {"class": ["   :members:"], "data": ["   :no-value:"]}.get(kind, [])
            body.append("")
        text = f"{_title(package)}\n.. automodule:: {package}\n   :no-members:\n\n"
        text += "\n".join(body) + "\n"
        if elsewhere:
            text += "\nAlso in this package:\n\n" + "\n".join(elsewhere) + "\n"
        yield package, text
    yield "index", _index("API reference", names, "Packages and their public names.")


def public_packages() -> Iterator[str]:
    """The packages that have public names."""
    for root in ("pyggml", "pyllama"):
        path = importlib.import_module(root).__path__
        found = [m.name for m in pkgutil.walk_packages(path, f"{root}.") if m.ispkg]
        for name in (root, *sorted(found)):
            if name in _GPU and importlib.util.find_spec("numba_cuda") is None:
                continue  # they have no page
            if public_names(importlib.import_module(name)):
                yield name


def public_names(module: ModuleType) -> list[str]:
    """``__all__``; of pyggml, the names imported ``as`` themselves."""
    if module.__name__ != "pyggml":
        return list(getattr(module, "__all__", ()))
    names = {k for k, v in vars(module).items() if k[0] != "_" and not isinstance(v, ModuleType)}
    return sorted(names)


def _kind(value: Any) -> str:
    """Autodoc's word for an object."""
    if inspect.isclass(value):
        return "exception" if issubclass(value, BaseException) else "class"
    return "function" if inspect.isroutine(value) else "data"


def adapt_docstring(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Make indented examples in docstrings blocks of code; a dict's value has no docstring."""
    of_a_class = (type(obj), get_origin(obj))  # {}, dict[str, int]
    if what == "data" and inspect.getdoc(obj) in map(inspect.getdoc, of_a_class):
        lines.clear()
    if what == "property" and lines:  # napoleon would take the text before a colon for a type
        lines[:1] = lines[0].replace(" Raises: ", "\n\nRaises: ").split("\n")
    for i in range(len(lines) - 1, 1, -1):
        before = lines[i - 2]
        starts = lines[i].startswith("    ") and not lines[i - 1].strip()
        if starts and before and not before.startswith((" ", ".. ")) and not before.endswith("::"):
            lines[i:i] = ["::", ""]


def add_examples(app: Sphinx, ctx: click.Context, lines: list[str]) -> None:
    """Add the examples of a command's help page."""
    found = [f"   {line}" for line in examples(ctx.command)]
    if found:
        lines += [".. rubric:: Examples", "", ".. code-block:: sh", "", *found, ""]


def arrange_options(app: Sphinx, ctx: click.Context, lines: list[str]) -> None:
    """Put options into the sections of the help page; keep the backslashes of help texts."""
    blocks: list[list[str]] = []
    for line in lines:
        if line.startswith(".. option::"):
            blocks.append([])
        blocks[-1].append(line.replace("\\", "\\\\"))
    params = [p for p in ctx.command.params if isinstance(p, click.Option) and not p.hidden]
    of_param = dict(zip(params, blocks, strict=True))
    lines.clear()
    for title, members in in_sections(params).items():
        if title != SECTIONS[0]:
            lines += [f".. rubric:: {title}", ""]
        lines += [line for param in members for line in of_param[param]]


def command_pages() -> Iterator[tuple[str, str]]:
    """Name and text of a page for each command-line tool."""
    module, _, attribute = SCRIPTS.partition(":")
    tools = getattr(importlib.import_module(module), attribute)
    points = distribution("pyggml").entry_points.select(group="console_scripts")
    scripts = {point.value: point.name for point in points}
    names = []
    for name, target in tools.table.items():
        path = target if not target.startswith(".") else "pyllama_cli" + target
        script = scripts.get(path, f"pyllama {name}")
        page = script.replace(" ", "-")
        names.append(page)
        yield page, f".. click:: {path}\n   :prog: {script}\n   :nested: full\n"
    yield "index", _index("Commands", names, "What ``--help`` of each tool prints.")


def _index(title: str, names: list[str], text: str) -> str:
    return f"{_title(title)}{text}\n\n.. toctree::\n   :maxdepth: 1\n\n" + "".join(
        f"   {name}\n" for name in names
    )


def _title(text: str) -> str:
    return f"{text}\n{'=' * len(text)}\n\n"
