"""``pyllama-bench``: tokens per second, with llama-bench's options, fields and tables.

    pyllama-bench -m x.gguf -p 512 -n 128 -r 5     # a Markdown table
    pyllama-bench -m x.gguf -n 0 -p 128-512*2 -o json
    pyllama-bench --compare before.jsonl after.jsonl

Runs every combination of the lists, and prints each row as soon as it is measured.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ..loading import load_model
from ..machine import machine_options
from ..options.bench_lists import Lists, list_options
from ..options.hub import hub_options
from ..options.options import ModelOptions, load_options, numa_option
from ..options.parameters import Number
from ..output import note, write
from ..tables.bench import PRINTERS, Printer, comparison_table
from ..tool import Program, ignored_option, version_option
from ..unsupported import OP_OFFLOAD


def _compare(ctx: click.Context, param: click.Parameter, paths: tuple[Path, Path] | None) -> None:
    """Print the comparison and exit; nothing is measured."""
    if paths is None:
        return
    from pyllama.bench.compare import compare, read_rows

    write(comparison_table(compare(read_rows(paths[0]), read_rows(paths[1])), paths))
    ctx.exit()


def _paths(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> list[Path]:
    """Return the paths of a repeatable, comma-separated option; existing names may have commas."""
    found = [
        Path(part)
        for text in given
        for part in ([text] if text and Path(text).exists() else filter(None, text.split(",")))
    ]
    if given and not found:
        raise click.BadParameter(f"{' '.join(given)!r} names no file.")
    return found


@click.command("bench", cls=Program)
@click.option(
    "-m",
    "--model",
    "models",
    multiple=True,
    callback=_paths,
    metavar="PATH",
    help="GGUF files, separated by commas. Repeatable.  [default: a small demo model, downloaded "
    "once]",
)
@hub_options
@list_options
@click.option(
    "-r",
    "--repetitions",
    type=Number(1, 10_000),
    default=5,
    help="Number of runs per test.",
)
@click.option(
    "--delay",
    type=Number(0, 86_400),
    default=0,
    help="Seconds to wait before each test.",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(list(PRINTERS)),
    default="md",
    help="Output format on stdout.",
)
@click.option(
    "-oe", "--output-err", type=click.Choice(list(PRINTERS)), help="Output format on stderr."
)
@click.option("--no-warmup", is_flag=True, help="Skip the warm-up run.")
@click.option("--progress", is_flag=True, help="Print the running test on stderr.")
@click.option(
    "--compare",
    nargs=2,
    type=click.Path(path_type=Path),
    metavar="A B",
    expose_value=False,
    is_eager=True,
    callback=_compare,
    help="Compare two result files (json or jsonl, of pyllama-bench or llama-bench) and exit.",
)
@load_options
@machine_options
@ignored_option("-nopo", "--no-op-offload", takes_value=True, why=OP_OFFLOAD)
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
    """Benchmark prompt processing and text generation."""
    from pyllama.bench.bench import run_bench

    lists, loading = Lists.from_click(options), ModelOptions.from_click({**options, "model": None})
    loaded = {"load_mode": options["load_mode"] or "auto", "repack": loading.repack}
    cases = list(lists.cases())
    printers = _printers(options["output"], options["output_err"], lists.extra_fields())
    if not cases:
        raise click.UsageError("nothing to measure: give -p or -n above 0, or -pg")
    largest = max((case.params for case in cases), key=lambda params: params.n_ctx)
    if loading.offload.dry_run:
        load_model(replace(loading, model=models[0] if models else None), largest)
    _print(printers, "header")
    total = len(cases) * len(models or (None,))
    index = 0
    try:
        for path in models or (None,):
            model = load_model(replace(loading, model=path), largest)
            for case in cases:
                index += 1
                if progress:
                    note(f"pyllama-bench: benchmark {index}/{total}: {case}")
                time.sleep(delay)
                row = run_bench(model, case, repetitions=repetitions, warmup=not no_warmup)
                _print(printers, "row", {**row, **loaded})
    finally:  # complete the output also after an error or Ctrl-C
        _print(printers, "footer")


def _printers(out: str, err: str | None, extra: list[str]) -> list[tuple[Any, Printer]]:
    """Return pairs of a write function and the printer of its format."""
    found: list[tuple[Any, Printer]] = [(write, PRINTERS[out](extra))]
    if err is not None:
        found.append((sys.stderr.write, PRINTERS[err](extra)))
    return found


def _print(printers: list[tuple[Any, Printer]], part: str, *row: Any) -> None:
    for write_text, printer in printers:
        write_text(getattr(printer, part)(*row))
