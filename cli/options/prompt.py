"""The prompt options, and llama.cpp's escape sequences.

@prompt_options
@escape_option()
def command(**options: Any) -> None:
    text = from_options(PromptOptions, options).text()
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from pyllama.parameters import Flags, row

from ..parameters import parameter_options
from ..paths import MAX_TEXT_BYTES

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class PromptOptions:
    """Source of the prompt, and whether its escape sequences are processed."""

    prompt: str | None = row(None, "Prompt.", Flags("-p", "--prompt"))
    file: Path | None = row(None, "File with the prompt.", Flags("-f", "--file"))
    escape: bool = True

    def text(self, given: bytes | None = None, *, whole_file: bool = False) -> str | None:
        """Return the prompt, None if there is none; invalid UTF-8 becomes U+FFFD.

        Args:
            given: a prompt from another source, used instead of -p and -f.
            whole_file: keep a newline at the end of the file; llama.cpp drops it.

        Raises:
            click.UsageError: both -p and -f are given.
            OSError: the file cannot be read.
        """
        from pyllama.inputs.text import utf8

        data = self._read(whole_file) if given is None else utf8(given)
        if data is None:
            return None
        return (process_escapes(data) if self.escape else data).decode("utf-8", "replace")

    def _read(self, whole_file: bool) -> bytes | None:
        if self.prompt is not None and self.file is not None:
            raise click.UsageError("give the prompt with -p or with -f, not both")
        if self.prompt is not None:
            return self.prompt.encode("utf-8", "surrogateescape")
        if self.file is None:
            return None
        from pyggml.files import read_input
        from pyllama.inputs.text import utf8

        data = utf8(read_input(self.file, MAX_TEXT_BYTES))
        return data if whole_file else data.removesuffix(b"\n")


prompt_options = parameter_options(PromptOptions)


def escape_option(default: bool = True) -> Callable[[F], F]:
    """Declare ``-e`` and ``--no-escape``."""
    return click.option(
        "-e/--no-escape",
        "--escape",
        "escape",
        default=default,
        help=r"Process the escapes \n, \r, \t, \', \", \\ and \xHH in the prompt.",
    )


_ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"'": b"'", b'"': b'"', b"\\": b"\\"}


def process_escapes(data: bytes) -> bytes:
    r"""Return ``data`` with ``\n \r \t \' \" \\ \xHH`` replaced; other backslashes are kept.

    Source: llama.cpp, ``string_process_escapes``.
    """

    def replace(match: re.Match[bytes]) -> bytes:
        code = match[1]
        return _ESCAPES[code] if code in _ESCAPES else bytes([int(code[1:], 16)])

    return re.sub(rb"\\([nrt'\"\\]|x[0-9A-Fa-f]{2})", replace, data)
