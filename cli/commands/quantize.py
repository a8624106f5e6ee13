"""``pyllama-quantize``: quantize a GGUF file, with llama-quantize's types and flags.

pyllama-quantize x-F16.gguf Q4_K_M           # writes ggml-model-Q4_K_M.gguf
pyllama-quantize --imatrix imatrix.gguf x-F16.gguf x-Q4_K_M.gguf Q4_K_M 4
pyllama-quantize --dry-run x-F16.gguf Q4_K_M # prints types and sizes
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyllama.parameters import Flags, row
from pyllama.parameters.loading import MAX_THREADS

from ..options.kv_overrides import Value, override_kv_option
from ..output import note, progress_bar, write, write_line
from ..parameters import Number, from_options, parameter_options
from ..paths import read_text
from ..tool import Program, ignored_option, version_option

if TYPE_CHECKING:
    from pyllama.quantize import Importance, QuantizeOptions, QuantizePlan

_MIB = 1 << 20


def _layers(ctx: click.Context, param: click.Parameter, value: str | None) -> frozenset[int]:
    """Parse ``L0,L1,...``, layer numbers."""
    number = Number(0, 1 << 16)
    parts = [] if value is None else value.split(",")
    return frozenset(int(number.convert(part, param, ctx)) for part in parts)


@dataclass(frozen=True, eq=False, repr=False)
class QuantizeFlags:
    """Which tensors get which type, and what is written."""

    # fmt: off
    allow_requantize: bool = row(False,
        "Requantize tensors that are already quantized; reduces quality.",
        Flags("--allow-requantize"))
    leave_output_tensor: bool = row(False, "Do not quantize output.weight.",
        Flags("--leave-output-tensor"))
    pure: bool = row(False, "Use the same type for all matrices, no k-quant mix.", Flags("--pure"))
    imatrix: Path | None = row(None,
        "Importance matrix, GGUF or .dat, as pyllama-imatrix writes it.",
        Flags("--imatrix", metavar="FILE"))
    include_weights: tuple[str, ...] = row((),
        "Use --imatrix only for tensors with NAME in their name. Repeatable.",
        Flags("--include-weights", metavar="NAME", repeated=True))
    exclude_weights: tuple[str, ...] = row((),
        "Do not use --imatrix for tensors with NAME in their name. Repeatable.",
        Flags("--exclude-weights", metavar="NAME", repeated=True))
    output_tensor_type: str | None = row(None, "Type of output.weight.",
        Flags("--output-tensor-type", metavar="TYPE"))
    token_embedding_type: str | None = row(None, "Type of token_embd.weight.",
        Flags("--token-embedding-type", metavar="TYPE"))
    tensor_type: tuple[str, ...] = row((),
        "Type of the tensors whose name matches REGEX, as in ffn_down=q6_k. Repeatable; the first "
        "match counts.", Flags("--tensor-type", metavar="REGEX=TYPE", repeated=True))
    tensor_type_file: Path | None = row(None,
        "File of --tensor-type values, separated by white space.",
        Flags("--tensor-type-file", metavar="FILE"))
    prune_layers: frozenset[int] = row(frozenset(), "Layers to remove.",
        Flags("--prune-layers", metavar="L0,L1,...", default=None, callback=_layers))
    keep_split: bool = row(False, "Write the same number of splits as MODEL has.",
        Flags("--keep-split"))
    dry_run: bool = row(False, "Print the types and sizes, write nothing.", Flags("--dry-run"))
    # fmt: on


@click.command("quantize", cls=Program)
@click.argument("arguments", nargs=-1, metavar="MODEL [OUTFILE] TYPE [THREADS]")
@parameter_options(QuantizeFlags, but=("dry_run",))
@override_kv_option
@parameter_options(QuantizeFlags, only=("dry_run",))
@ignored_option("--max-buffer-size", takes_value=True)
@version_option()
def command(arguments: tuple[str, ...], **options: Any) -> None:
    """Quantize MODEL to OUTFILE, by default ggml-model-TYPE.gguf in MODEL's folder.

    TYPE is Q1_0, Q2_0, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q2_K_S, Q3_K_S, Q3_K_M, Q3_K_L, Q4_K_S,
    Q4_K_M, Q5_K_S, Q5_K_M, Q6_K, IQ4_NL, IQ4_XS, MXFP4_MOE, TQ1_0, TQ2_0, F16, BF16, F32,
    llama.cpp's number of one of these, or COPY. THREADS is the number of threads; by default all
    cores.
    """
    from pyllama.file_types import find_file_type, is_file_type
    from pyllama.quantize import quantize_model

    own, (model, rest) = from_options(QuantizeFlags, options), _split_arguments(arguments)
    outfile = None
    if rest and not is_file_type(rest[0]):
        outfile, rest = Path(rest[0]), rest[1:]
    if not rest:
        raise click.UsageError("the type to quantize to is missing: add it last, such as Q4_K_M")
    file_type, n_threads = find_file_type(rest[0]), _threads(rest[1:])
    if outfile is None:
        outfile = model.parent / f"ggml-model-{file_type.name}.gguf"
    settings = _options(n_threads, own, options["kv_overrides"])
    with progress_bar(f"quantizing to {file_type.name}") as progress:
        plan = quantize_model(
            model, None if own.dry_run else outfile, file_type, settings, progress
        )
    _report(plan, own.dry_run)


def _split_arguments(arguments: tuple[str, ...]) -> tuple[Path, tuple[str, ...]]:
    if not 2 <= len(arguments) <= 4:
        raise click.UsageError(
            f"expected MODEL [OUTFILE] TYPE [THREADS], got {len(arguments)} arguments"
        )
    return Path(arguments[0]), arguments[1:]


def _threads(words: tuple[str, ...]) -> int | None:
    if len(words) > 1:
        raise click.UsageError(
            f"unexpected argument {words[1]!r}: expected MODEL [OUTFILE] TYPE [THREADS]"
        )
    if not words:
        return None
    number = int(Number(0, MAX_THREADS).convert(words[0], None, None))
    return number or None


def _options(
    n_threads: int | None, own: QuantizeFlags, overrides: Mapping[str, Value]
) -> QuantizeOptions:
    from pyllama.quantize import QuantizeOptions, TypeOverrides, find_tensor_type

    output, embedding = (
        None if name is None else find_tensor_type(name)
        for name in (own.output_tensor_type, own.token_embedding_type)
    )
    tensor_types = _tensor_types(own.tensor_type, own.tensor_type_file)
    return QuantizeOptions(
        allow_requantize=own.allow_requantize,
        keep_split=own.keep_split,
        prune_layers=own.prune_layers,
        overrides=overrides,
        importance=_importance(own.imatrix, own.include_weights, own.exclude_weights),
        imatrix_file=str(own.imatrix or ""),
        n_threads=n_threads,
        type_overrides=TypeOverrides(
            own.pure, own.leave_output_tensor, output, embedding, tensor_types
        ),
    )


def _tensor_types(given: tuple[str, ...], path: Path | None) -> tuple[tuple[Any, Any], ...]:
    from pyllama.quantize import find_tensor_type

    words = [*given, *([] if path is None else read_text(path).split())]
    found = []
    for word in words:
        expression, _, name = word.rpartition("=")
        if not expression:
            raise click.UsageError(
                f"--tensor-type: {word!r} is not REGEX=TYPE, such as ffn_down=q6_k"
            )
        try:
            pattern = re.compile(expression.lower())
        except re.error as error:
            raise click.UsageError(
                f"--tensor-type: {expression!r} is not a regular expression: {error}"
            ) from None
        found.append((pattern, find_tensor_type(name)))
    return tuple(found)


def _importance(
    path: Path | None, include: tuple[str, ...], exclude: tuple[str, ...]
) -> Importance | None:
    if include and exclude:
        raise click.UsageError("choose --include-weights or --exclude-weights, not both")
    if path is None:
        return None
    from pyllama.quantize import read_importance

    importance = read_importance(path)
    if include:
        importance.keep(lambda name: any(part in name for part in include))
    importance.keep(lambda name: not any(part in name for part in exclude))
    note(f"{path}: {len(importance.entries)} matrices over {importance.n_chunks} chunks")
    if not importance.entries:
        note("the filters exclude every matrix: quantizing without an importance matrix")
        return None
    return importance


def _report(plan: QuantizePlan, dry_run: bool) -> None:
    """Print the plan: each tensor (dry run only), notes, and sizes in llama-quantize's format."""
    n = len(plan.tensors)
    for i, t in enumerate(plan.tensors if dry_run else (), 1):
        shape = ", ".join(f"{k:5d}" for k in t.source.ne)
        old, new = t.source.nbytes / _MIB, t.nbytes / _MIB
        change = f"-> {new:8.2f} MiB ({t.type.name})" if t.type is not t.source.type else ""
        write_line(f"[{i:4d}/{n:4d}] {t.name:36s} - [{shape}], type = {t.source.type.name:>6s}, "
                   f"size = {old:8.2f} MiB {change}".rstrip())  # fmt: skip
    pairs = Counter((t.requested, t.type) for t in plan.fallbacks)
    for (requested, type), count in pairs.items():
        note(f"{count} of {n} tensors have rows that are no multiple of {requested.name}'s block "
             f"size: using {type.name} for them")  # fmt: skip
    if plan.without_weights:
        first = ", ".join(plan.without_weights[:3])
        note(f"{len(plan.without_weights)} tensors are not in the importance matrix: {first} ...")
    if dry_run and any(t.needs_imatrix and t.weights is None for t in plan.tensors):
        note("quantizing to these types needs an importance matrix (--imatrix)")
    for name, size in (("model", plan.source_nbytes), ("quant", plan.nbytes)):
        bits = 8 * size / max(plan.n_elements, 1)
        write(f"{name} size  = {size / _MIB:8.2f} MiB ({bits:.2f} BPW)\n")
