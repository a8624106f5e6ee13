"""Reads and checks the files that options name."""

from __future__ import annotations

import io
from pathlib import Path

import click

MAX_TEXT_BYTES = 256 << 20  # limit of a prompt file; far above any context size


def read_text(path: Path, encoding: str = "utf-8", errors: str = "replace") -> str:
    """Return the text of a file or pipe; line ends become newlines.

    Args:
        encoding, errors: see `bytes.decode`; by default invalid UTF-8 becomes U+FFFD.

    Raises:
        OSError: the file cannot be read, or is too large.
        UnicodeDecodeError: with ``errors="strict"``, the text is not valid.
    """
    from pyggml.files import read_input

    with io.TextIOWrapper(io.BytesIO(read_input(path, MAX_TEXT_BYTES)), encoding, errors) as text:
        return text.read()


def writable(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    """Check, before any work is done, that the folder of an output file exists (a callback)."""
    if value is not None and not value.parent.is_dir():
        raise click.BadParameter(f"{value.parent}: no such directory to write to.")
    return value
