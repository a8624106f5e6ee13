"""``pyllama-graph``: draw the compute graph of a model, its memory plan and its times.

    pyllama-graph -m x.gguf --html graph.html --layers 0:2 --color buffer
    pyllama-graph -m x.gguf --profile --depth 512 --html t.html --trace t.json

Without --profile and --trace only the header of the model is read, and the output is deterministic.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from pyllama.parameters import Flags, row
from pyllama.parameters.loading import MAX_THREADS

from ...loading import load_model, model_path
from ...options.options import ModelOptions, OffloadOptions, model_option
from ...options.sparse import sparse_options
from ...output import write
from ...parameters import from_options, parameter_options
from ...tool import Program, version_option

if TYPE_CHECKING:
    from pyggml.viz import Options
    from pyllama.inspect.graph_export import DrawnGraph


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


@dataclass(frozen=True, eq=False, repr=False)
class GraphOptions:
    """What is drawn, and into which files."""

    # fmt: off
    tokens: int = row(1, "Batch size of the graph, in tokens.", Flags("--tokens", low=1))
    dot: Path | None = row(None, "Write Graphviz DOT.  [default: stdout]", Flags("--dot"))
    svg: Path | None = row(None, "Write an SVG picture.", Flags("--svg"))
    html: Path | None = row(None,
        "Write an interactive HTML page with details, memory and times.", Flags("--html"))
    memory: Path | None = row(None, "Write an SVG picture of the memory plan.", Flags("--memory"))
    trace: Path | None = row(None, "Run the graph; write a Chrome trace (JSON, for Perfetto).",
        Flags("--trace"))
    profile: bool = row(False, "Run the graph; colour nodes by time and list the slowest.",
        Flags("--profile"))
    depth: int = row(512, "Tokens in the KV cache before the measured decode.", Flags("--depth"))
    threads: int = row(-1,
        "Threads for --profile and --trace. -1: min(affinity, cgroup quota, physical cores).",
        Flags("-t", "--threads", low=-1, high=MAX_THREADS))
    layers: tuple[int, int] | None = row(None, "Draw only layers A to B-1.",
        Flags("--layers", metavar="A:B", callback=_layers))
    fold: Literal["none", "layers", "repeats"] = row("none",
        "layers: draw each layer as one box (also without a value). repeats: draw identical "
        "layers once.", Flags("--fold", choices=("none", "layers", "repeats"), is_flag=False,
            flag_value="layers"))
    color: Literal["family", "backend", "split", "buffer", "time"] | None = row(None,
        "Property shown by colours.  [default: family; with --profile: time]",
        Flags("--color", choices=("family", "backend", "split", "buffer", "time")))
    # fmt: on


@click.command("graph", cls=Program)
@model_option
@parameter_options(GraphOptions)
@sparse_options
@version_option()
def command(model: Path | None, **options: Any) -> None:
    """Draw the compute graph of a model, its memory plan and its times."""
    own = from_options(GraphOptions, options)
    run = own.profile or own.trace is not None
    if own.color == "time" and not run:
        raise click.UsageError("--color time needs a run: add --profile")
    path = model_path(model)
    sparse = {name: options[name] for name in ("sparse", "sparse_threshold")}
    if run:
        on_cpu = OffloadOptions(devices="none")  # runs of several devices have no trace
        drawn = _run(ModelOptions(model=path, offload=on_cpu, **sparse), own)
    else:
        from pyllama.inspect.graph_export import drawn_graph

        drawn = drawn_graph(path, own.tokens, **sparse)
    drawing: Options = {
        "title": drawn.title,
        "color": own.color or ("time" if own.profile else "family"),
        "layers": own.layers,
        "fold": own.fold,
        "times": drawn.times,
        "backend_of": lambda tensor: "CPU",
        "split_of": lambda tensor: 0,
    }
    written = _write_files(drawn, drawing, own)
    if own.profile:
        from pyggml.viz import times_table

        write(times_table(drawn.times or {}) + "\n")
    elif not written:
        from pyggml.viz import graph_dump_dot

        write(graph_dump_dot(drawn.graph, **drawing))


def _run(model_options: ModelOptions, own: GraphOptions) -> DrawnGraph:
    n_threads = own.threads if own.threads > 0 else None
    model = load_model(model_options, n_threads=n_threads)
    from pyllama.inspect.graph_profile import profiled_graph

    return profiled_graph(
        model, model.path, n_tokens=own.tokens, depth=own.depth, n_threads=n_threads
    )


def _write_files(drawn: DrawnGraph, options: Options, own: GraphOptions) -> bool:
    """Write the requested files; return whether there were any."""
    from pyggml.viz import graph_dump_dot, graph_html, graph_svg, memory_svg, write_trace

    if own.dot is not None:
        graph_dump_dot(drawn.graph, own.dot, **options)
    if own.svg is not None:
        graph_svg(drawn.graph, own.svg, **options)
    if own.html is not None:
        graph_html(drawn.graph, own.html, plan=drawn.plan, **options)
    if own.memory is not None:
        title, layers = f"{drawn.title}: memory plan", options["layers"]
        memory_svg(drawn.plan, drawn.graph, own.memory, title=title, layers=layers)
    if own.trace is not None:
        write_trace(own.trace, drawn.runs[0], drawn.title)
    return any((own.dot, own.svg, own.html, own.memory, own.trace))
