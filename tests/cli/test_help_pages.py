"""The help page of every command: sections, examples and widths."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from pyllama_cli.help_pages import SECTIONS, examples, in_sections
from pyllama_cli.main import pyllama

from ..test_docs import shell_commands


def commands(command: click.Command, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of every command, after ``pyllama``."""
    yield words
    if isinstance(command, click.Group):
        ctx = click.Context(command)
        for name in command.list_commands(ctx):
            sub = command.get_command(ctx, name)
            assert sub is not None
            yield from commands(sub, (*words, name))


COMMANDS = [*commands(pyllama)]


def found(words: tuple[str, ...]) -> click.Command:
    command: click.Command = pyllama
    for word in words:
        assert isinstance(command, click.Group)
        command = command.commands.get(word) or command.get_command(click.Context(command), word)  # type: ignore[assignment]
    return command


def page(words: tuple[str, ...], columns: int) -> str:
    result = CliRunner().invoke(pyllama, [*words, "--help"], env={"COLUMNS": str(columns)})
    assert result.exit_code == 0
    return result.stdout


@pytest.mark.parametrize("columns", [80, 120])
def test_no_line_is_wider_than_the_terminal_and_no_description_is_cut(columns: int) -> None:
    assert len(COMMANDS) > 30
    for words in COMMANDS:
        text, command = page(words, columns), found(words)
        assert max(map(len, text.splitlines())) <= columns, words
        if isinstance(command, click.Group):
            for name in command.list_commands(click.Context(command)):
                said = found((*words, name)).help
                assert said is not None
                first = " ".join(re.split(r"\.\s", said)[0].split())
                assert f"  {name} " in text and first in " ".join(text.split()), name


def test_every_page_has_an_example_with_flags_that_exist() -> None:
    for words in COMMANDS:
        lines, command = examples(found(words)), found(words)
        assert lines and lines[0] in page(words, 120), words
        flags = {flag for p in command.get_params(click.Context(command)) for flag in p.opts}
        flags |= {flag for p in command.params for flag in p.secondary_opts}
        for line in lines:
            first = next(shell_commands(line))
            if not isinstance(command, click.Group):
                assert {w for w in first if re.match("--?[a-z]", w)} <= flags, line


def test_sections() -> None:
    assert "\n  MODEL\n" not in page(("gguf", "set"), 80)  # the usage names it
    ctx = click.Context(found(("completion",)))
    sections = in_sections(ctx.command.get_params(ctx))
    assert [*sections, "Presets"] == [*SECTIONS]  # those are the server's
    assert sum(map(len, sections.values())) == len(ctx.command.get_params(ctx))
    assert max(len([p for p in s if not p.hidden]) for s in sections.values()) < 40  # type: ignore[attr-defined]
    text = page(("completion",), 80)
    assert text.index("\nExamples:") < text.index("\nOptions:") < text.index("\nSampling:")
    assert "Merge lookup caches into one: PART... are read, MERGED is written." in " ".join(
        page((), 80).split()
    )


def test_defaults_are_shown() -> None:
    """Of all options with one, but for switches that are off and texts that are empty."""
    for words in COMMANDS:
        ctx = click.Context(found(words))
        for option in ctx.command.get_params(ctx):
            if not isinstance(option, click.Option) or option.hidden:
                continue
            default = option.default
            if not isinstance(default, str | int | float | list | tuple) or default is False:
                continue
            if default in ("", (), []):
                continue
            record = option.get_help_record(ctx)
            assert record is not None and "[default: " in record[1], (words, option.opts)
