"""``pyllama-graph``: draw the compute graph of a model, its memory plan and its times.

    pyllama-graph -m x.gguf --html graph.html --layers 0:2 --color buffer
    pyllama-graph -m x.gguf --profile --depth 512 --html t.html --trace t.json

Without --profile and --trace only the header of the model is read, and the output is deterministic.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyllama.parameters.loading import MAX_THREADS

from ..loading import load_model, model_path
from ..options.options import ModelOptions, OffloadOptions, model_option
from ..options.parameters import INT32_MAX, Number
from ..options.sparse import sparse_options
from ..output import write
from ..tool import Program, version_option

if TYPE_CHECKING:
    from pyggml.viz import Options
    from pyllama.inspect.graph_export import DrawnGraph

_FILE = click.Path(path_type=Path)


def _layers(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> tuple[int, int] | None:
    """Parse ``a:b``: layers a to b - 1."""
    if value is None:
        return None
    match = re.fullmatch(r"(\d{1,9}):(\d{1,9})", value)
    if match is None or int(match[1]) >= int(match[2]):
        raise click.BadParameter(f"{value!r} is not a range A:B with A < B, such as 0:2.")
    return int(match[1]), int(match[2])


@click.command("graph", cls=Program)
@model_option
@click.option(
    "--tokens",
    type=Number(1, INT32_MAX),
    default=1,
    help="Batch size of the graph, in tokens.",
)
@click.option("--dot", type=_FILE, help="Write Graphviz DOT.  [default: stdout]")
@click.option("--svg", type=_FILE, help="Write an SVG picture.")
@click.option(
    "--html", type=_FILE, help="Write an interactive HTML page with details, memory and times."
)
@click.option("--memory", type=_FILE, help="Write an SVG picture of the memory plan.")
@click.option(
    "--trace", type=_FILE, help="Run the graph; write a Chrome trace (JSON, for Perfetto)."
)
@click.option(
    "--profile", is_flag=True, help="Run the graph; colour nodes by time and list the slowest."
)
@click.option(
    "--depth",
    type=Number(0, INT32_MAX),
    default=512,
    help="Tokens in the KV cache before the measured decode.",
)
@click.option(
    "-t",
    "--threads",
    type=Number(-1, MAX_THREADS),
    default=-1,
    help="Threads for --profile and --trace. -1: min(affinity, cgroup quota, physical cores).",
)
@click.option("--layers", metavar="A:B", callback=_layers, help="Draw only layers A to B-1.")
@click.option(
    "--fold",
    is_flag=False,
    flag_value="layers",
    type=click.Choice(["none", "layers", "repeats"]),
    default="none",
    help="layers: draw each layer as one box (also without a value). repeats: draw identical "
    "layers once.",
)
@click.option(
    "--color",
    type=click.Choice(["family", "backend", "split", "buffer", "time"]),
    help="Property shown by colours.  [default: family; with --profile: time]",
)
@sparse_options
@version_option()
def command(
    model: Path | None, tokens: int, depth: int, threads: int, profile: bool, **choices: Any
) -> None:
    """Draw the compute graph of a model, its memory plan and its times."""
    run = profile or choices["trace"] is not None
    if choices["color"] == "time" and not run:
        raise click.UsageError("--color time needs a run: add --profile")
    path = model_path(model)
    sparse = {name: choices[name] for name in ("sparse", "sparse_threshold")}
    if run:
        on_cpu = OffloadOptions(devices="none")  # runs of several devices have no trace
        loading = ModelOptions(model=path, offload=on_cpu, **sparse)
        drawn = _run(loading, tokens, depth, threads)
    else:
        from pyllama.inspect.graph_export import drawn_graph

        drawn = drawn_graph(path, tokens, **sparse)
    options: Options = {
        "title": drawn.title,
        "color": choices["color"] or ("time" if profile else "family"),
        "layers": choices["layers"],
        "fold": choices["fold"],
        "times": drawn.times,
        "backend_of": lambda tensor: "CPU",
        "split_of": lambda tensor: 0,
    }
    written = _write_files(drawn, options, choices)
    if profile:
        from pyggml.viz import times_table

        write(times_table(drawn.times or {}) + "\n")
    elif not written:
        from pyggml.viz import graph_dump_dot

        write(graph_dump_dot(drawn.graph, **options))


def _run(model_options: ModelOptions, tokens: int, depth: int, threads: int) -> DrawnGraph:
    n_threads = threads if threads > 0 else None
    model = load_model(model_options, n_threads=n_threads)
    from pyllama.inspect.graph_profile import profiled_graph

    return profiled_graph(model, model.path, n_tokens=tokens, depth=depth, n_threads=n_threads)


def _write_files(drawn: DrawnGraph, options: Options, files: dict[str, Path | None]) -> bool:
    """Write the requested files; return whether there were any."""
    from pyggml.viz import graph_dump_dot, graph_html, graph_svg, memory_svg, write_trace

    if files["dot"] is not None:
        graph_dump_dot(drawn.graph, files["dot"], **options)
    if files["svg"] is not None:
        graph_svg(drawn.graph, files["svg"], **options)
    if files["html"] is not None:
        graph_html(drawn.graph, files["html"], plan=drawn.plan, **options)
    if files["memory"] is not None:
        title, layers = f"{drawn.title}: memory plan", options["layers"]
        memory_svg(drawn.plan, drawn.graph, files["memory"], title=title, layers=layers)
    if files["trace"] is not None:
        write_trace(files["trace"], drawn.runs[0], drawn.title)
    return any(files[name] is not None for name in ("dot", "svg", "html", "memory", "trace"))
