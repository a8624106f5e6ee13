"""What the sub-commands of ``pyllama-gguf`` share: the file they are given, and a question."""

from __future__ import annotations

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
    """Ask before something that may do harm. Raises: click.Abort: the answer is not YES."""
    note(warning)
    if click.prompt("Enter exactly YES to go on", err=True) != "YES":
        raise click.ClickException("nothing was changed: the answer was not YES")
