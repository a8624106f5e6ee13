"""Conversation mode in a terminal, as a person sees it and types into it."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ..tiers import some

if not hasattr(os, "openpty"):
    pytest.skip("no terminals here", allow_module_level=True)

from ..waiting import until
from .terminal import CTRL_C, CTRL_D, CTRL_Z, UP, Terminal, pasted

ROOT = Path(__file__).parents[2]
RUN = "from tests.cli.echo_model import main; main()"


def command(*args: str) -> list[str]:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); {RUN}"
    return [sys.executable, "-P", "-c", code, "--no-perf", "--temp", "0", *args]


@contextmanager
def conversation(folder: Path, *args: str) -> Iterator[Terminal]:
    """A conversation at its first prompt."""
    env = {"XDG_STATE_HOME": str(folder)}
    with Terminal(command(*args), env=env, folder=folder) as terminal:
        if "-i" not in args:
            terminal.wait("^>")
        yield terminal


@pytest.mark.long
def test_banner_and_help(tmp_path: Path) -> None:
    with conversation(tmp_path, "-c", "300") as terminal:
        assert terminal.lines() == [
            "model     fake 1K F32, fake.gguf",
            "template  the model's own",
            "context   300 tokens",
            "/help lists the commands and keys; /exit or Ctrl-D exits.",
            "",
            ">",
        ]
        terminal.type("/help\r")
        terminal.wait("/exit .*exit$")
        shown = terminal.text()
        for name in ("/regen", "/clear", "/read FILE", "/glob PATTERN", "Ctrl-C", "Alt-Enter"):
            assert re.search(rf"^  {name}  +\w", shown, re.MULTILINE), name
        terminal.type(CTRL_D)
        assert terminal.exit_code() == 0
        assert terminal.is_restored()


def test_ctrl_c_at_the_prompt_asks_and_discards_a_line(tmp_path: Path) -> None:
    with conversation(tmp_path) as terminal:
        terminal.type("Hi\r")
        terminal.wait(r"^\[Hi\]\n\n>")
        terminal.type(CTRL_C)
        terminal.wait("again to exit.*\n>")
        terminal.type("some text" + CTRL_C)
        terminal.wait(r"^> some text\n>$")
        terminal.type(CTRL_C)  # asks again: the user went on
        terminal.wait(r"^> some text\n>\nPress Ctrl-C again to exit, or go on\.\n>$")
        terminal.type("/regen\r")  # the conversation is still there
        terminal.wait(r"^> /regen\n\[Hi\]\n\n>")
        terminal.type(CTRL_C)
        terminal.wait(r"\[Hi\]\n\n>\nPress.*\n>")
        terminal.type(CTRL_C)
        assert terminal.exit_code() == 130
        assert terminal.is_restored()


@pytest.mark.long
def test_a_pasted_text_is_one_message(tmp_path: Path) -> None:
    with conversation(tmp_path) as terminal:
        terminal.type(pasted("one\ntwo\\\nthree\n"))
        terminal.wait(r"^> one\n\. two\\\n\. three\n\.$")
        terminal.type("\r")
        terminal.wait(r"^\[one/two\\/three\]\n\n>")
        terminal.type("slow one\r")
        terminal.wait(r"^\[sl")
        terminal.type(pasted("a\nb\nc"))  # during a reply
        terminal.wait(r"^\[slow one\]\n\n> a\n. b\n. c")
        terminal.type("d\r")
        terminal.wait(r"^\[a/b/cd\]\n\n>")


@pytest.mark.long
def test_typing_during_a_reply_begins_the_next_line(tmp_path: Path) -> None:
    with conversation(tmp_path) as terminal:
        terminal.type("slow one\r")
        terminal.wait(r"^\[sl")
        terminal.type("next")
        terminal.wait(r"^\[slow one\]\n\n> next$")
        terminal.type(" slow\x01slow \r")  # Ctrl-A: the line can be edited
        terminal.wait(r"^\[slow ne")
        terminal.type("sent\rnot yet")
        terminal.wait(r"^\[slow next slow\]\n\n> sent\n\[sent\]\n\n> not yet$")


def test_ctrl_c_stops_a_reply_after_which_nothing_follows(tmp_path: Path) -> None:
    with conversation(tmp_path) as terminal:
        terminal.type("endless\r")
        terminal.wait(r"^\.\.")
        terminal.type(CTRL_C)
        terminal.wait(r"\^C$")
        terminal.wait("^>$")
        assert re.search(r"^> endless\n\.+\^C\n\n>$", terminal.text(), re.MULTILINE)
        terminal.type("Hi\r")
        terminal.wait(r"^\[Hi\]\n\n>")


@pytest.mark.long
def test_a_backslash_continues_the_message(tmp_path: Path) -> None:
    with conversation(tmp_path) as terminal:
        terminal.type("one\\\r")
        terminal.wait(r"^> one\n\.$")
        terminal.type("two\x1b\r")  # Alt-Enter
        terminal.wait(r"^> one\n. two\n\.$")
        terminal.type("three\r")
        terminal.wait(r"^\[one/two/three\]\n\n>")
    with conversation(tmp_path, "-mli") as terminal:
        terminal.type("one\rtwo\\\r")
        terminal.wait(r"^> one\n. two\n\[one/two\]\n\n>")


def test_history_and_completion(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("inside")
    with conversation(tmp_path) as terminal:
        terminal.type(pasted("one\ntwo") + "\r")
        terminal.wait(r"^\[one/two\]\n\n>")
    history = tmp_path / "pyllama" / "history"
    assert history.stat().st_mode & 0o077 == 0
    with conversation(tmp_path) as terminal:
        terminal.type(UP)
        terminal.wait("^> one\n. two")
        terminal.type(CTRL_C)
        terminal.wait("^>$")
        terminal.type("/rea\t")
        terminal.wait("^> /read$")
        terminal.type("no\t")
        terminal.wait(r"^> /read notes\.txt$")
        terminal.type("\r")
        terminal.wait("^notes.txt: 6 characters added")


@pytest.mark.long
def test_simple_io(tmp_path: Path) -> None:
    with conversation(tmp_path, "--simple-io") as terminal:
        terminal.type("slow\\\r")
        terminal.wait(r"^> slow\\\n\.")
        terminal.type("one\r")
        terminal.wait(r"^\[sl")
        terminal.type("Hi")
        terminal.wait(r"^\[slow/one\]\n\n>")
        terminal.type("\r")
        terminal.wait(r"^\[Hi\]\n\n>")
        terminal.type(CTRL_C)
        terminal.wait("again to exit")
        terminal.type(CTRL_C)
        assert terminal.exit_code() == 130
        assert terminal.is_restored()


@pytest.mark.long
def test_a_text_written_in_turns(tmp_path: Path) -> None:
    args = ("-i", "-p", "u:", "--in-suffix", "|a:", "-no-cnv", "-if")
    with conversation(tmp_path, *args) as terminal:
        terminal.wait("^u:")
        terminal.type("one")
        terminal.wait("^u:one")
        terminal.type("\x01" + "al\r")  # the editor has kept the beginning of the line
        terminal.wait(r"^u:alone\n\[alone\]")


@pytest.mark.parametrize("number", some([signal.SIGTERM, signal.SIGINT], 1))
def test_the_terminal_is_restored(tmp_path: Path, number: int) -> None:
    with conversation(tmp_path) as terminal:
        terminal.type("endless\r")
        terminal.wait(r"^\.\.")
        assert not terminal.is_restored()
        os.kill(terminal.process.pid, number)
        if number == signal.SIGINT:
            terminal.wait("^>$")
            terminal.type(CTRL_D)
        assert terminal.exit_code() == (143 if number == signal.SIGTERM else 0)
        assert terminal.is_restored()


@pytest.mark.skipif(not Path("/bin/bash").exists(), reason="a shell with job control")
def test_ctrl_z(tmp_path: Path) -> None:
    shell = ["/bin/bash", "--norc", "--noediting", "-i"]
    env = {"XDG_STATE_HOME": str(tmp_path), "PS1": "shell: "}
    with Terminal(shell, env=env) as terminal:
        terminal.wait("^shell:")
        script = tmp_path / "run"
        script.write_text(f"exec {shlex.join(command())}")
        terminal.type(f"bash {script}; echo done\r")
        terminal.wait("^>$")
        for text, shown in (("", "^>$"), (f"slow {'-' * 60}\r", r"^\[sl")):
            terminal.type(text)
            terminal.wait(shown)
            terminal.type(CTRL_Z)
            terminal.wait("Stopped")
            terminal.type("clear; stty -a | grep -o '.echo '; fg\r")
            terminal.wait("^ echo")
            until(lambda: terminal.read(0.02) or terminal.is_raw())
        terminal.wait(r"\]\n\n>")
        terminal.type("Hi\r")
        terminal.wait(r"^> Hi\n\[Hi\]\n\n>")
