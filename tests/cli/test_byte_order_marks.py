"""Files of users with a byte order mark give the same as without it, for every option."""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import Any

import click
import pytest

from pyllama.server.request.options import ServerOptions
from pyllama_cli.commands import completion, serve
from pyllama_cli.commands.gguf import new
from pyllama_cli.options.conversation import ConversationOptions, template
from pyllama_cli.options.grammar import GrammarOptions
from pyllama_cli.options.presets import read_presets
from pyllama_cli.options.prompt import PromptOptions
from pyllama_cli.parameters import from_options

TEXT = "first\nsecond é\n"
FORMS = {
    "utf-8": lambda text: codecs.BOM_UTF8 + text.encode(),
    "utf-16": lambda text: codecs.BOM_UTF16_LE + text.encode("utf-16-le"),
}


@pytest.fixture(params=FORMS.values(), ids=FORMS)
def marked(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A function that writes a file with a mark."""

    def write(text: str) -> Path:
        path = tmp_path / "file"
        path.write_bytes(request.param(text))
        return path

    return write


def parsed(group: Any, command: click.Command, *args: str) -> Any:
    return from_options(group, command.make_context("x", list(args)).params)


def served(*args: str) -> ServerOptions:
    options = serve.command.make_context("x", list(args)).params
    own = from_options(serve.ServeOptions, options)
    return own.server(options, serve.listening_of(options))


def test_presets(marked: Any) -> None:
    found = read_presets(marked("[tiny]\nctx-size = 64\n"), serve.command)
    assert found["tiny"].values == {"n_ctx": ("--ctx-size", "64")}


def test_keys(marked: Any) -> None:
    assert served("--api-key-file", str(marked("a\nb\n"))).api_keys == ("a", "b")


def test_chat_templates(marked: Any) -> None:
    path = str(marked(TEXT))
    assert served("--chat-template-file", path).chat_template == TEXT
    options = parsed(ConversationOptions, completion.command, "--chat-template-file", path)
    assert template(options) == TEXT
    assert new._text(Path(path)) == TEXT


def test_system_prompts_and_prompts(marked: Any) -> None:
    path = marked(TEXT)
    options = parsed(ConversationOptions, completion.command, "--system-prompt-file", str(path))
    assert options.system() == TEXT.removesuffix("\n")
    assert PromptOptions(None, path, True).text(whole_file=True) == TEXT
    assert PromptOptions(None, None, False).text(path.read_bytes()) == TEXT
    assert PromptOptions("\ufeffa", None, False).text() == "\ufeffa"  # not from a file


def test_grammars(marked: Any) -> None:
    options = GrammarOptions("", marked('root ::= "a"'), None, None)
    assert options.parse() is not None
