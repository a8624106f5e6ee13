"""``pyllama-bench``: tokens per second, with llama-bench's options, fields and tables.

    pyllama-bench -m x.gguf -p 512 -n 128 -r 5     # a Markdown table
    pyllama-bench -m x.gguf -n 0 -p 128-512*2 -o json

Every list may be given by commas, by repeating the flag, or as ``first-last+step``; the product of
all lists is run, and each row is printed as soon as it is measured.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..bench_table import PRINTERS
from ..loading import load_model
from ..options import INT32_MAX, MAX_THREADS, Group, ModelOptions, Number, load_options, stack
from ..output import note, write
from ..tool import Tool, ignored_option, version_option

if TYPE_CHECKING:
    from pyllama.bench import BenchCase

MAX_VALUES = 10_000  # of one list: a slip such as 1-1000000 is a mistake, not a plan
N_BATCH, N_UBATCH = 2048, 512


class IntList(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """``1,2``, ``16-64``, ``16-64+16`` or ``16-64*2``."""

    name = "list"

    def __init__(self, least: int, most: int = INT32_MAX) -> None:
        self.least, self.most = least, most

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[int]:
        """The integers, in order."""
        if isinstance(value, list):
            return value
        numbers = [n for part in str(value).split(",") for n in self._expand(part, param, ctx)]
        for number in numbers:
            if not self.least <= number <= self.most:
                self.fail(f"{number} is not in {self.least} to {self.most}.", param, ctx)
        return numbers

    def _expand(
        self, part: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[int]:
        match = re.fullmatch(r"(-?\d+)(?:-(\d+)(?:([+*])(\d+))?)?", part.strip())
        if match is None:
            self.fail(f"{part!r} is not a number or first-last, +step or *factor.", param, ctx)
        first, last = int(match[1]), int(match[2] or match[1])
        operator, step = match[3] or "+", int(match[4] or 1)
        if (
            last < first
            or step < 1
            or (operator == "*" and last > first and (step < 2 or not first))
        ):
            self.fail(f"{part!r} never reaches its end.", param, ctx)
        numbers = [first]
        while (number := numbers[-1] + step if operator == "+" else numbers[-1] * step) <= last:
            numbers.append(number)
            if len(numbers) > MAX_VALUES:
                self.fail(f"{part!r} has more than {MAX_VALUES} values.", param, ctx)
        return numbers


def _pairs(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> list[tuple[int, int]]:
    pairs = []
    for value in values:
        match = re.fullmatch(r"(\d{1,9}),(\d{1,9})", value)
        if match is None:
            raise click.BadParameter(f"{value!r} is not PROMPT,GEN such as 512,128.")
        pairs.append((int(match[1]), int(match[2])))
    return pairs


def _list_option(*flags: str, default: int, least: int, most: int = INT32_MAX, help: str) -> Any:
    return click.option(
        *flags,
        type=IntList(least, most),
        multiple=True,
        default=[str(default)],
        show_default=str(default),
        callback=lambda ctx, param, values: list(itertools.chain.from_iterable(values)),
        help=help,
    )


@dataclass(frozen=True)
class Lists(Group):
    """The lists whose product is run."""

    n_prompt: list[int]
    n_gen: list[int]
    pg: list[tuple[int, int]]
    n_depth: list[int]
    batch_size: list[int]
    ubatch_size: list[int]
    threads: list[int]

    def cases(self) -> Iterator[BenchCase]:
        """Every case, in llama-bench's order: prompts, generations, both together."""
        from pyllama.bench import BenchCase

        tests = [(n, 0) for n in self.n_prompt] + [(0, n) for n in self.n_gen] + self.pg
        for n_batch, n_ubatch, threads, n_depth, (n_prompt, n_gen) in itertools.product(
            self.batch_size, self.ubatch_size, self.threads, self.n_depth, tests
        ):
            if n_prompt or n_gen:
                yield BenchCase(
                    n_prompt=n_prompt,
                    n_gen=n_gen,
                    n_depth=n_depth,
                    n_batch=n_batch,
                    n_ubatch=n_ubatch,
                    n_threads=threads if threads > 0 else None,
                )

    def extra_fields(self) -> list[str]:
        """Fields that the Markdown table shows only where they are not the default."""
        shown = {
            "n_batch": self.batch_size != [N_BATCH],
            "n_ubatch": self.ubatch_size != [N_UBATCH],
        }
        return [name for name, wanted in shown.items() if wanted]


list_options = stack(
    _list_option("-p", "--n-prompt", default=512, least=0, help="Tokens of prompt. 0: none."),
    _list_option("-n", "--n-gen", default=128, least=0, help="Tokens to generate. 0: none."),
    click.option(
        "-pg", metavar="PROMPT,GEN", multiple=True, callback=_pairs, help="Prompt, then generate."
    ),
    _list_option("-d", "--n-depth", default=0, least=0, help="Tokens in the context beforehand."),
    _list_option("-b", "--batch-size", default=N_BATCH, least=1, help="Tokens in one decode."),
    _list_option("-ub", "--ubatch-size", default=N_UBATCH, least=1, help="Computed at once."),
    _list_option(
        "-t", "--threads", default=-1, least=-1, most=MAX_THREADS, help="Threads. -1: chosen."
    ),
)


@click.command("bench", cls=Tool)
@click.option(
    "-m",
    "--model",
    "models",
    type=click.Path(path_type=Path),
    multiple=True,
    help="GGUF file, repeatable. Without it: a small demo model, fetched once.",
)
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
    "-o",
    "--output",
    type=click.Choice(list(PRINTERS)),
    default="md",
    show_default=True,
    help="Form of the results.",
)
@click.option("--no-warmup", is_flag=True, help="Measure from the first run.")
@click.option("--progress", is_flag=True, help="Say on stderr what is running.")
@load_options
@ignored_option("-ngl", "--n-gpu-layers", takes_value=True, why="there is no GPU backend yet")
@ignored_option("-v", "--verbose")
@version_option()
def command(
    models: tuple[Path, ...],
    repetitions: int,
    output: str,
    no_warmup: bool,
    progress: bool,
    **options: Any,
) -> None:
    """Measure prompt and generation speed."""
    from pyllama.bench import run_bench

    lists, loading = Lists.take(options), ModelOptions.take({**options, "model": None})
    cases = list(lists.cases())
    printer = PRINTERS[output](lists.extra_fields())
    write(printer.header())
    total = len(cases) * len(models or (None,))
    index = 0
    for path in models or (None,):
        model = load_model(replace(loading, model=path))
        for case in cases:
            index += 1
            if progress:
                note(f"pyllama-bench: benchmark {index}/{total}: {case}")
            row = run_bench(model, case, repetitions=repetitions, warmup=not no_warmup)
            write(printer.row(row))
    write(printer.footer())
