"""``pyllama-graph``: draw the compute graph of a model as DOT, and as SVG with graphviz.

    pyllama-graph -m x.gguf --tokens 1 --dot graph.dot --layers 0:2 --color buffer

The text is the same on every run: ids come from tensor names, not from addresses.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

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
    color: str,
) -> None:
    """Draw the compute graph of a model."""
    graphviz = shutil.which("dot")
    if svg is not None and graphviz is None:
        raise click.UsageError("--svg needs graphviz's `dot` on the PATH; --dot FILE works without")
    path = model_path(model)
    from pyllama.graph_export import graph_dot

    text = graph_dot(path, n_tokens=tokens, layers=layers, color=color)
    if dot is not None:
        dot.write_text(text, encoding="utf-8")
    if svg is not None and graphviz is not None:
        _render(graphviz, text, svg)
    if dot is None and svg is None:
        write(text)


def _render(graphviz: str, text: str, svg: Path) -> None:
    done = subprocess.run(
        [graphviz, "-Tsvg", "-o", str(svg)], input=text, text=True, encoding="utf-8",
        capture_output=True, check=False,
    )  # fmt: skip
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise click.ClickException(f"graphviz cannot draw {svg}: {reason}")
