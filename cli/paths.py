"""Options that name a file: text to read, or a file to write."""

from __future__ import annotations

import io
from pathlib import Path

import click

MAX_TEXT_BYTES = 256 << 20  # of a prompt; evaluating one takes 10,000 times as much work


def read_text(path: Path) -> str:
    """The text of a file or pipe; what is not UTF-8 in it is U+FFFD, line ends are newlines.

    Raises:
        OSError: it cannot be read, or is too large.
    """
    from pyggml.files import read_input

    with io.TextIOWrapper(io.BytesIO(read_input(path, MAX_TEXT_BYTES)), "utf-8", "replace") as text:
        return text.read()


def writable(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    """An option's callback: refuse a file in no folder before the work is done, not after it."""
    if value is not None and not value.parent.is_dir():
        raise click.BadParameter(f"{value.parent}: no such directory to write to.")
    return value
