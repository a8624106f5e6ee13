"""Conversation mode with a fake model, partly in a fake terminal."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pyllama.errors import ModelError
from pyllama_cli import conversation, lines, output
from pyllama_cli.commands import completion
from pyllama_cli.lines import PlainReader
from pyllama_cli.options import conversation as conversation_options
from pyllama_cli.options.conversation import ConversationOptions

from ..pyllama.fake_context import METADATA, FakeContext, FakeModel

TEMPLATE = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}|{% endfor %}a:"


class TalkingModel(FakeModel):
    """Generates a fixed text by position, after prompts of any length."""

    def __init__(self, text: str, template: str | None) -> None:
        super().__init__(text)
        tokenizer = type(self.tokenizer)(self.tokenizer.vocab, template)
        self.tokenizer = tokenizer  # type: ignore[misc]
        self.metadata = METADATA | ({"tokenizer.chat_template": template} if template else {})


@pytest.fixture
def talk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """Return a function that runs pyllama-cli with a model that generates a fixed text."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    def run(
        text: str, *args: str, stdin: str = "", template: str | None = TEMPLATE, tty: bool = False
    ) -> tuple[int, str, str]:
        model = TalkingModel(text, template)
        monkeypatch.setattr(completion, "load_model", lambda *a: model)
        monkeypatch.setattr(completion, "make_context", lambda m, o: FakeContext(m, n_ctx=256))
        for module in (conversation, conversation_options):
            monkeypatch.setattr(module, "is_terminal", lambda: tty)
        result = CliRunner().invoke(
            completion.command, ["--temp", "0", "--no-perf", *args], input=stdin
        )
        return result.exit_code, result.stdout, result.stderr

    return run


def test_conversation_needs_a_terminal_or_cnv(talk: Any) -> None:
    assert talk("Hi there", "-p", "Hi", stdin="not read") == (0, "Hi there [end of text]\n", "")
    assert talk("Hi there", "-p", "Hi", "-no-cnv", tty=True)[1] == "Hi there [end of text]\n"
    assert talk("Hi there", "-p", "Hi", template=None, tty=True)[1] == "Hi there [end of text]\n"
    _, out, err = talk("Hi there", "-p", "Hi", "-sys", "x")
    assert out == "Hi there [end of text]\n" and "-cnv" in err


def test_each_piped_line_is_a_message(talk: Any) -> None:
    text = "u:Hi|a:one|a:"
    code, out, err = talk(text, "-cnv", "-n", "3", stdin="Hi\n")
    assert (code, out, err) == (0, "one\n", "")
    assert talk(text, "-cnv", stdin="") == (0, "", "")
    assert talk(text, "-cnv", stdin="\n\n") == (0, "", "")
    code, out, _ = talk(text, "-cnv", "-n", "3", stdin="Hi\n/regen\n/clear\nHi\n/exit\nHi\n")
    assert (code, out) == (0, "one\none\none\n")


def test_single_turn(talk: Any) -> None:
    text = "s:S|u:Hi|a:one two"
    assert talk(text, "-st", "-sys", "S", "-p", "Hi", stdin="more") == (0, "one two\n", "")
    assert talk(text, "-st", "-sys", "S", stdin="Hi\nmore\n") == (0, "one two\n", "")
    assert talk(text, "-st", "-sys", "S", "-p", "Hi", "-r", " t")[1] == "one\n"


def test_messages_in_a_terminal(talk: Any) -> None:
    code, out, err = talk("u:Hi|a:one", "-p", "Hi", "--perf", stdin="", tty=True)
    assert code == 0 and out.startswith("\n> Hi\none\n")
    assert "/help" in err and "t/s" in err
    commands = "/help\n/nosuch\n/regen\n/read /no/such\n/glob /no/such*\n/exit\n"
    code, out, err = talk("u:Hi|a:one", "-cnv", stdin=commands, tty=True)
    assert code == 0
    for said in (
        "/regen  ",
        "no command /nosuch",
        "no reply to regenerate",
        "No such file",
        "no file",
    ):
        assert said in err


def test_files_are_sent_with_the_next_message(talk: Any, tmp_path: Path) -> None:
    file = tmp_path / "x.txt"
    file.write_text("inside")
    prompt = f"u:--- File: {file} ---\ninside\nWhat?|a:"
    code, out, err = talk(prompt + "that", "-cnv", stdin=f"/read {file}\nWhat?\n")
    assert (code, out) == (0, "that\n") and "6 characters" in err
    assert talk(prompt + "that", "-cnv", stdin=f"/glob {tmp_path}/*.txt\nWhat?\n")[1] == "that\n"


def test_reasoning(talk: Any) -> None:
    template = (
        TEMPLATE + "{% if enable_thinking %}<think>{% else %}{{ reasoning_effort }}{% endif %}"
    )
    template += "{# </think> #}"
    args = ("-st", "-p", "Hi")
    text = "u:Hi|a:<think>\nSo.\n</think>\n\nHello"
    marked = "[Start thinking]\nSo.\n[End thinking]\n\nHello\n"
    assert talk(text, *args, template=template)[1] == marked
    colored = f"\x1b[90m{marked}".replace("[End thinking]", "[End thinking]\x1b[0m")
    assert talk(text, *args, "--color", "on", template=template)[1] == colored
    raw = talk(text, *args, "--reasoning-format", "none", template=template)[1]
    assert raw == "\nSo.\n</think>\n\nHello\n"
    cut = talk(text, *args, "-n", "3", template=template)[1]
    assert cut == "[Start thinking]\nSo\n[End thinking]\n\n"
    off = ("-rea", "off", "--reasoning-effort", "low")
    assert talk("u:Hi|a:lowHello", *args, *off, template=template)[1] == "Hello\n"


def test_templates(talk: Any, tmp_path: Path) -> None:
    code, out, _ = talk("USER: Hi\nASSISTANT: x", "-st", "-p", "Hi", "--chat-template", "vicuna")
    assert (code, out) == (0, " x\n")
    file = tmp_path / "t.jinja"
    file.write_text("{{ messages[0].content }}{{ mark }}")
    args = ("--chat-template-file", str(file), "--chat-template-kwargs", '{"mark": "!"}')
    assert talk("Hi!yes", "-st", "-p", "Hi", *args)[1] == "yes\n"
    code, out, err = talk("", "-st", "-p", "Hi", "--chat-template", "nosuch")
    assert (code, out) == (1, "") and err.startswith("error: there is no chat format")
    for name in ("messages", "self"):
        args = ("--chat-template-kwargs", f'{{"{name}": []}}')
        code, out, err = talk("", "-cnv", *args)
        assert (code, out) == (1, "") and err.count("\n") == 1 and f"named '{name}'" in err
    endless = "{% for i in range(9**9) %}{% endfor %}"
    code, out, err = talk("", "-st", "-p", "Hi", template=endless)
    assert (code, out) == (1, "") and err.count("\n") == 1 and "chat template was stopped" in err
    assert "chatml" in talk("", "-st", "-p", "Hi", "-n", "1", template=None)[2]


def test_a_refused_or_too_long_message_is_dropped(talk: Any) -> None:
    template = (
        "{% for m in messages %}{% if m.content == 'bad' %}{{ raise_exception('no') }}{% endif %}"
        "{{ m.role[0] }}:{{ m.content }}|{% endfor %}a:"
    )
    stdin = "bad\n" + "x" * 300 + "\nHi\n"
    code, out, err = talk("u:Hi|a:one", "-cnv", stdin=stdin, template=template)
    assert (code, out) == (0, "one\n")
    assert "rejects these messages: no" in err and "a context of 256 takes" in err


def test_interactive_mode_without_a_template(talk: Any) -> None:
    args = ("-i", "-p", "A", "-r", "B:", "--in-prefix", "<", "--in-suffix", r">\n")
    code, out, _ = talk("A xB:<me>\nyB:", *args, stdin="me\n", template=None)
    assert (code, out) == (0, "A xB:yB:")
    code, out, _ = talk("A<me>\ny", *args, "-if", stdin="me\n", template=None)
    assert out == "AyB:"


def test_ctrl_c_stops_a_reply_and_a_second_one_exits(
    talk: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    shown: list[str] = []

    def write(text: str) -> None:
        shown.append(text)
        if len(shown) == 2:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(conversation, "write_raw", write)
    assert talk("u:Hi|a:one two three", "-cnv", stdin="Hi\n")[0] == 0
    assert shown == ["o", "n", "\n"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    for asks in (False, True):
        with conversation._CtrlC(asks) as ctrl_c, ctrl_c.stops_reply() as stopped:
            os.kill(os.getpid(), signal.SIGINT)
            assert stopped()
            if asks:
                os.kill(os.getpid(), signal.SIGINT)
                assert "again to exit" in capfd.readouterr().err
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)


def test_regen_differs_with_a_fixed_seed(talk: Any) -> None:
    code, out, _ = talk(
        "", "-cnv", "--temp", "5", "--min-p", "0", "--top-k", "0", "-s", "7", "-n", "12",
        stdin="Hi\n/regen\n", template="{{ messages[0].content }}",
    )  # fmt: skip
    first, second = out.split("\n")[0], out.split("\n")[1]
    assert code == 0 and first != second


@pytest.mark.parametrize(
    ("multiline", "typed", "read"),
    [
        (False, "one\n", ["one"]),
        (False, "one\\\ntwo\n", ["one\ntwo"]),
        (False, "one\\\n", ["one"]),
        (False, "\nx", ["", "x"]),
        (True, "one\ntwo\\\nthree/\n", ["one\ntwo", "three"]),
        (False, "caf\udce9\n", ["caf\ufffd"]),
    ],
)
def test_line_reader(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, multiline: bool, typed: str, read: list[str]
) -> None:
    file = tmp_path / "stdin"
    file.write_bytes(typed.encode("utf-8", "surrogateescape"))
    with file.open(encoding="utf-8") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        with PlainReader(multiline=multiline) as reader:
            got = [reader.read("> ") for _ in read]
            assert got == read
            assert reader.read("> ") is None


def test_the_history_keeps_the_last_messages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(lines, "_MAX_MESSAGES", 3)
    path = tmp_path / "pyllama" / "history"
    for i in range(8):
        history = lines._history()
        assert len([*history.load_history_strings()]) == min(i, 3)
        history.store_string(f"message\n{i}")
    assert [*lines._history().load_history_strings()] == [f"message\n{i}" for i in (7, 6, 5)]
    assert path.read_text().count("+message") < 7
    assert path.stat().st_mode & 0o077 == 0
    path.unlink()
    path.mkdir()  # cannot be read or written
    history = lines._history()
    history.store_string("lost")
    assert not [*history.load_history_strings()]


def test_colors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert output.wants_color("on") and not output.wants_color("off")
    assert output.wants_color("auto")
    for terminal in ("dumb", "unknown"):
        monkeypatch.setenv("TERM", terminal)
        assert not output.wants_color("auto") and output.wants_color("on")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not output.wants_color("auto")


def test_hub_options_reach_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def hub_model(repo: str, file: str | None, hub: Any) -> Path:
        seen.append((repo, file, hub.token, hub.offline))
        raise ModelError("stop here")

    monkeypatch.setattr("pyllama.hub.hub.hub_model", hub_model)

    def run(*args: str) -> tuple[int, str]:
        result = CliRunner().invoke(completion.command, ["-p", "x", *args])
        return result.exit_code, result.stderr

    assert run("-hf", "u/m:Q8_0", "-hft", "t", "--offline") == (1, "error: stop here\n")
    assert run("-hfr", "u/m", "-hff", "x.gguf")[0] == 1
    assert seen == [("u/m:Q8_0", None, "t", True), ("u/m", "x.gguf", None, False)]
    assert run("-hf", "u/m", "-m", "x.gguf") == (
        2,
        "error: give the model with -m or with -hf, not both\n",
    )
    assert run("-hff", "x.gguf")[0] == 2


def test_modes() -> None:
    plain = dict.fromkeys(ConversationOptions.__dataclass_fields__, False)
    plain |= {"conversation": None, "system_prompt": None, "system_prompt_file": None}
    plain |= {"chat_template": None, "chat_template_file": None}

    def mode(has_template: bool = True, **options: Any) -> str:
        return ConversationOptions(**{**plain, **options}).mode(has_template)

    assert mode() == "complete"
    assert mode(conversation=True) == mode(single_turn=True) == mode(interactive=True) == "talk"
    assert mode(has_template=False, interactive=True) == "write"
    assert mode(conversation=False, interactive_first=True) == "write"
    assert mode(conversation=False, single_turn=True) == "complete"
    assert mode(in_prefix="x") == "complete"
    assert mode(in_prefix="x", conversation=True) == "write"
