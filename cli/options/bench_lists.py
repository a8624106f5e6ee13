"""The options of pyllama-bench that take lists, and their product: the cases to run.

    @list_options
    def command(**options): cases = from_options(Lists, options).cases()

A list is separated by commas, a repeated flag, or ``first-last+step``, as in llama-bench.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from pyllama.parameters import INT32_MAX, Flags, row
from pyllama.parameters.loading import CACHE_TYPES, MAX_THREADS

from ..output import note
from ..parameters import Parsed, parameter_options

if TYPE_CHECKING:
    from pyllama.bench.bench import BenchCase

MAX_VALUES = 10_000  # per list; a range such as 1-1000000 must be a typing error
N_BATCH, N_UBATCH = 2048, 512
F16 = "f16"


def int_list(minimum: int, maximum: int = INT32_MAX) -> Parsed:
    """A list of integers: ``1,2``, ``16-64``, ``16-64+16`` or ``16-64*2``."""

    def parse(text: str) -> list[int]:
        numbers = [n for part in text.split(",") for n in _expand(part.strip())]
        for number in numbers:
            if not minimum <= number <= maximum:
                raise click.BadParameter(f"{number} is not in {minimum} to {maximum}.")
        return numbers

    return Parsed("list", parse)


def _expand(part: str) -> list[int]:
    match = re.fullmatch(r"(-?\d{1,18})(?:-(\d{1,18})(?:([+*])(\d{1,18}))?)?", part)
    if match is None:
        raise click.BadParameter(
            f"{part!r} is not N, FIRST-LAST, FIRST-LAST+STEP or FIRST-LAST*FACTOR."
        )
    first, last = int(match[1]), int(match[2] or match[1])
    operator, step = match[3] or "+", int(match[4] or 1)
    if last < first or step < 1 or (operator == "*" and last > first and (step < 2 or not first)):
        raise click.BadParameter(f"{part!r} never reaches its end.")
    numbers = [first]
    while (number := numbers[-1] + step if operator == "+" else numbers[-1] * step) <= last:
        numbers.append(number)
        if len(numbers) > MAX_VALUES:
            raise click.BadParameter(f"{part!r} has more than {MAX_VALUES} values.")
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


def _type_list(text: str) -> list[str]:
    names = text.lower().split(",")
    for name in names:
        if name not in CACHE_TYPES:
            raise click.BadParameter(f"{name!r} is none of {', '.join(CACHE_TYPES)}.")
    return names


TYPE_LIST = Parsed("types", _type_list)  # of the KV cache


def _flash_attn(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> bool:
    """Return whether the flag was given; its values do not matter, flash attention is always on."""
    given = [v for value in values for v in value.lower().split(",")]
    for v in given:
        if v not in ("on", "off", "auto", "1", "0", "-1"):
            raise click.BadParameter(f"{v!r} is none of on, off, auto.")
    if {"off", "0"} & {*given}:
        note("-fa off is ignored: attention is always fused")
    return bool(given)


def _chained(ctx: click.Context, param: click.Parameter, values: tuple[list[Any], ...]) -> Any:
    return list(itertools.chain.from_iterable(values))


def _list(*names: str, default: object, type: Parsed) -> Flags:
    return Flags(*names, default=[str(default)], type=type, multiple=True, callback=_chained)


def _ints(*names: str, default: int, low: int = 0, high: int = INT32_MAX) -> Flags:
    return _list(*names, default=default, type=int_list(low, high))


def _types(*names: str) -> Flags:
    return _list(*names, default=F16, type=TYPE_LIST)


@dataclass(frozen=True, eq=False, repr=False)
class Lists:
    """The lists; every combination of their values is run."""

    # fmt: off
    n_prompt: Sequence[int] = row((), "Prompt tokens. 0: no test.",
        _ints("-p", "--n-prompt", default=512))
    n_gen: Sequence[int] = row((), "Tokens to generate. 0: no test.",
        _ints("-n", "--n-gen", default=128))
    pg: Sequence[tuple[int, int]] = row((), "Test prompt processing followed by generation.",
        Flags("-pg", metavar="PROMPT,GEN", repeated=True, callback=_pairs))
    n_depth: Sequence[int] = row((), "Tokens in the KV cache before the test.",
        _ints("-d", "--n-depth", default=0))
    batch_size: Sequence[int] = row((), "Logical batch size.",
        _ints("-b", "--batch-size", default=N_BATCH, low=1))
    ubatch_size: Sequence[int] = row((), "Physical batch size.",
        _ints("-ub", "--ubatch-size", default=N_UBATCH, low=1))
    threads: Sequence[int] = row((), "Threads. -1: automatic.",
        _ints("-t", "--threads", default=-1, low=-1, high=MAX_THREADS))
    cache_type_k: Sequence[str] = row((), f"KV cache types for K: {', '.join(CACHE_TYPES)}.",
        _types("-ctk", "--cache-type-k"))
    cache_type_v: Sequence[str] = row((), f"KV cache types for V: {', '.join(CACHE_TYPES)}.",
        _types("-ctv", "--cache-type-v"))
    no_kv_offload: Sequence[int] = row((), "1: keep the KV cache in host memory.",
        _ints("-nkvo", "--no-kv-offload", default=0, high=1))
    flash_attn: bool = row(False, "Flash attention. It is always on.",
        Flags("-fa", "--flash-attn", metavar="on|off|auto", repeated=True, callback=_flash_attn,
            is_flag=False))
    # fmt: on

    def cases(self) -> Iterator[BenchCase]:
        """Yield the cases in llama-bench's order: prompts, generations, then both."""
        from pyggml.dtype import GGMLType
        from pyllama.bench.bench import BenchCase

        types_k, types_v = (
            [GGMLType[name.upper()] for name in names]
            for names in (self.cache_type_k, self.cache_type_v)
        )
        fields: dict[str, Sequence[Any]] = {
            "n_batch": self.batch_size,
            "n_ubatch": self.ubatch_size,
            "type_k": types_k,
            "type_v": types_v,
            "offload_kqv": [not on_host for on_host in self.no_kv_offload],
            "n_threads": [n if n > 0 else None for n in self.threads],
            "n_depth": self.n_depth,
        }
        tests = [*((n, 0) for n in self.n_prompt), *((0, n) for n in self.n_gen), *self.pg]
        for *values, (n_prompt, n_gen) in itertools.product(*fields.values(), tests):
            if n_prompt or n_gen:
                sizes = dict(zip(fields, values, strict=True))
                yield BenchCase(n_prompt=n_prompt, n_gen=n_gen, **sizes)

    def extra_fields(self) -> list[str]:
        """Return the fields that the Markdown table shows because they are not the default."""
        shown = {
            "n_batch": self.batch_size != [N_BATCH],
            "n_ubatch": self.ubatch_size != [N_UBATCH],
            "type_k": self.cache_type_k != [F16],
            "type_v": self.cache_type_v != [F16],
            "no_kv_offload": self.no_kv_offload != [0],
            "flash_attn": self.flash_attn,
        }
        return [name for name, is_shown in shown.items() if is_shown]


list_options = parameter_options(Lists)
