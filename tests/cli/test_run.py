"""``pyllama run``: which model, one answer or a conversation."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pyllama_cli.commands import completion, run
from pyllama_cli.options.hub import HubOptions

from ..pyllama.fake_context import FakeContext
from .echo_model import EchoModel
from .terminal import CTRL_D, Terminal

ROOT = Path(__file__).parents[2]


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The echo model in place of every other; the list has what was asked for."""
    asked: list[Any] = []

    def load(options: Any, *args: Any) -> EchoModel:
        asked.append(HubOptions.current() or options.model)
        return EchoModel()

    monkeypatch.setattr(completion, "load_model", load)
    monkeypatch.setattr(completion, "make_context", lambda model, *_: FakeContext(model, n_ctx=512))
    return asked


@pytest.mark.parametrize(
    ("args", "piped", "answer"),
    [
        (["demo", "Hi", "there"], "", "[Hi there]"),
        (["demo"], "from a pipe\n", "[from a pipe]"),
        (["demo", "after"], "a\nb\n", "[a/b after]"),
        (["demo", r"a\tb"], "", r"[a\tb]"),
        ([], "x", "[x]"),
    ],
)
def test_one_answer(models: list[Any], args: list[str], piped: str, answer: str) -> None:
    done = CliRunner().invoke(run.command, [*args, "--temp", "0"], input=piped)
    assert (done.exit_code, done.stdout.strip()) == (0, answer), done.output
    assert done.stderr == "" and models == [None]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("x.gguf", Path("x.gguf")),
        ("folder/x.gguf", Path("folder/x.gguf")),
        ("user/model", HubOptions("user/model")),
        ("user/model:Q4_K_M", HubOptions("user/model:Q4_K_M")),
        ("hf.co/user/model:Q8_0", HubOptions("user/model:Q8_0")),
        ("demo", None),
        ("", None),
    ],
)
def test_names_of_models(models: list[Any], name: str, expected: Any) -> None:
    assert CliRunner().invoke(run.command, [name, "a", "--temp", "0"]).exit_code == 0
    assert models == [expected]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "the prompt is empty"),
        (["nothing", "a"], "no model nothing: give a GGUF file"),
        (["Why is it so?", "a"], "no model Why is it so?"),
        (["missing.gguf", "a"], "missing.gguf: no such file"),
    ],
)
def test_wrong_arguments(args: list[str], message: str) -> None:
    done = CliRunner().invoke(run.command, args)
    assert done.exit_code != 0 and message in done.stderr


def terminal(folder: Path, *args: str) -> Terminal:
    code = f"import sys; sys.path.insert(0, {os.fspath(ROOT)!r}); "
    code += "from tests.cli.echo_model import main; main('run')"
    command = [sys.executable, "-P", "-c", code, *args, "--temp", "0"]
    return Terminal(command, env={"XDG_STATE_HOME": str(folder)}, folder=folder)


def test_a_conversation_in_a_terminal(tmp_path: Path) -> None:
    with terminal(tmp_path) as shown:
        shown.wait("^>")
        shown.type("Hi\r")
        shown.wait(r"^\[Hi\]\n\n>")
        shown.type(CTRL_D)
        assert shown.exit_code() == 0


def test_an_answer_in_a_terminal_is_the_answer_alone(tmp_path: Path) -> None:
    with terminal(tmp_path, "demo", "Hi") as shown:
        assert shown.exit_code() == 0
        assert [line for line in shown.lines() if line] == ["[Hi]"]
