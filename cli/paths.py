"""Options that name a file to write."""

from __future__ import annotations

from pathlib import Path

import click


def writable(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    """An option's callback: refuse a file in no folder before the work is done, not after it."""
    if value is not None and not value.parent.is_dir():
        raise click.BadParameter(f"{value.parent}: no such directory to write to.")
    return value
