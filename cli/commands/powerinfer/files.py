"""The option for an SVG picture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ...paths import writable


def svg_option(flag: str) -> Callable[[Any], Any]:
    """Declare an option that names an SVG file to write."""
    return click.option(
        flag, type=click.Path(path_type=Path), callback=_svg, help="Write a picture (SVG)."
    )


def _svg(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    if value is not None and value.suffix.lower() != ".svg":
        raise click.BadParameter(f"{str(value)!r}: the picture is SVG; use a name ending in .svg.")
    return writable(ctx, param, value)
