"""``pyllama-imatrix``: compute an importance matrix for pyllama-quantize, like llama-imatrix.

pyllama-imatrix -m x-F16.gguf -f text.txt -o imatrix.gguf
pyllama-imatrix --in-file a.gguf,b.gguf -o both.gguf         # merge two files
pyllama-imatrix --in-file imatrix.gguf --show-statistics

Prints the perplexity after each chunk. Writes llama.cpp's GGUF format.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyllama.parameters import Flags, row

from ..loading import load_model, make_context
from ..options.options import ContextOptions, ModelOptions, context_options, model_options
from ..options.prompt import PromptOptions, escape_option, prompt_options
from ..output import note, write, write_line
from ..parameters import from_options, parameter_options
from ..paths import refuse_source, writable
from ..tool import Program, ignored_option, version_option

if TYPE_CHECKING:
    from pyllama.eval.imatrix import Collector
    from pyllama.quantize import Importance


def _paths(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> list[Path]:
    """Return the paths of a repeatable, comma-separated option."""
    return [Path(name) for value in values for name in next(csv.reader([value]), [])]


@dataclass(frozen=True, eq=False, repr=False)
class ImatrixOptions:
    """Which chunks of the text count, and what is written when."""

    # fmt: off
    output: Path = row(Path("imatrix.gguf"), "Output file.",
        Flags("-o", "--output", "--output-file", callback=writable))
    first_chunk: int = row(0, "Start at this chunk of the text.",
        Flags("--chunk", "--from-chunk"))
    chunks: int = row(-1, "Maximum number of chunks to process. -1: all.",
        Flags("--chunks", low=-1))
    output_frequency: int = row(10, "Save the output file every N chunks.",
        Flags("-ofreq", "--output-frequency", low=1))
    save_frequency: int = row(0, "Save a copy, FILE.at_N, every N chunks. 0: never.",
        Flags("--save-frequency"))
    process_output: bool = row(False, "Collect data for output.weight as well.",
        Flags("--process-output"))
    no_ppl: bool = row(False, "Do not print the perplexity.", Flags("--no-ppl/--ppl"))
    parse_special: bool = row(False, "Parse special tokens in the text.", Flags("--parse-special"))
    in_file: Sequence[Path] = row((),
        "Importance matrices to merge and to start from. Repeatable.",
        Flags("--in-file", metavar="FILE,...", repeated=True, callback=_paths))
    show_statistics: bool = row(False, "Print statistics of --in-file, and exit.",
        Flags("--show-statistics"))
    # fmt: on


@click.command("imatrix", cls=Program)
@prompt_options
@parameter_options(ImatrixOptions)
@model_options
@escape_option(default=False)
@context_options(n_ctx=512)
@ignored_option("--output-format", takes_value=True, why="the output is always GGUF")
@ignored_option("--no-warmup", "--warmup")
@version_option()
def command(**options: Any) -> None:
    """Compute an importance matrix: the mean squared activation of each column over a text."""
    from pyllama.eval.imatrix import Collector
    from pyllama.quantize import read_importance, write_importance

    own = from_options(ImatrixOptions, options)
    refuse_source(own.output, options["model"], options["file"])
    before = [read_importance(path) for path in own.in_file]
    chunk_size = next((i.chunk_size for i in before if i.chunk_size), options["n_ctx"])
    collector = Collector(chunk_size, process_output=own.process_output)
    for importance in before:
        collector.importance.add(importance)
    if own.show_statistics:
        if not own.in_file:
            raise click.UsageError("--show-statistics needs a file: give one with --in-file")
        _show(collector.importance)
        return
    text = from_options(PromptOptions, options).text()
    if text is None and not own.in_file:
        raise click.UsageError("give the text with -f or -p, or matrices with --in-file")
    if text is not None:
        _collect(collector, text, own, options)
    write_importance(own.output, collector.importance)
    n = len(collector.importance.entries)
    note(f"{own.output}: {n} matrices over {collector.importance.n_chunks} chunks")


def _collect(collector: Collector, text: str, own: ImatrixOptions, options: dict[str, Any]) -> None:
    from pyllama.eval.imatrix import collect_importance
    from pyllama.quantize import write_importance

    sizes = ContextOptions.from_click(options)
    model = load_model(ModelOptions.from_click(options), sizes.params(), sizes.n_threads)
    context = make_context(model, sizes)
    tokens = model.tokenizer.encode(text, add_special=True, parse_special=own.parse_special)
    importance = collector.importance
    importance.chunk_size = importance.chunk_size or context.n_ctx_seq
    if options["file"] is not None:
        importance.datasets.append(str(options["file"]))
    n_chunks = None if own.chunks < 0 else own.chunks
    note(f"imatrix: {len(tokens)} tokens, n_ctx={context.n_ctx_seq}, n_batch={context.n_batch}")
    result = None
    for result in collect_importance(context, tokens, collector, own.first_chunk, n_chunks):
        if not own.no_ppl:
            write(f"[{result.chunk}]{result.ppl:.4f},")
        if result.chunk % own.output_frequency == 0:
            write_importance(own.output, importance)
        if own.save_frequency and result.chunk % own.save_frequency == 0:
            name = f"{own.output.name}.at_{importance.n_chunks}"
            write_importance(own.output.with_name(name), importance)
    if result is not None and not own.no_ppl:
        write(f"\nFinal estimate: PPL = {result.ppl:.4f} +/- {result.error:.5f}\n")


def _show(importance: Importance) -> None:
    from pyllama.quantize.statistics import matrix_statistics

    names = ("sum E[A²]", "mean", "deviation", "skewness", "kurtosis", "evenness")
    write(f"{'Tensor':>40s}" + "".join(f"{name:>14s}" for name in names) + "\n")
    for one in matrix_statistics(importance):
        values = (one.sum, one.mean, one.deviation, one.skewness, one.kurtosis, one.evenness)
        write_line(f"{one.name[-40:]:>40s}" + "".join(f"{value:14.4f}" for value in values))
