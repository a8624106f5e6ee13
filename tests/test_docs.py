"""The code blocks of README and docs run, and the targets of their links exist.

A page's Python blocks run in order and share their names, once with and once without those that
need the demo model. The info string of a block may add
``model`` (needs the demo model) or ``no-run: reason``.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest

from tests.pyggml.test_public_names import public
from tests.tiers import some

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w*)[ ]*(.*)\n((?:.*\n)*?)^```$", re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


def blocks(page: Path) -> list[tuple[str, str, str]]:
    """Language, flags and code of each fenced block, at its line numbers in the page."""
    text = page.read_text(encoding="utf-8")
    return [
        (m[1], m[2].strip(), "\n" * text.count("\n", 0, m.start(3)) + m[3])
        for m in BLOCK.finditer(text)
    ]


def runs(page: Path, model: bool) -> list[str]:
    """The page's Python blocks: all if some need the model, or those that do not need it."""
    python = [(flags, code) for lang, flags, code in blocks(page) if lang == "python"]
    if model and not any(flags == "model" for flags, _ in python):
        return []
    return [code for flags, code in python if flags == "" or (model and flags == "model")]


def run(page: Path, codes: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    import pyggml.backend.cpu.kernels  # noqa: F401  # fills LOWERINGS
    from pyggml.backend.cpu.compile.lowering import LOWERINGS
    from pyggml.ops.op import OPS

    module = ModuleType(page.stem)
    monkeypatch.setitem(sys.modules, page.stem, module)  # Numba's cache looks kernels up by it
    tables: tuple[dict[str, Any], ...] = OPS, LOWERINGS.lower, LOWERINGS.supports
    before = [dict(table) for table in tables]
    try:
        for code in codes:
            exec(compile(code, str(page), "exec"), vars(module))
    finally:  # a page may declare an op
        for table, kept in zip(tables, before, strict=True):
            table.clear()
            table.update(kept)


def pages(model: bool) -> Any:
    found = [page for page in PAGES if runs(page, model)]
    return pytest.mark.parametrize(
        "page",
        some(found, 5 if model else len(found)),
        ids=lambda p: p.relative_to(ROOT).as_posix(),
    )


@pages(model=False)
def test_code_blocks_run(page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run(page, runs(page, model=False), monkeypatch, tmp_path)


@pytest.mark.model
@pages(model=True)
def test_code_blocks_with_a_model_run(
    page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, demo_model: Path
) -> None:
    run(page, runs(page, model=True), monkeypatch, tmp_path)


def test_python_blocks_have_a_known_info_string() -> None:
    for page in PAGES:
        for language, flags, _ in blocks(page):
            if language == "python":
                assert flags in ("", "model") or re.fullmatch(r"no-run: .+", flags), (page, flags)


def test_link_targets_exist() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in PAGES
        for link in LINK.findall(page.read_text(encoding="utf-8"))
        if not (page.parent / link).exists()
    ]
    assert not broken


def test_pages_have_no_conflict_markers() -> None:
    markers = re.compile(r"^(<{7}|>{7}) ", re.MULTILINE)
    assert not [p for p in PAGES if markers.search(p.read_text(encoding="utf-8"))]


def test_files_that_pages_name_exist() -> None:
    named = re.compile(r"`((?:pyggml|pyllama|cli|benchmarks|tests)/[\w/.-]+\.\w+)`")
    missing = [
        f"{page.relative_to(ROOT)}: {path}"
        for page in PAGES
        for path in named.findall(page.read_text(encoding="utf-8"))
        if not (ROOT / path).exists()
    ]
    assert not missing


def test_ci_runs_readmes_second_command() -> None:
    commands = [code.strip() for lang, _, code in blocks(ROOT / "README.md") if lang == "sh"]
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert commands[1] in script.splitlines()
    assert "pyllama-cli" in commands[0]


def shell_commands(text: str) -> Iterator[list[str]]:
    """The words of each command in a shell block: of lines, and between ``&&``, ``|`` and ``;``."""
    for line in text.splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="&|;<>")
        lexer.whitespace_split, lexer.commenters = True, "#"
        words: list[str] = []
        for word in lexer:
            if word in ("&&", "|", ";"):
                yield words
                words = []
            else:
                words.append(word)
        if words:
            yield words


def check_command(words: Sequence[str]) -> None:
    """Fail unless the command exists and accepts the arguments."""
    name, args = Path(words[0]).name, [*words[1:]]
    if ">" in args:
        args = args[: args.index(">")]
    if name in PROJECT["scripts"]:
        module, _, attribute = PROJECT["scripts"][name].partition(":")
        parse(getattr(importlib.import_module(module), attribute), args)
    elif name == "compute-sanitizer":  # NVIDIA's, around another command
        check_command(args)
    elif name in ("python", "python3"):
        assert args[0] == "-m" and importlib.util.find_spec(args[1]), f"no module {args[1:2]}"
    elif name == "pip":
        asked = re.findall(r"\[([^]]*)\]", " ".join(args))
        extras = {extra for group in asked for extra in group.split(",")}
        assert args[0] == "install" and extras <= PROJECT["optional-dependencies"].keys(), args
    elif name == "sphinx-build":
        assert args[0] == "-W" and (ROOT / args[1] / "conf.py").exists(), args
    elif name == "pytest":
        assert all((ROOT / arg).exists() for arg in args if "/" in arg), args
    else:
        assert name == "cd", f"no such command: {name}"


def parse(command: click.Command, args: list[str]) -> None:
    """Parse a command line without running it."""
    if isinstance(command, click.Group):
        sub = command.get_command(click.Context(command), args[0])
        assert sub is not None, f"no such command: {command.name} {args[0]}"
        parse(sub, args[1:])
    else:
        command.make_context(command.name, args).close()


def shell_lines() -> Iterator[tuple[Path, list[str]]]:
    """The commands of all pages' shell blocks."""
    for page in PAGES:
        for language, _, code in blocks(page):
            if language in ("sh", "bash", "shell", "console"):
                yield from ((page, words) for words in shell_commands(code))


def test_shell_blocks_use_commands_that_exist() -> None:
    commands = [*shell_lines()]
    assert len(commands) > 50
    for page, words in commands:
        try:
            check_command(words)
        except (AssertionError, click.ClickException) as error:
            text = error.format_message() if isinstance(error, click.ClickException) else error
            pytest.fail(f"{page.relative_to(ROOT)}: {shlex.join(words)}: {text}")


@pytest.mark.parametrize(
    "line",
    [
        "pyllama-clii -p x",
        "pyllama-cli --promt x",
        "pyllama-cli -n three",
        "pyllama-gguf dmp x.gguf",
        "pyllama-gguf dump --tensors x.gguf",
        "pyllama no-such-tool",
        "python -m benchmarks.no_such_page",
        "pip install 'pyggml[nothing]'",
        "pytest tests/no/such/folder",
        "cd build && cmake ..",
    ],
)
def test_commands_that_do_not_exist_are_found(line: str) -> None:
    with pytest.raises((AssertionError, click.ClickException)):
        for words in shell_commands(line):
            check_command(words)


def test_pages_name_programs_that_exist() -> None:
    named = re.compile(r"`(pyllama-[a-z-]+)((?: [a-z-]+)?)[^`]*`")
    for page in PAGES:
        for name, sub in named.findall(page.read_text(encoding="utf-8")):
            assert name in PROJECT["scripts"], (page, name)
            module, _, attribute = PROJECT["scripts"][name].partition(":")
            command = getattr(importlib.import_module(module), attribute)
            if isinstance(command, click.Group) and sub and not sub.strip().startswith("-"):
                assert sub.strip() in command.list_commands(click.Context(command)), (page, sub)


@pytest.mark.long
def test_the_site_builds_and_has_the_api_and_the_commands(tmp_path: Path) -> None:
    """Without a warning, without a network, and without writing into the repository."""
    pytest.importorskip("sphinx_click", reason="the extra docs is not installed")
    source, site = tmp_path / "docs", tmp_path / "site"
    shutil.copytree(ROOT / "docs", source)
    command = [
        sys.executable,
        "-P",
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-q",
        str(source),
        str(site),
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for package in ("pyggml", "pyllama"):
        page = (site / "api" / f"{package}.html").read_text(encoding="utf-8")
        module = importlib.import_module(package)
        names = getattr(module, "__all__", None) or public(module)
        assert not [name for name in names if f'id="{package}.{name}"' not in page]
    for script in PROJECT["scripts"].keys() - {"pyllama"}:
        page = (site / "commands" / f"{script}.html").read_text(encoding="utf-8")
        assert f'id="{script}"' in page and "Usage" in page
    for path in site.rglob("*.html"):
        loaded = re.findall(
            r'(?:<script|<img|<link)[^>]*(?:src|href)="(https?:[^"]*)', path.read_text("utf-8")
        )
        assert not loaded, (path.name, loaded)
