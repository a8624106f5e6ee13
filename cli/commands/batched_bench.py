"""``pyllama-batched-bench``: speed of batched decoding, as llama-batched-bench measures it.

    pyllama-batched-bench -m x.gguf -npp 128,512 -ntg 128 -npl 1,2,4,8

The prompts of all sequences are evaluated together; then each decode has one token per sequence.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import click

from pyllama.parameters import Flags, row

from ..loading import load_model, make_context
from ..options.bench_lists import int_list
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

_COLUMNS = {  # field -> heading, format of values
    "pp": ("PP", "6d"), "tg": ("TG", "6d"), "pl": ("B", "4d"), "n_kv": ("N_KV", "6d"),
    "t_pp": ("T_PP s", "8.3f"), "speed_pp": ("S_PP t/s", "8.2f"), "t_tg": ("T_TG s", "8.3f"),
    "speed_tg": ("S_TG t/s", "8.2f"), "t": ("T s", "8.3f"), "speed": ("S t/s", "8.2f"),
}  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class BatchedOptions:
    """What is measured, and how it is printed."""

    # fmt: off
    npp: Sequence[int] = row((), "Number of prompt tokens per sequence.",
        Flags("-npp", default="128", type=int_list(1, 1 << 20)))
    ntg: Sequence[int] = row((), "Number of tokens to generate per sequence.",
        Flags("-ntg", default="128", type=int_list(0, 1 << 20)))
    npl: Sequence[int] = row((), "Number of parallel sequences, up to 256.",
        Flags("-npl", default="1,2,4,8", type=int_list(1, 1 << 20)))
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
        write(_line(f"{name:>{form[0]}}" for name, form in _COLUMNS.values()))
        write("|" + "-|-".join("-" * int(form[0]) for _, form in _COLUMNS.values()) + "-|\n")
    fits = False
    for one in batched_bench(context, own.npp, own.ntg, own.npl, shared=own.pps):
        cells = (f"{one[name]:{form}}" for name, (_, form) in _COLUMNS.items())
        write(_line(cells) if own.output_format == "md" else json.dumps(one) + "\n")
        fits = True
    if not fits:
        raise click.UsageError(
            f"no combination fits into a context of {context.n_ctx}: use a larger -c, or omit it"
        )


def _line(texts: Iterable[str]) -> str:
    return "|" + " | ".join(texts) + " |\n"
