"""``pyllama-bench``: tokens per second, with llama-bench's options, fields and tables.

    pyllama-bench -m x.gguf -p 512 -n 128 -r 5     # a Markdown table
    pyllama-bench -m x.gguf -n 0 -p 128-512*2 -o json
    pyllama-bench --compare before.jsonl after.jsonl

Runs every combination of the lists, and prints each row as soon as it is measured.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from pyllama.parameters import Flags, row

from ..loading import load_model
from ..machine import machine_options
from ..options.bench_lists import Lists, list_options
from ..options.hub import hub_options
from ..options.options import ModelOptions, load_options, numa_option
from ..output import note, write
from ..parameters import from_options, parameter_options
from ..tables.bench import PRINTERS, Printer, Row, comparison_table
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


@dataclass(frozen=True, eq=False, repr=False)
class BenchOptions:
    """Which models are measured, how often each test runs, and where its results go."""

    # fmt: off
    models: Sequence[Path] = row((),
        "GGUF files, separated by commas. Repeatable.  [default: a small demo model, downloaded "
        "once]", Flags("-m", "--model", metavar="PATH", repeated=True, callback=_paths))
    repetitions: int = row(5, "Number of runs per test.",
        Flags("-r", "--repetitions", low=1, high=10_000))
    delay: int = row(0, "Seconds to wait before each test.", Flags("--delay", high=86_400))
    output: str = row("md", "Output format on stdout.",
        Flags("-o", "--output", choices=(*PRINTERS,)))
    output_err: str | None = row(None, "Output format on stderr.",
        Flags("-oe", "--output-err", choices=(*PRINTERS,)))
    no_warmup: bool = row(False, "Skip the warm-up run.", Flags("--no-warmup"))
    progress: bool = row(False, "Print the running test on stderr.", Flags("--progress"))
    compare: Path | None = row(None,
        "Compare two result files (json or jsonl, of pyllama-bench or llama-bench) and exit.",
        Flags("--compare", metavar="A B", nargs=2, expose_value=False, is_eager=True,
            callback=_compare))
    # fmt: on


@click.command("bench", cls=Program)
@parameter_options(BenchOptions, only=("models",))
@hub_options
@list_options
@parameter_options(BenchOptions, but=("models",))
@load_options
@machine_options
@ignored_option("-nopo", "--no-op-offload", takes_value=True, why=OP_OFFLOAD)
@numa_option
@ignored_option("-v", "--verbose")
@version_option()
def command(**options: Any) -> None:
    """Benchmark prompt processing and text generation."""
    from pyllama.bench.bench import run_bench

    own, lists = from_options(BenchOptions, options), from_options(Lists, options)
    loading = ModelOptions.from_click(options)
    loaded = {"load_mode": options["load_mode"] or "auto", "repack": loading.repack}
    cases = list(lists.cases())
    printers: list[tuple[Any, Printer]] = [(write, PRINTERS[own.output](lists.extra_fields()))]
    if own.output_err is not None:
        printers.append((sys.stderr.write, PRINTERS[own.output_err](lists.extra_fields())))
    if not cases:
        raise click.UsageError("nothing to measure: give -p or -n above 0, or -pg")
    largest = max((case.params for case in cases), key=lambda params: params.n_ctx)
    if loading.offload.dry_run:
        load_model(replace(loading, model=own.models[0] if own.models else None), largest)
    _print(printers, None)
    total = len(cases) * len(own.models or (None,))
    index = 0
    try:
        for path in own.models or (None,):
            model = load_model(replace(loading, model=path), largest)
            for case in cases:
                index += 1
                if own.progress:
                    note(f"pyllama-bench: benchmark {index}/{total}: {case}")
                time.sleep(own.delay)
                found = run_bench(
                    model, case, repetitions=own.repetitions, warmup=not own.no_warmup
                )
                _print(printers, {**found, **loaded})
    finally:  # complete the output also after an error or Ctrl-C
        _print(printers, None)


def _print(printers: list[tuple[Any, Printer]], row: Row | None) -> None:
    for write_text, printer in printers:
        write_text(printer.send(row))
