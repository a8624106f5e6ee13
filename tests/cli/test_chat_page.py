"""What ``docs/chat.md`` shows, typed into a terminal with the demo model.

``python -m tests.cli.test_chat_page`` prints the conversations as they are now.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

if not hasattr(os, "openpty"):
    pytest.skip("no terminals here", allow_module_level=True)

from .terminal import CTRL_C, Terminal

PAGE = Path(__file__).parents[2] / "docs" / "chat.md"
CONVERSATION = re.compile(r"^```text\n\$ pyllama-cli (.*)\n((?:.*\n)*?)```$", re.MULTILINE)
RUN = "from pyllama_cli.commands.completion import command; command(prog_name='pyllama-cli')"
FILES = {"notes.txt": "The meeting is on Friday at ten.\n"}


def conversations() -> list[tuple[str, str]]:
    """The options and the screen of each conversation on the page."""
    return CONVERSATION.findall(PAGE.read_text("utf-8"))


def keys(screen: str) -> Iterator[str]:
    """What was typed, one prompt at a time: an empty prompt is Ctrl-C."""
    for message in re.findall(r"^>.*\n(?:\..*\n)*", screen, re.MULTILINE):
        first, *more = message.splitlines()
        typed = "\\\r".join([first[2:], *(line[2:] for line in more)])
        yield f"{typed}\r" if typed else CTRL_C


def shown(options: str, screen: str, folder: Path) -> str:
    """The screen after typing what a conversation shows."""
    for name, text in FILES.items():
        (folder / name).write_text(text)
    command = [sys.executable, "-P", "-c", RUN, *shlex.split(options)]
    env = {"XDG_STATE_HOME": str(folder)}
    with Terminal(command, env=env, size=(100, 60), folder=folder) as terminal:
        terminal.wait("^/help lists.*\n\n>$")
        for typed in keys(screen):
            before = terminal.text()
            terminal.type(typed)
            while terminal.text() == before or terminal.cursor_line() != ">":
                terminal.read(0.1)
        text = terminal.text()
    return text[text.index("model     ") :].removesuffix("\n\n>") + "\n"


def comparable(screen: str) -> str:
    return re.sub(r"[\d.]+ t/s", "N t/s", screen)


@pytest.mark.long
@pytest.mark.model
@pytest.mark.parametrize(("options", "screen"), conversations(), ids=str)
def test_the_page_shows_what_happens(
    options: str, screen: str, tmp_path: Path, demo_model: Path
) -> None:
    assert comparable(shown(options, screen, tmp_path)) == comparable(screen)


if __name__ == "__main__":
    from tempfile import TemporaryDirectory

    for given, expected in conversations():
        with TemporaryDirectory() as name:
            print(f"$ pyllama-cli {given}\n{shown(given, expected, Path(name))}")
