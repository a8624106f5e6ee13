"""What the sub-commands of ``pyllama-gguf`` share: the file they are given, and a question."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ...output import note

F = TypeVar("F", bound=Callable[..., Any])


def gguf_argument(name: str = "model") -> Callable[[F], F]:
    """A GGUF file, or the first part of several."""
    return click.argument(name, type=click.Path(path_type=Path))


def confirm(warning: str) -> None:
    """Ask before something that may do harm. Raises: ClickException: the answer is not YES."""
    note(warning)
    click.echo("Enter exactly YES to go on: ", err=True, nl=False)
    if sys.stdin.readline().strip() != "YES":
        raise click.ClickException(
            "nothing was changed: the answer was not YES; --force does not ask"
        )
