"""A program in a terminal, as a person sees it and types into it.

with Terminal(["pyllama-cli"]) as terminal:
    terminal.wait("> ")
    terminal.type("Hi\r")
    terminal.lines()                           # the screen, without trailing spaces
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import pyte

from ..waiting import WAIT_S

CTRL_C, CTRL_D, CTRL_Z, ESCAPE = "\x03", "\x04", "\x1a", "\x1b"
UP = "\x1b[A"


def pasted(text: str) -> str:
    """What a terminal sends for a paste when it was told to mark them; Enter is CR."""
    return "\x1b[200~" + text.replace("\n", "\r") + "\x1b[201~"


class Terminal:
    """A pseudo-terminal with a screen, and a program in it.

    Args:
        command: the program and its arguments.
        env: added to the environment.
        size: columns and rows.
        folder: where it runs; None for the current one.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        size: tuple[int, int] = (80, 40),
        folder: Path | None = None,
    ) -> None:
        columns, rows = size
        self.screen = pyte.Screen(columns, rows)
        self._stream, self.output = pyte.ByteStream(self.screen), b""
        self._parent, self._child = os.openpty()
        fcntl.ioctl(self._child, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.modes = termios.tcgetattr(self._child)
        self.process = subprocess.Popen(
            command,
            stdin=self._child, stdout=self._child, stderr=self._child,
            env={**os.environ, "TERM": "xterm-256color", **(env or {})},
            cwd=folder, preexec_fn=self._become_leader,
        )  # fmt: skip

    def _become_leader(self) -> None:
        """Make the terminal the controlling one, so that it sends signals."""
        os.setsid()
        fcntl.ioctl(self._child, termios.TIOCSCTTY, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(WAIT_S)
        os.close(self._child)
        os.close(self._parent)

    def type(self, keys: str) -> None:
        """Type keys; Enter is CR."""
        os.write(self._parent, keys.encode())

    def read(self, seconds: float) -> None:
        """Show what the program prints until it prints nothing for some time."""
        while select.select([self._parent], [], [], seconds)[0]:
            data = os.read(self._parent, 65536)
            self.output += data
            with contextlib.suppress(TypeError):  # pyte does not know all sequences
                self._stream.feed(data)

    def wait(self, pattern: str, seconds: float = WAIT_S) -> None:
        """Wait until the screen contains a match."""
        end = time.monotonic() + seconds
        while not re.search(pattern, self.text(), re.MULTILINE):
            if time.monotonic() > end:
                raise AssertionError(f"no {pattern!r} in:\n{self.text()}\n{self.output!r}")
            self.read(0.02)

    def lines(self) -> list[str]:
        """The lines of the screen, up to the last that is not empty."""
        return self.text().splitlines()

    def text(self) -> str:
        """The screen as text, without trailing spaces and lines."""
        return "\n".join(line.rstrip() for line in self.screen.display).rstrip()

    def cursor_line(self) -> str:
        """The line with the cursor."""
        return self.screen.display[self.screen.cursor.y].rstrip()

    def exit_code(self, seconds: float = WAIT_S) -> int:
        """Wait for the program's end and return its exit code."""
        end = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < end:
            self.read(0.02)
        self.read(0.1)
        return self.process.wait(1)

    def is_raw(self) -> bool:
        """Whether a program reads each key, not whole lines."""
        return not termios.tcgetattr(self._child)[3] & termios.ICANON

    def is_restored(self) -> bool:
        """Whether the terminal is as it was before the program began."""
        return termios.tcgetattr(self._child) == self.modes
