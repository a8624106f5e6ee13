"""Reads the user's messages: in a terminal with an editor and a history, from a pipe line by line.

    with line_reader(editing=True) as lines:
        text = lines.read("> ")                    # None at the end of input

From ``with`` to its end a terminal shows no typed characters, except while `read` waits: text typed
meanwhile is the beginning of the next message. Pasted text is one message, however many lines it
has. The last 1000 messages are kept in the user's state folder.
"""

from __future__ import annotations

import contextlib
import functools
import io
import shutil
import signal
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self

import click

from . import interrupt
from .output import is_dumb_terminal

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

_MAX_MESSAGES = 1000  # of the history
_BOLD_GREEN, _RESET = "\x1b[1m\x1b[32m", "\x1b[0m"


class Discarded(Exception):
    """Ctrl-C discarded a line that was not empty."""


class Reader:
    """A source of messages; a terminal shows no typed characters between reads."""

    def __init__(self, *, by_lines: bool) -> None:
        self._quiet = QuietTerminal(by_lines=by_lines)

    def __enter__(self) -> Self:
        self._quiet.begin()
        return self

    def __exit__(self, *exc: object) -> None:
        self._quiet.end()

    def read(self, prompt: str, before: str = "") -> str | None:
        """Return the next message, None at the end of input.

        Args:
            prompt: marks the line of the input in a terminal.
            before: the unfinished line of output that the message continues.

        Raises:
            Discarded: Ctrl-C in a line that was not empty.
            KeyboardInterrupt: Ctrl-C in an empty line.
        """
        raise NotImplementedError


def line_reader(
    *,
    editing: bool = True,
    color: bool = False,
    multiline: bool = False,
    commands: Sequence[str] = (),
) -> Reader:
    r"""Return a reader of stdin.

    Args:
        editing: use the editor, if stdin and stdout are a terminal.
        color: show the input in bold green.
        multiline: a message ends with a line that ends in ``\``, or in ``/``, as in llama.cpp.
            Otherwise a ``\`` at the end of a line continues the message on the next line.
        commands: words that Tab completes at the beginning; those with a space at their end are
            followed by the name of a file.
    """
    if editing and not is_dumb_terminal() and sys.stdin.isatty() and sys.stdout.isatty():
        return Editor(color, multiline, commands)
    return PlainReader(color, multiline)


class PlainReader(Reader):
    """Reads lines without editing, from a pipe or a terminal; see `line_reader`."""

    def __init__(self, color: bool = False, multiline: bool = False) -> None:
        super().__init__(by_lines=True)
        self._multiline, self._color = multiline, color
        self._terminal = sys.stdin.isatty() and sys.stdout.isatty()
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")

    def read(self, prompt: str, before: str = "") -> str | None:
        lines: list[str] = []
        while True:
            line = self._line(prompt if not lines else ". " if prompt else "")
            if line is None:
                if self._terminal:
                    sys.stdout.write("\n")
                return "\n".join(lines) if lines else None
            line, ends = _without_mark(line, self._multiline)
            lines.append(line)
            if ends:
                return "\n".join(lines)

    def _line(self, prompt: str) -> str | None:
        if not self._terminal:
            return _read_line()
        self._quiet.end()
        try:
            sys.stdout.write(prompt + (_BOLD_GREEN if self._color else ""))
            sys.stdout.flush()
            return _read_line()
        finally:
            self._quiet.begin()
            if self._color:
                sys.stdout.write(_RESET)
                sys.stdout.flush()


class Editor(Reader):
    """An editor of messages with history, in a terminal; see `line_reader`.

    Enter sends the message, Alt-Enter begins a line.
    """

    def __init__(self, color: bool, multiline: bool, commands: Sequence[str]) -> None:
        super().__init__(by_lines=False)
        self._color, self._multiline, self._commands = color, multiline, commands

    @functools.cached_property
    def _session(self) -> PromptSession[str]:
        return _session(self._color, self._keys(), self._commands)

    def read(self, prompt: str, before: str = "") -> str | None:
        mark = ". " if prompt else ""

        def continuation(width: int, line: int, n_wraps: int) -> str:
            return "" if n_wraps else mark

        if before:  # the editor redraws it
            sys.stdout.write("\r")
            prompt = _last_row(click.unstyle(before))
        try:
            text = self._session.prompt([("", prompt)], prompt_continuation=continuation)
        except EOFError:
            return None
        except KeyboardInterrupt:
            if self._session.default_buffer.text:
                raise Discarded from None
            raise
        finally:
            self._quiet.mark_pastes()
        text = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        return text.rstrip("\n")

    def _keys(self) -> KeyBindings:
        from prompt_toolkit.enums import DEFAULT_BUFFER
        from prompt_toolkit.filters import has_focus
        from prompt_toolkit.key_binding import KeyBindings

        keys = KeyBindings()

        @keys.add("enter", filter=has_focus(DEFAULT_BUFFER))
        def enter(event: KeyPressEvent) -> None:
            buffer, ends = event.current_buffer, not self._multiline
            if buffer.document.is_cursor_at_the_end:
                last = buffer.document.current_line
                line, ends = _without_mark(last, self._multiline)
                buffer.delete_before_cursor(len(last) - len(line))
            if ends:
                buffer.validate_and_handle()
            else:
                buffer.newline(copy_margin=False)

        @keys.add("escape", "enter", filter=has_focus(DEFAULT_BUFFER))
        def new_line(event: KeyPressEvent) -> None:
            event.current_buffer.newline(copy_margin=False)

        return keys


class QuietTerminal:
    """Stops the terminal from showing typed characters, which stay in its queue.

    Does nothing if stdin or stdout is no terminal, and on Windows, which shows typed characters
    only while they are read.

    Args:
        by_lines: whether input is read by lines; else by keys, as the editor does.
    """

    def __init__(self, *, by_lines: bool) -> None:
        self._by_lines, self._before = by_lines, list[Any]()
        self._is_terminal = sys.stdin.isatty() and sys.stdout.isatty()

    def begin(self) -> None:
        """Stop showing typed characters, until `end` or the end of the process."""
        if not self._is_terminal or self._before:
            return
        try:
            import termios
        except ImportError:  # Windows
            return
        self._before = termios.tcgetattr(sys.stdin)
        quiet = [*self._before[:6], [*self._before[6]]]
        quiet[3] &= ~termios.ECHO
        if not self._by_lines:
            quiet[0] &= ~termios.ICRNL
            quiet[3] &= ~termios.ICANON
            quiet[6][termios.VMIN], quiet[6][termios.VTIME] = 1, 0
        termios.tcsetattr(sys.stdin, termios.TCSANOW, quiet)
        interrupt.before_exit.append(self.end)
        self.mark_pastes()
        if signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL:
            signal.signal(signal.SIGTSTP, self._suspend)

    def end(self) -> None:
        """Restore the terminal."""
        if not self._before:
            return
        import termios

        termios.tcsetattr(sys.stdin, termios.TCSANOW, self._before)
        self.mark_pastes(False)
        self._before = []
        interrupt.before_exit.remove(self.end)
        if signal.getsignal(signal.SIGTSTP) == self._suspend:
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)

    def mark_pastes(self, marked: bool = True) -> None:
        """Make the terminal mark pasted text, unless input is read by lines."""
        if self._before and not self._by_lines:
            sys.stdout.write("\x1b[?2004h" if marked else "\x1b[?2004l")
            sys.stdout.flush()

    def _suspend(self, number: int, frame: object) -> None:
        """Restore the terminal while the process is stopped (Ctrl-Z)."""
        self.end()
        signal.raise_signal(signal.SIGTSTP)
        self.begin()


def _without_mark(line: str, multiline: bool) -> tuple[str, bool]:
    """Return a line without the mark at its end, and whether it ends the message."""
    if line.endswith("\\"):
        return line[:-1], multiline
    if multiline and line.endswith("/"):
        return line[:-1], True
    return line, not multiline


def _read_line() -> str | None:
    line = sys.stdin.readline()
    return line.rstrip("\r\n") if line else None


def _last_row(text: str) -> str:
    """Return the part of an unfinished line that is in the last row of the terminal."""
    from prompt_toolkit.utils import get_cwidth

    columns, row = shutil.get_terminal_size().columns, ""
    for character in text:
        row = row + character if get_cwidth(row + character) <= columns else character
    return row


def _session(color: bool, keys: KeyBindings, commands: Sequence[str]) -> PromptSession[str]:
    """Return the editor; it asks the terminal no questions, some of which do not answer."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.lexers import SimpleLexer
    from prompt_toolkit.output import ColorDepth, create_output
    from prompt_toolkit.output.vt100 import Vt100_Output
    from prompt_toolkit.styles import Style

    output = create_output()
    if isinstance(output, Vt100_Output):
        output.enable_cpr = False
    return PromptSession(
        multiline=True,
        history=_history(),
        key_bindings=keys,
        completer=_completer(commands),
        complete_while_typing=False,
        enable_suspend=True,
        lexer=SimpleLexer("class:input"),
        style=Style.from_dict({"input": "bold ansigreen" if color else ""}),
        color_depth=None if color else ColorDepth.DEPTH_1_BIT,
        output=output,
    )


def _completer(commands: Sequence[str]) -> Completer:
    """Return what Tab completes: commands, and names of files after those that take one."""
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
    from prompt_toolkit.document import Document

    paths = PathCompleter(expanduser=True)

    class Commands(Completer):
        def get_completions(
            self, document: Document, complete_event: CompleteEvent
        ) -> Iterable[Completion]:
            text = document.text_before_cursor
            word, space, rest = text.partition(" ")
            if not space and text.startswith("/"):
                for command in commands:
                    if command.startswith(text):
                        yield Completion(command, start_position=-len(text))
            elif f"{word} " in commands and "\n" not in rest:
                yield from paths.get_completions(Document(rest), complete_event)

    return Commands()


def _history() -> History:
    """Return the history, in a file that only the user can read."""
    from prompt_toolkit.history import FileHistory

    from pyggml.env import user_state_dir
    from pyggml.files import replacing

    path = user_state_dir("pyllama") / "history"

    class Messages(FileHistory):
        def load_history_strings(self) -> Iterable[str]:
            with contextlib.suppress(OSError):
                found = [*super().load_history_strings()]  # the newest first
                if len(found) > 2 * _MAX_MESSAGES:
                    with replacing(path) as temporary:
                        kept = FileHistory(temporary)
                        for text in reversed(found[:_MAX_MESSAGES]):
                            kept.store_string(text)
                        temporary.chmod(0o600)
                return found[:_MAX_MESSAGES]
            return []

        def store_string(self, string: str) -> None:
            with contextlib.suppress(OSError):  # failing to save the history is no error
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                path.touch(mode=0o600)
                super().store_string(string)

    return Messages(path)
