"""The code blocks of README and docs run, and their links lead somewhere.

A page's Python blocks run in order and share their names. The info string of a block may add
``model`` (needs the demo model) or ``no-run: reason``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w*)[ ]*(.*)\n((?:.*\n)*?)^```$", re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


def blocks(page: Path) -> list[tuple[str, str, str]]:
    """Language, what follows it, and code of each fenced block, with its lines where they were."""
    text = page.read_text(encoding="utf-8")
    return [
        (m[1], m[2].strip(), "\n" * text.count("\n", 0, m.start(3)) + m[3])
        for m in BLOCK.finditer(text)
    ]


def runs(page: Path, model: bool) -> list[str]:
    """The page's Python blocks that need the model, or those that do not."""
    python = [(flags, code) for lang, flags, code in blocks(page) if lang == "python"]
    return [code for flags, code in python if (flags == "model") == model and "no-run" not in flags]


def run(page: Path, codes: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    from pyggml.ops import OPS

    names: dict[str, Any] = {"__name__": page.stem}
    before = dict(OPS)
    try:
        for code in codes:
            exec(compile(code, str(page), "exec"), names)
    finally:  # a page may declare an op
        OPS.clear()
        OPS.update(before)


def pages(model: bool) -> Any:
    found = [page for page in PAGES if runs(page, model)]
    return pytest.mark.parametrize("page", found, ids=lambda p: p.relative_to(ROOT).as_posix())


@pages(model=False)
def test_code_blocks_run(page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run(page, runs(page, model=False), monkeypatch, tmp_path)


@pytest.mark.model
@pages(model=True)
def test_code_blocks_with_a_model_run(
    page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, demo_model: Path
) -> None:
    run(page, runs(page, model=True), monkeypatch, tmp_path)


def test_every_python_block_says_how_it_is_run() -> None:
    for page in PAGES:
        for language, flags, _ in blocks(page):
            if language == "python":
                assert flags in ("", "model") or re.fullmatch(r"no-run: .+", flags), (page, flags)


def test_links_lead_somewhere() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in PAGES
        for link in LINK.findall(page.read_text(encoding="utf-8"))
        if not (page.parent / link).exists()
    ]
    assert not broken


def test_ci_runs_readmes_second_command() -> None:
    commands = [code.strip() for lang, _, code in blocks(ROOT / "README.md") if lang == "sh"]
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert commands[1] in script.splitlines()
    assert "pyllama-cli" in commands[0]


def test_shell_blocks_use_commands_that_exist() -> None:
    from pyllama_cli.commands import (
        bench,
        completion,
        eval_callback,
        gguf,
        graph,
        imatrix,
        perplexity,
        quantize,
        tokenize,
    )

    tools = {
        "pyllama-cli": completion,
        "pyllama-bench": bench,
        "pyllama-imatrix": imatrix,
        "pyllama-perplexity": perplexity,
        "pyllama-quantize": quantize,
        "pyllama-tokenize": tokenize,
        "pyllama-graph": graph,
        "pyllama-eval-callback": eval_callback,
    }
    for page in PAGES:
        for language, _, code in blocks(page):
            for line in code.splitlines() if language == "sh" else ():
                name, *args = re.findall(r"(?<!\S)(?:\"[^\"]*\"|\S+)", line.split("/bin/")[-1]) or [
                    ""
                ]
                tool = tools[name].command if name in tools else None
                if name == "pyllama-gguf":
                    tool = gguf.command.get_command(click.Context(gguf.command), args[0])
                    assert tool is not None, (page, line)
                if tool is not None:
                    params = tool.params
                    flags = {f for p in params for f in (*p.opts, *p.secondary_opts)}
                    assert {a for a in args if a.startswith("-")} <= flags, (page, line)
