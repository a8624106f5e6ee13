"""``pyllama-powerinfer stats``: evaluate a text with a ReLU model and count active neurons.

    pyllama-powerinfer stats -m x.gguf -f text.txt -o stats.json --plot stats.svg
    pyllama-powerinfer stats -m x.gguf -f text.txt --activation activation

Prints a table with a line per layer. ``plan`` reads the JSON file or the folder.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyllama.parameters import Flags, row
from pyllama.parameters.loading import MAX_THREADS

from ...loading import load_model
from ...options.options import ModelOptions, model_options
from ...options.prompt import PromptOptions, escape_option, prompt_options
from ...output import progress_bar, write
from ...parameters import from_options, parameter_options
from ...paths import svg_path, writable
from ...tool import Program, version_option

if TYPE_CHECKING:
    from pyllama.sparsity.stats import Statistics


@dataclass(frozen=True, eq=False, repr=False)
class StatsOptions:
    """Which part of the text counts, and where the statistics go."""

    # fmt: off
    output: Path | None = row(None, "Write the statistics as JSON.",
        Flags("-o", "--output", callback=writable))
    plot: Path | None = row(None, "Write a picture (SVG).", Flags("--plot", callback=svg_path))
    activation: Path | None = row(None,
        "Write PowerInfer's activation_0.pt, ... into this folder.",
        Flags("--activation", type=click.Path(path_type=Path, file_okay=False)))
    ctx_size: int = row(512,
        "Number of tokens per chunk of the text; each chunk starts with an empty KV cache.",
        Flags("-c", "--ctx-size", low=1))
    chunks: int = row(-1, "Maximum number of chunks to process. -1: all.",
        Flags("--chunks", low=-1))
    threads: int = row(-1, "Threads. -1: min(affinity, cgroup quota, physical cores).",
        Flags("-t", "--threads", low=-1, high=MAX_THREADS))
    # fmt: on


@click.command("stats", cls=Program)
@prompt_options
@parameter_options(StatsOptions)
@model_options
@escape_option(default=False)
@version_option()
def command(**options: Any) -> None:
    """Count the active neurons of a ReLU model over a text.

    All neurons are computed. If --sparse names a predictor (predictor, cross, signs, svd), its
    recall and precision at the threshold are reported.
    """
    own, text = from_options(StatsOptions, options), from_options(PromptOptions, options).text()
    if text is None:
        raise click.UsageError("give the text with -f or -p")
    n_threads = own.threads if own.threads > 0 else None
    model = load_model(ModelOptions.from_click(options), n_threads=n_threads)
    tokens = model.tokenizer.encode(text, add_special=True, parse_special=False)
    from pyllama.sparsity.collect import collect

    with progress_bar(f"counting active neurons of {len(tokens)} tokens") as progress:
        stats = collect(
            model,
            tokens,
            n_ctx=own.ctx_size,
            n_chunks=None if own.chunks < 0 else own.chunks,
            n_threads=n_threads,
            progress=progress,
        )
    for line in _table(stats):
        write(line + "\n")
    _write_files(stats, own)


def _write_files(stats: Statistics, own: StatsOptions) -> None:
    if own.output is not None:
        from pyllama.sparsity.stats import save_stats

        save_stats(own.output, stats)
    if own.plot is not None:
        from pyllama.sparsity.pictures import stats_svg

        stats_svg(stats, own.plot)
    if own.activation is not None:
        from pyllama.sparsity.activation_files import write_activations

        write_activations(own.activation, stats.counts)


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
