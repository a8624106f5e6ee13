"""The file argument of the sub-commands of ``pyllama-gguf``, and the confirmation prompt."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ...output import note

F = TypeVar("F", bound=Callable[..., Any])


def gguf_argument(name: str = "model") -> Callable[[F], F]:
    """Declare an argument that names a GGUF file, or the first file of a split model."""
    return click.argument(name, type=click.Path(path_type=Path))


def confirm(warning: str) -> None:
    """Print a warning and ask for confirmation.

    Raises:
        click.ClickException: the answer is not YES.
    """
    note(warning)
    click.echo("Type YES to continue: ", err=True, nl=False)
    if sys.stdin.readline().strip() != "YES":
        raise click.ClickException(
            "nothing was changed: the answer was not YES; use --force to skip the question"
        )
