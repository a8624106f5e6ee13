"""Error messages of the library name parameters; the tools replace those by flags."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyllama_cli.flags import FLAGS, PARAMETER, SETTINGS, in_flags
from pyllama_cli.tool import all_flags

from ..statements import statements

ROOT = Path(__file__).parents[2]


def messages() -> Iterator[tuple[str, str]]:
    """Yield the location and the text of each error raised in the library."""
    for package in ("pyggml", "pyllama"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in statements(path.read_text(encoding="utf-8")):
                if isinstance(node, ast.Raise):
                    texts = (n.value for n in ast.walk(node) if isinstance(n, ast.Constant))
                    text = "{}".join(text for text in texts if isinstance(text, str))
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", text


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("use `repack=False` to read them", "use --no-repack to read them"),
        ("use `n_ctx=512` or more", "use --ctx-size 512 or more"),
        ("use `sparse='exact'`; a larger `n_ctx`", "use --sparse exact; a larger --ctx-size"),
        ("file `x=1` is `odd`", "file `x=1` is `odd`"),
    ],
)
def test_parameters_become_flags(message: str, said: str) -> None:
    assert in_flags(message) == said


def test_flags_of_the_tables_exist() -> None:
    known = {flag for _, flags in all_flags() for flag in flags}
    assert {*FLAGS.values(), *SETTINGS.values()} <= known


def test_library_messages_name_known_parameters_and_no_flags() -> None:
    flag = re.compile(r"(?:^|[ (])(--[a-z][a-z-]+)")
    known = {flag for _, flags in all_flags() for flag in flags}
    for where, text in messages():
        for name, value in PARAMETER.findall(text):
            assert name in FLAGS or f"{name}={value}" in SETTINGS, f"{where}: {text}"
        if not text.startswith("-") and " " in text:
            text = re.sub(r"pyllama[- ][^;,)`]*", "", text)  # a command as a whole
            assert not {*flag.findall(text)} & known, f"{where}: {text}"
