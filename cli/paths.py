"""Reads and checks the files that options name."""

from __future__ import annotations

from pathlib import Path

import click

MAX_TEXT_BYTES = 256 << 20  # limit of a prompt file; far above any context size


def read_text(path: Path, errors: str = "replace") -> str:
    """Return the text of a user's file or pipe; see `pyllama.inputs.text.read_text`."""
    from pyllama.inputs.text import read_text

    return read_text(path, MAX_TEXT_BYTES, errors)


def writable(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    """Check, before any work is done, that an output file can be made there (a callback)."""
    if value is not None and value.is_dir():
        raise click.BadParameter(f"{value}: is a directory; name a file.")
    return _in_directory(value)


def writable_folder(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    """Check, before any work is done, that an output folder can be made there (a callback)."""
    if value is not None and value.exists() and not value.is_dir():
        raise click.BadParameter(f"{value}: is a file; name a folder.")
    return _in_directory(value)


def refuse_source(output: Path, *sources: Path | None) -> None:
    """Raise click.UsageError if the output is a file, or a part of one, that the command reads."""
    from pyggml.gguf.parts import parts_by_name

    read = [part for path in sources if path is not None for part in parts_by_name(path)]
    if output.exists() and any(part.exists() and output.samefile(part) for part in read):
        raise click.UsageError(f"{output} is read too: give the output another name")


def _in_directory(value: Path | None) -> Path | None:
    if value is not None and not value.parent.is_dir():
        raise click.BadParameter(f"{value.parent}: no such directory to write to.")
    return value


def svg_path(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    """Check the name and the folder of a picture (a callback)."""
    if value is not None and value.suffix.lower() != ".svg":
        raise click.BadParameter(f"{str(value)!r}: the picture is SVG; use a name ending in .svg.")
    return writable(ctx, param, value)
