"""Reads user input: with line editing and history in a terminal, plain lines from a pipe.

    with LineReader(editing=True) as lines:
        text = lines.read("> ")                    # None at the end of input

The last 1000 lines of history are saved in the user's state folder. Ctrl-C raises
KeyboardInterrupt.
"""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path
from types import ModuleType

_MAX_LINES = 1000
_BOLD_GREEN, _RESET = "\x1b[1m\x1b[32m", "\x1b[0m"


class LineReader:
    r"""Reads messages of one or several lines.

    Args:
        editing: use readline's editing and history, if readline is available.
        color: show the input in bold green.
        multiline: a message ends with a line that ends in ``\``. Otherwise a ``\`` at the end of a
            line continues the message on the next line.
    """

    def __init__(
        self, *, editing: bool = True, color: bool = False, multiline: bool = False
    ) -> None:
        self._multiline, self._color = multiline, color
        self._terminal = sys.stdin.isatty() and sys.stdout.isatty()
        self._readline = _find_readline() if editing and self._terminal else None
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")

    def __enter__(self) -> LineReader:
        if self._readline is not None:
            with contextlib.suppress(OSError):
                self._readline.read_history_file(str(_history()))
        return self

    def __exit__(self, *exc: object) -> None:
        if self._readline is None:
            return
        with contextlib.suppress(OSError):  # failing to save the history is no error
            from pyggml.files import replacing

            path = _history()
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._readline.set_history_length(_MAX_LINES)
            with replacing(path) as temporary:
                temporary.chmod(0o600)
                self._readline.write_history_file(str(temporary))

    def read(self, prompt: str) -> str | None:
        r"""Return the next message, None at the end of input.

        A ``/`` at the end of a line sends the message without the slash, as in llama.cpp.
        """
        lines: list[str] = []
        while True:
            line = self._line(prompt if not lines else "")
            if line is None:
                return "\n".join(lines) if lines else None
            continues = line.endswith("\\") != self._multiline
            if line.endswith("\\"):
                line = line[:-1]
            elif self._multiline and line.endswith("/"):
                line, continues = line[:-1], False
            lines.append(line)
            if not continues:
                return "\n".join(lines)

    def _line(self, prompt: str) -> str | None:
        if not self._terminal:
            line = sys.stdin.readline()
            return line.rstrip("\r\n") if line else None
        try:
            return input(self._colored(prompt))
        except EOFError:
            return None
        finally:
            if self._color:
                sys.stdout.write(_RESET)
                sys.stdout.flush()

    def _colored(self, prompt: str) -> str:
        if not self._color:
            return prompt
        # readline ignores text between \1 and \2 when it computes the width of the prompt
        return f"{prompt}\1{_BOLD_GREEN}\2" if self._readline is not None else prompt + _BOLD_GREEN


def _find_readline() -> ModuleType | None:
    try:
        import readline
    except ImportError:  # Windows
        return None
    return readline


def _history() -> Path:
    from pyggml.env import user_state_dir

    return user_state_dir("pyllama") / "history"
