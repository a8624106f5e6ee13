"""``pyllama-graph``: draw the compute graph of a model as DOT, and as SVG with graphviz.

    pyllama-graph -m x.gguf --tokens 1 --dot graph.dot --layers 0:2 --color buffer

The text is the same on every run: ids come from tensor names, not from addresses.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Literal

import click

from ..loading import model_path
from ..options import INT32_MAX, Number, model_option
from ..output import write
from ..tool import Tool, version_option


def _layers(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> tuple[int, int] | None:
    """``a:b``: layers a up to, not with, b."""
    if value is None:
        return None
    match = re.fullmatch(r"(\d+):(\d+)", value)
    if match is None or int(match[1]) >= int(match[2]):
        raise click.BadParameter(f"{value!r} is not a range A:B with A < B, such as 0:2.")
    return int(match[1]), int(match[2])


@click.command("graph", cls=Tool)
@model_option
@click.option(
    "--tokens",
    type=Number(1, INT32_MAX),
    default=1,
    show_default=True,
    help="Tokens in the decode that is drawn.",
)
@click.option("--dot", type=click.Path(path_type=Path), help="Write DOT here.  [default: stdout]")
@click.option("--svg", type=click.Path(path_type=Path), help="Write SVG here; needs graphviz.")
@click.option(
    "--layers", metavar="A:B", callback=_layers, help="Draw only layers A up to, not with, B."
)
@click.option(
    "--color",
    type=click.Choice(["family", "buffer"]),
    default="family",
    show_default=True,
    help="Colour nodes by op family, or by the buffer that holds them.",
)
@version_option()
def command(
    model: Path | None,
    tokens: int,
    dot: Path | None,
    svg: Path | None,
    layers: tuple[int, int] | None,
    color: Literal["family", "buffer"],
) -> None:
    """Draw the compute graph of a model."""
    if svg is not None and shutil.which("dot") is None:
        raise click.UsageError("--svg needs graphviz's `dot` on the PATH; --dot FILE works without")
    path = model_path(model)
    from pyllama.graph_export import graph_dot

    text = graph_dot(path, n_tokens=tokens, layers=layers, color=color, out=dot)
    if svg is not None:
        from pyggml.viz import render_svg

        render_svg(text, svg)
    if dot is None and svg is None:
        write(text)
