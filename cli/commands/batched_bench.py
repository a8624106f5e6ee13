"""``pyllama-batched-bench``: speed of batched decoding, as llama-batched-bench measures it.

    pyllama-batched-bench -m x.gguf -npp 128,512 -ntg 128 -npl 1,2,4,8

The prompts of all sequences are evaluated together; then each decode has one token per sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from pyllama.parameters import Flags, row

from ..loading import load_model, make_context
from ..options.bench_lists import IntList
from ..options.options import (
    ContextOptions,
    ModelOptions,
    context_options,
    kv_unified_option,
    model_options,
)
from ..output import note, write
from ..parameters import from_options, parameter_options
from ..tool import Program, ignored_option, version_option

if TYPE_CHECKING:
    from pyllama.bench.batched import BatchedRow

_NAMES = ("PP", "TG", "B", "N_KV", "T_PP s", "S_PP t/s", "T_TG s", "S_TG t/s", "T s", "S t/s")
_WIDTHS = (6, 6, 4, 6, 8, 8, 8, 8, 8, 8)


@dataclass(frozen=True, eq=False, repr=False)
class BatchedOptions:
    """What is measured, and how it is printed."""

    # fmt: off
    npp: Sequence[int] = row((), "Number of prompt tokens per sequence.",
        Flags("-npp", default="128", type=IntList(1, 1 << 20)))
    ntg: Sequence[int] = row((), "Number of tokens to generate per sequence.",
        Flags("-ntg", default="128", type=IntList(0, 1 << 20)))
    npl: Sequence[int] = row((), "Number of parallel sequences, up to 256.",
        Flags("-npl", default="1,2,4,8", type=IntList(1, 1 << 20)))
    pps: bool = row(False, "Share one prompt among all sequences; evaluate it once.",
        Flags("-pps"))
    output_format: str = row("md", "Output format: Markdown table, or one JSON object per line.",
        Flags("--output-format", choices=("md", "jsonl")))
    # fmt: on


@click.command("batched-bench", cls=Program)
@parameter_options(BatchedOptions)
@model_options
@context_options()
@kv_unified_option
@ignored_option("--no-warmup", "--warmup")
@version_option()
def command(kv_unified: bool, **options: Any) -> None:
    """Benchmark batched decoding of several sequences.

    With -c 0 the context is large enough for the largest combination; with another size,
    combinations that do not fit are skipped.
    """
    from pyllama.bench.batched import batched_bench, required_cells

    own, sizes = from_options(BatchedOptions, options), ContextOptions.from_click(options)
    if sizes.n_ctx == 0:
        sizes = replace(
            sizes,
            n_ctx=required_cells(max(own.npp), max(own.ntg), max(own.npl), own.pps and kv_unified),
        )
    n_seq = max(own.npl)
    of_model = ModelOptions.from_click(options)
    model = load_model(of_model, sizes.params(n_seq, kv_unified), sizes.n_threads)
    context = make_context(model, sizes, n_seq_max=n_seq, unified=kv_unified)
    if own.output_format == "md":
        note(
            f"main: n_kv_max = {context.n_ctx}, n_batch = {context.n_batch}, "
            f"n_ubatch = {context.n_ubatch}, flash_attn = 1, is_pp_shared = {int(own.pps)}, "
            f"n_gpu_layers = {model.n_gpu_layers}, n_threads = {context.n_threads}, "
            f"n_threads_batch = {context.n_threads_batch}"
        )
        write(_line([f"{name:>{width}}" for name, width in zip(_NAMES, _WIDTHS, strict=True)]))
        write("|" + "-|-".join("-" * width for width in _WIDTHS) + "-|\n")
    fits = False
    for one in batched_bench(context, own.npp, own.ntg, own.npl, shared=own.pps):
        write(_table_row(one) if own.output_format == "md" else _json_row(one))
        fits = True
    if not fits:
        raise click.UsageError(
            f"no combination fits into a context of {context.n_ctx}: use a larger -c, or omit it"
        )


def _line(texts: list[str]) -> str:
    return "|" + " | ".join(texts) + " |\n"


def _table_row(r: BatchedRow) -> str:
    values = (
        r.pp, r.tg, r.pl, r.n_kv, r.t_pp, r.speed_pp, r.t_tg, r.speed_tg, r.t, r.speed,
    )  # fmt: skip
    forms = ("d", "d", "d", "d", ".3f", ".2f", ".3f", ".2f", ".3f", ".2f")
    parts = zip(values, _WIDTHS, forms, strict=True)
    return _line([f"{value:{width}{form}}" for value, width, form in parts])


def _json_row(one: BatchedRow) -> str:
    import json

    return json.dumps(asdict(one)) + "\n"
