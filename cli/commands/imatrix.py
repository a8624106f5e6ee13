"""``pyllama-imatrix``: compute an importance matrix for pyllama-quantize, like llama-imatrix.

pyllama-imatrix -m x-F16.gguf -f text.txt -o imatrix.gguf
pyllama-imatrix --in-file a.gguf,b.gguf -o both.gguf         # merge two files
pyllama-imatrix --in-file imatrix.gguf --show-statistics

Prints the perplexity after each chunk. Writes llama.cpp's GGUF format.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..loading import load_model, make_context
from ..options.options import ContextOptions, ModelOptions, context_options, model_options
from ..options.parameters import INT32_MAX, Number
from ..options.prompt import PromptOptions, escape_option, prompt_options
from ..output import note, write, write_line
from ..paths import writable
from ..tool import Program, ignored_option, version_option

if TYPE_CHECKING:
    from pyllama.eval.imatrix import Collector
    from pyllama.quantize import Importance

_PATH = click.Path(path_type=Path)


def _paths(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> list[Path]:
    """Return the paths of a repeatable, comma-separated option."""
    return [Path(name) for value in values for name in next(csv.reader([value]), [])]


@click.command("imatrix", cls=Program)
@prompt_options
@click.option("-o", "--output", "--output-file", "output", type=_PATH, callback=writable,
              default=Path("imatrix.gguf"), help="Output file.")  # fmt: skip
@click.option("--chunk", "--from-chunk", "first_chunk", type=Number(0, INT32_MAX), default=0,
              help="Start at this chunk of the text.")  # fmt: skip
@click.option("--chunks", type=Number(-1, INT32_MAX), default=-1,
              help="Maximum number of chunks to process. -1: all.")  # fmt: skip
@click.option("-ofreq", "--output-frequency", type=Number(1, INT32_MAX), default=10,
              help="Save the output file every N chunks.")  # fmt: skip
@click.option("--save-frequency", type=Number(0, INT32_MAX), default=0,
              help="Save a copy, FILE.at_N, every N chunks. 0: never.")  # fmt: skip
@click.option("--process-output", is_flag=True, help="Collect data for output.weight as well.")
@click.option("--no-ppl/--ppl", "no_ppl", help="Do not print the perplexity.")
@click.option("--parse-special", is_flag=True, help="Parse special tokens in the text.")
@click.option("--in-file", multiple=True, callback=_paths, metavar="FILE,...",
              help="Importance matrices to merge and to start from. Repeatable.")  # fmt: skip
@click.option("--show-statistics", is_flag=True, help="Print statistics of --in-file, and exit.")
@model_options
@escape_option(default=False)
@context_options(n_ctx=512)
@ignored_option("--output-format", takes_value=True, why="the output is always GGUF")
@ignored_option("--no-warmup", "--warmup")
@version_option()
def command(in_file: list[Path], show_statistics: bool, output: Path, **options: Any) -> None:
    """Compute an importance matrix: the mean squared activation of each column over a text."""
    from pyllama.eval.imatrix import Collector
    from pyllama.quantize import read_importance, write_importance

    before = [read_importance(path) for path in in_file]
    chunk_size = next((i.chunk_size for i in before if i.chunk_size), options["n_ctx"])
    collector = Collector(chunk_size, process_output=options["process_output"])
    for importance in before:
        collector.importance.add(importance)
    if show_statistics:
        if not in_file:
            raise click.UsageError("--show-statistics needs a file: give one with --in-file")
        _show(collector.importance)
        return
    text = PromptOptions.from_click(options).text()
    if text is None and not in_file:
        raise click.UsageError("give the text with -f or -p, or matrices with --in-file")
    if text is not None:
        _collect(collector, text, output, options)
    write_importance(output, collector.importance)
    n = len(collector.importance.entries)
    note(f"{output}: {n} matrices over {collector.importance.n_chunks} chunks")


def _collect(collector: Collector, text: str, output: Path, options: dict[str, Any]) -> None:
    from pyllama.eval.imatrix import collect_importance
    from pyllama.quantize import write_importance

    sizes = ContextOptions.from_click(options)
    model = load_model(ModelOptions.from_click(options), sizes.params(), sizes.n_threads)
    context = make_context(model, sizes)
    special = options["parse_special"]
    tokens = model.tokenizer.encode(text, add_special=True, parse_special=special)
    importance = collector.importance
    importance.chunk_size = importance.chunk_size or context.n_ctx_seq
    if options["file"] is not None:
        importance.datasets.append(str(options["file"]))
    n_chunks = None if options["chunks"] < 0 else options["chunks"]
    note(f"imatrix: {len(tokens)} tokens, n_ctx={context.n_ctx_seq}, n_batch={context.n_batch}")
    result = None
    for result in collect_importance(context, tokens, collector, options["first_chunk"], n_chunks):
        if not options["no_ppl"]:
            write(f"[{result.chunk}]{result.ppl:.4f},")
        if result.chunk % options["output_frequency"] == 0:
            write_importance(output, importance)
        if options["save_frequency"] and result.chunk % options["save_frequency"] == 0:
            name = f"{output.name}.at_{importance.n_chunks}"
            write_importance(output.with_name(name), importance)
    if result is not None and not options["no_ppl"]:
        write(f"\nFinal estimate: PPL = {result.ppl:.4f} +/- {result.error:.5f}\n")


def _show(importance: Importance) -> None:
    from pyllama.quantize.statistics import matrix_statistics

    names = ("sum E[A²]", "mean", "deviation", "skewness", "kurtosis", "evenness")
    write(f"{'Tensor':>40s}" + "".join(f"{name:>14s}" for name in names) + "\n")
    for row in matrix_statistics(importance):
        values = (row.sum, row.mean, row.deviation, row.skewness, row.kurtosis, row.evenness)
        write_line(f"{row.name[-40:]:>40s}" + "".join(f"{value:14.4f}" for value in values))
