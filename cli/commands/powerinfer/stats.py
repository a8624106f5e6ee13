"""``pyllama-powerinfer stats``: evaluate a text with a ReLU model and count active neurons.

    pyllama-powerinfer stats -m x.gguf -f text.txt -o stats.json --plot stats.svg
    pyllama-powerinfer stats -m x.gguf -f text.txt --activation activation

Prints a table with a line per layer. ``plan`` reads the JSON file or the folder.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyllama.parameters.loading import MAX_THREADS

from ...loading import load_model
from ...options.options import ModelOptions, model_options
from ...options.parameters import INT32_MAX, Number
from ...options.prompt import PromptOptions, escape_option, prompt_options
from ...output import progress_bar, write
from ...paths import writable
from ...tool import Program, version_option
from .files import svg_option

if TYPE_CHECKING:
    from pyllama.sparsity.stats import Statistics

_PATH = click.Path(path_type=Path)


@click.command("stats", cls=Program)
@prompt_options
@click.option("-o", "--output", type=_PATH, callback=writable, help="Write the statistics as JSON.")
@svg_option("--plot")
@click.option(
    "--activation",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write PowerInfer's activation_0.pt, ... into this folder.",
)
@click.option(
    "-c",
    "--ctx-size",
    type=Number(1, INT32_MAX),
    default=512,
    help="Number of tokens per chunk of the text; each chunk starts with an empty KV cache.",
)
@click.option(
    "--chunks",
    type=Number(-1, INT32_MAX),
    default=-1,
    help="Maximum number of chunks to process. -1: all.",
)
@click.option(
    "-t",
    "--threads",
    type=Number(-1, MAX_THREADS),
    default=-1,
    help="Threads. -1: min(affinity, cgroup quota, physical cores).",
)
@model_options
@escape_option(default=False)
@version_option()
def command(
    output: Path | None, plot: Path | None, activation: Path | None, ctx_size: int, chunks: int,
    threads: int, **options: Any,
) -> None:  # fmt: skip
    """Count the active neurons of a ReLU model over a text.

    All neurons are computed. If --sparse names a predictor (predictor, signs, svd), its recall and
    precision at the threshold are reported.
    """
    text = PromptOptions.from_click(options).text()
    if text is None:
        raise click.UsageError("give the text with -f or -p")
    n_threads = threads if threads > 0 else None
    model = load_model(ModelOptions.from_click(options), n_threads=n_threads)
    tokens = model.tokenizer.encode(text, add_special=True, parse_special=False)
    from pyllama.sparsity.collect import collect

    with progress_bar(f"counting active neurons of {len(tokens)} tokens") as progress:
        stats = collect(
            model,
            tokens,
            n_ctx=ctx_size,
            n_chunks=None if chunks < 0 else chunks,
            n_threads=n_threads,
            progress=progress,
        )
    for line in _table(stats):
        write(line + "\n")
    _write_files(stats, output, plot, activation)


def _write_files(
    stats: Statistics, output: Path | None, plot: Path | None, activation: Path | None
) -> None:
    if output is not None:
        from pyllama.sparsity.stats import save_stats

        save_stats(output, stats)
    if plot is not None:
        from pyllama.sparsity.pictures import stats_svg

        stats_svg(stats, plot)
    if activation is not None:
        from pyllama.sparsity.activation_files import write_activations

        write_activations(activation, stats.counts)


def _table(stats: Statistics) -> Iterator[str]:
    """Yield the lines of a table of percentages, with unions over 8 and 64 tokens."""
    import numpy as np

    batches = [i for i, size in enumerate(stats.batch_sizes) if size in (8, 64)]
    columns = {"active": stats.density}
    columns |= {f"any of {stats.batch_sizes[i]}": stats.union[:, i] for i in batches}
    columns |= {f"hottest {share:.0%}": stats.coverage(share) for share in (0.05, 0.2)}
    if stats.source:
        columns |= {"predicted": stats.predicted, "recall": stats.recall,
                    "precision": stats.precision}  # fmt: skip
    source = f", {stats.source} at threshold {stats.threshold:g}" if stats.source else ""
    n_layer, n_ff = stats.counts.shape
    yield f"{stats.model}: {n_layer} layers of {n_ff} neurons, {stats.n_tokens} tokens{source}"
    yield "| layer | " + " | ".join(f"{name:>12}" for name in columns) + " |"
    yield "| ----: | " + " | ".join("-" * 11 + ":" for _ in columns) + " |"
    rows = [(str(i), [values[i] for values in columns.values()]) for i in range(n_layer)]
    finite = [values[np.isfinite(values)] for values in columns.values()]
    rows.append(("mean", [values.mean() if values.size else math.nan for values in finite]))
    for name, values in rows:
        cells = ("" if math.isnan(x) else f"{100 * x:.2f} %" for x in values)
        yield f"| {name:>5} | " + " | ".join(f"{cell:>12}" for cell in cells) + " |"
