"""``pyllama-bench``: tokens per second, with llama-bench's options, fields and tables.

    pyllama-bench -m x.gguf -p 512 -n 128 -r 5     # a Markdown table
    pyllama-bench -m x.gguf -n 0 -p 128-512*2 -o json
    pyllama-bench --compare before.jsonl after.jsonl

The product of all lists is run, and each row is printed as soon as it is measured.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ..bench_lists import Lists, list_options
from ..bench_table import PRINTERS, Printer, comparison_table
from ..hub_options import hub_options
from ..loading import load_model
from ..machine import machine_options
from ..options import ModelOptions, Number, gpu_options, load_options, numa_option
from ..output import note, write
from ..tool import Tool, ignored_option, version_option
from ..unsupported import NO_GPU


def _compare(ctx: click.Context, param: click.Parameter, paths: tuple[Path, Path] | None) -> None:
    """Print the comparison and end: nothing is measured."""
    if paths is None:
        return
    from pyllama.bench.compare import compare, read_rows

    write(comparison_table(compare(read_rows(paths[0]), read_rows(paths[1])), paths))
    ctx.exit()


def _paths(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> list[Path]:
    """Repeated or by commas; a comma may also be part of a name."""
    found = [
        Path(part)
        for text in given
        for part in ([text] if text and Path(text).exists() else filter(None, text.split(",")))
    ]
    if given and not found:
        raise click.BadParameter(f"{' '.join(given)!r} names no file.")
    return found


@click.command("bench", cls=Tool)
@click.option(
    "-m",
    "--model",
    "models",
    multiple=True,
    callback=_paths,
    metavar="PATH",
    help="GGUF files, by commas or repeated. Without it: a small demo model, fetched once.",
)
@hub_options
@list_options
@click.option(
    "-r",
    "--repetitions",
    type=Number(1, 10_000),
    default=5,
    show_default=True,
    help="Runs of each case.",
)
@click.option(
    "--delay",
    type=Number(0, 86_400),
    default=0,
    show_default=True,
    help="Seconds to wait before each case.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(list(PRINTERS)),
    default="md",
    show_default=True,
    help="Form of the results.",
)
@click.option(
    "-oe", "--output-err", type=click.Choice(list(PRINTERS)), help="The same on stderr, too."
)
@click.option("--no-warmup", is_flag=True, help="Measure from the first run.")
@click.option("--progress", is_flag=True, help="Say on stderr what is running.")
@click.option(
    "--compare",
    nargs=2,
    type=click.Path(path_type=Path),
    metavar="A B",
    expose_value=False,
    is_eager=True,
    callback=_compare,
    help="Measure nothing: a table of what two result files (json or jsonl, ours or "
    "llama-bench's) share, and how many times A's speed B has.",
)
@load_options
@machine_options
@gpu_options
@ignored_option("-nkvo", "--no-kv-offload", takes_value=True, why=NO_GPU)
@ignored_option("-nopo", "--no-op-offload", takes_value=True, why=NO_GPU)
@numa_option
@ignored_option("-v", "--verbose")
@version_option()
def command(
    models: list[Path],
    repetitions: int,
    delay: int,
    no_warmup: bool,
    progress: bool,
    **options: Any,
) -> None:
    """Measure prompt and generation speed."""
    from pyllama.bench.bench import run_bench

    lists, loading = Lists.take(options), ModelOptions.take({**options, "model": None})
    loaded = {"load_mode": options["load_mode"] or "auto", "repack": not options["no_repack"]}
    cases = list(lists.cases())
    printers = _printers(options["output"], options["output_err"], lists.extra_fields())
    if not cases:
        raise click.UsageError("nothing to measure: give -p or -n above 0, or -pg")
    _print(printers, "header")
    total = len(cases) * len(models or (None,))
    index = 0
    try:
        for path in models or (None,):
            model = load_model(replace(loading, model=path))
            for case in cases:
                index += 1
                if progress:
                    note(f"pyllama-bench: benchmark {index}/{total}: {case}")
                time.sleep(delay)
                row = run_bench(model, case, repetitions=repetitions, warmup=not no_warmup)
                _print(printers, "row", {**row, **loaded})
    finally:  # what was measured before an error or Ctrl-C is a whole file
        _print(printers, "footer")


def _printers(out: str, err: str | None, extra: list[str]) -> list[tuple[Any, Printer]]:
    """Where to write, and in what form."""
    found: list[tuple[Any, Printer]] = [(write, PRINTERS[out](extra))]
    if err is not None:
        found.append((sys.stderr.write, PRINTERS[err](extra)))
    return found


def _print(printers: list[tuple[Any, Printer]], part: str, *row: Any) -> None:
    for put, printer in printers:
        put(getattr(printer, part)(*row))
