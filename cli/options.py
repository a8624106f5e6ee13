"""Option groups that the tools share, with llama.cpp's names, defaults and meaning.

    @click.command(cls=Tool)
    @model_options
    @context_options()
    def command(**options: Any) -> None:
        model, context = ModelOptions.take(options), ContextOptions.take(options)

Each group is a decorator that declares the flags and a dataclass that carries their values, so a
command hands on a few named objects, not forty parameters. Numbers are checked here: what arrives
in a dataclass is finite and in range. Spellings that llama.cpp removed are still understood.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import click

from .hub_options import hub_options
from .kv_overrides import Value, override_kv_option
from .machine import machine_options
from .output import note
from .override_options import override_options
from .sparse_options import sparse_options
from .tool import ignored_option
from .unsupported import NO_GPU

if TYPE_CHECKING:
    from pyllama.sampling import SamplingParams

F = TypeVar("F", bound=Callable[..., Any])
INT32_MAX = 2**31 - 1
MAX_THREADS = 1024
CACHE_TYPES = ("f16", "f32", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl")  # KV_TYPES
_PLAN = "pyllama-powerinfer plan says what one would hold"


class Number(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A finite number in a range; whole, unless ``kind`` is float."""

    name = "N"

    def __init__(
        self, least: float = -math.inf, most: float = math.inf, *, kind: type = int
    ) -> None:
        self.least, self.most, self.kind = least, most, kind

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | float:
        """The number; nan and inf are refused, which no range would do."""
        try:
            number: int | float = self.kind(value)
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is not a {self._wanted()}.", param, ctx)
        if not (self.least <= number <= self.most and math.isfinite(number)):
            self.fail(f"{value} is not a {self._wanted()}.", param, ctx)
        return number

    def _wanted(self) -> str:
        what = "whole number" if self.kind is int else "finite number"
        if self.most == math.inf:
            return what if self.least == -math.inf else f"{what} of at least {self.least:g}"
        return f"{what} from {self.least:.10g} to {self.most:.10g}"


class ByteCount(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A number of bytes in M (10**6) or G (10**9), as llama.cpp splits files."""

    name = "N(M|G)"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The bytes."""
        match = re.fullmatch(r"([1-9]\d{0,8})([MG])", str(value))
        if match is None:
            self.fail(f"{value!r} is not a number of M (10**6) or G (10**9) bytes: 2G.", param, ctx)
        return int(match[1]) * {"M": 1000**2, "G": 1000**3}[match[2]]


def _logit_bias(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> tuple[tuple[int, float], ...]:
    """``ID+BIAS`` or ``ID-BIAS``: a token id and what is added to its logit."""
    pairs = []
    for value in values:
        match = re.fullmatch(r"(\d{1,18})([+-](?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|-inf)", value)
        if match is None:
            raise click.BadParameter(f"{value!r} is not ID+BIAS or ID-BIAS: 15043+1, 2-inf.")
        pairs.append((int(match[1]), float(match[2])))
    return tuple(pairs)


class Group:
    """A dataclass whose fields are named like the options it carries."""

    @classmethod
    def take(cls, options: Mapping[str, Any]) -> Self:
        """Build it from click's values."""
        return cls(**{f.name: options[f.name] for f in fields(cls)})  # type: ignore[arg-type]


def stack(*decorators: Callable[[Any], Any]) -> Callable[[F], F]:
    """One decorator from several; ``--help`` lists them in the order written."""

    def decorate(function: F) -> F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def _threads(*flags: str, help: str) -> Callable[[F], F]:
    kind = Number(-1, MAX_THREADS)
    return click.option(*flags, type=kind, default=-1, show_default=True, help=help)


class GpuLayers(click.ParamType[int]):
    """A number of layers; ``auto``, ``all`` and negative numbers are -1."""

    name = "N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Raises: click.BadParameter."""
        if value in ("auto", "all"):
            return -1
        try:
            return max(-1, int(value))
        except ValueError:
            self.fail(f"{value!r} is not a number of layers, auto or all.", param, ctx)


@dataclass(frozen=True)
class ModelOptions(Group):
    """Where the model is and how it is loaded. ``model`` None is the demo model."""

    model: Path | None
    load_mode: str | None
    mmap: bool
    mlock: bool
    no_repack: bool
    override_kv: Mapping[str, Value] = field(default_factory=dict)
    check_tensors: bool = False
    sparse: str = "auto"
    sparse_threshold: float | None = None
    device: str | None = None
    gpu_layers: int | None = None

    @property
    def use_mmap(self) -> bool:
        return self.mmap if self.load_mode in (None, "auto") else "mmap" in self.load_mode

    @property
    def use_mlock(self) -> bool:
        return self.mlock if self.load_mode in (None, "auto") else "mlock" in self.load_mode


model_option = stack(
    click.option(
        "-m",
        "--model",
        type=click.Path(path_type=Path),
        help="GGUF file, or the first part of several. Without it: a small demo model, fetched "
        "once.",
    ),
    hub_options,
)

load_options = stack(
    click.option(
        "-lm",
        "--load-mode",
        type=click.Choice(["auto", "none", "mmap", "mlock", "mmap+mlock"]),
        help="How the file is read; auto goes by the two flags that follow.",
    ),
    click.option(
        "--mmap/--no-mmap",
        default=True,
        show_default=True,
        help="Map the file, or read it into memory: a file that is truncated while it is mapped "
        "kills the process (SIGBUS).",
    ),
    click.option("--mlock", is_flag=True, help="Keep the model in RAM."),
    click.option(
        "-nr",
        "--no-repack",
        is_flag=True,
        help="Keep the weights as they are in the file: loads faster, computes slower.",
    ),
    override_kv_option,
    click.option(
        "--check-tensors",
        is_flag=True,
        help="Look for NaN, infinity and illegal scales among the weights before all else.",
    ),
    click.option(
        "-dev",
        "--device",
        metavar="DEV,...",
        help="Devices to compute on, the first preferred; the CPU takes what they do not. none is "
        "the CPU alone; see --list-devices.  [default: none]",
    ),
    click.option(
        "-ngl",
        "--gpu-layers",
        "--n-gpu-layers",
        type=GpuLayers(),
        help="How many layers, the last ones first, are on --device's: a number, auto or all.  "
        "[default: all]",
    ),
    sparse_options,
    ignored_option("--vram-budget", takes_value=True, why=f"{NO_GPU}; {_PLAN}"),
    ignored_option("--reset-gpu-index", why=f"{NO_GPU}; {_PLAN}"),
    ignored_option("--disable-gpu-index", why=f"{NO_GPU}; {_PLAN}"),
)

model_options = stack(model_option, load_options)


@dataclass(frozen=True)
class ContextOptions(Group):
    """Sizes and threads of a context. ``ctx_size`` 0 is the model's; threads -1 are chosen."""

    ctx_size: int
    batch_size: int
    ubatch_size: int
    threads: int
    threads_batch: int
    cache_type_k: str
    cache_type_v: str
    swa_full: bool

    @property
    def n_threads(self) -> int | None:
        return self.threads if self.threads > 0 else None

    @property
    def n_threads_batch(self) -> int | None:
        return self.threads_batch if self.threads_batch > 0 else self.n_threads


gpu_options = stack(
    ignored_option("-sm", "--split-mode", takes_value=True, why=NO_GPU),
    ignored_option("-mg", "--main-gpu", takes_value=True, why=NO_GPU),
    ignored_option("-ts", "--tensor-split", takes_value=True, why=NO_GPU),
)
numa_option = ignored_option("--numa", takes_value=True, why="start the process with numactl(8)")


def _flash_attn(ctx: click.Context, param: click.Parameter, value: str) -> None:
    if value == "off":
        note("-fa off is ignored: attention is always fused")


def context_options(ctx_size: int = 0) -> Callable[[F], F]:
    """The options of a context; ``ctx_size`` is the tool's own default."""
    positive = Number(1, INT32_MAX)
    return stack(
        click.option(
            "-c",
            "--ctx-size",
            type=Number(0, INT32_MAX),
            default=ctx_size,
            show_default=True,
            help="Tokens of context. 0: what the model was trained with.",
        ),
        click.option(
            "-b",
            "--batch-size",
            type=positive,
            default=2048,
            show_default=True,
            help="Most tokens in one decode.",
        ),
        click.option(
            "-ub",
            "--ubatch-size",
            type=positive,
            default=512,
            show_default=True,
            help="Most tokens computed at once; bounds the memory for activations.",
        ),
        _threads(
            "-t",
            "--threads",
            help="Threads. -1: min(affinity, cgroup quota, physical cores).",
        ),
        _threads("-tb", "--threads-batch", help="Threads for prompts. -1: as -t."),
        click.option(
            "-fa",
            "--flash-attn",
            type=click.Choice(["on", "off", "auto"]),
            is_flag=False,
            flag_value="on",
            default="auto",
            show_default=True,
            expose_value=False,
            callback=_flash_attn,
            help="Fused attention; it is always on.",
        ),
        click.option(
            "-ctk",
            "--cache-type-k",
            type=click.Choice(CACHE_TYPES),
            default="f16",
            show_default=True,
            help="Type of cached keys. f32: exact, twice f16's size. q8_0: half. q4_0: a quarter.",
        ),
        click.option(
            "-ctv",
            "--cache-type-v",
            type=click.Choice(CACHE_TYPES),
            default="f16",
            show_default=True,
            help="Type of cached values.",
        ),
        click.option(
            "--swa-full",
            is_flag=True,
            help="Keep all keys and values of layers that see only a window of tokens.",
        ),
        override_options,
        gpu_options,
        *(
            ignored_option(*flags, why=NO_GPU)
            for flags in (
                ("-nkvo", "--no-kv-offload"),
                ("-kvo", "--kv-offload"),
                ("--op-offload",),
                ("--no-op-offload",),
            )
        ),
        machine_options,
        numa_option,
    )


kv_unified_option = click.option(
    "-kvu/-no-kvu",
    "--kv-unified/--no-kv-unified",
    default=True,
    show_default="on",
    help="Sequences share the context's cells, or each has an equal part for itself.",
)


@dataclass(frozen=True)
class SamplingOptions(Group):
    """llama.cpp's sampling parameters, under the names of ``SamplingParams``."""

    seed: int
    temp: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    repeat_last_n: int
    presence_penalty: float
    frequency_penalty: float
    ignore_eos: bool
    logit_bias: tuple[tuple[int, float], ...]
    samplers: tuple[str, ...] | None

    def params(self) -> SamplingParams:
        """What a sampling chain takes."""
        from pyllama.sampling import SamplingParams

        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return SamplingParams(**{**values, "logit_bias": dict(self.logit_bias)})


def _samplers(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> tuple[str, ...] | None:
    if value is None:
        return None
    names = (name.strip().replace("-", "_") for name in value.split(";"))
    return tuple("temperature" if name == "temp" else name for name in names if name)


def _real(
    *flags: str,
    default: float,
    help: str,
    least: float = -math.inf,
    most: float = math.inf,
) -> Callable[[F], F]:
    kind = Number(least, most, kind=float)
    return click.option(*flags, type=kind, default=default, show_default=True, help=help)


sampling_options = stack(
    click.option(
        "-s",
        "--seed",
        type=Number(-1, 2**32 - 1),
        default=-1,
        show_default=True,
        help="Seed of the sampler. -1: random.",
    ),
    _real("--temp", "--temperature", default=0.8, help="Temperature; 0 or less is greedy."),
    click.option(
        "--top-k",
        type=Number(-1, INT32_MAX),
        default=40,
        show_default=True,
        help="Keep the k likeliest tokens. 0: off.",
    ),
    _real("--top-p", default=0.95, least=0, help="Keep the fewest tokens that reach p. 1: off."),
    _real("--min-p", default=0.05, least=0, most=1, help="Drop tokens below p times the best."),
    _real(
        "--repeat-penalty", default=1.0, least=1e-6, help="Divide repeated tokens' logits. 1: off."
    ),
    click.option(
        "--repeat-last-n",
        type=Number(-1, INT32_MAX),
        default=64,
        show_default=True,
        help="Tokens that the penalties look back. 0: off, -1: the context.",
    ),
    _real("--presence-penalty", default=0.0, help="Subtracted once from seen tokens."),
    _real("--frequency-penalty", default=0.0, help="Subtracted for each time seen."),
    click.option(
        "--ignore-eos", is_flag=True, help="Never end a text: forbid end-of-generation tokens."
    ),
    click.option(
        "-l",
        "--logit-bias",
        multiple=True,
        callback=_logit_bias,
        metavar="ID(+/-)BIAS",
        help="Add to a token's logit: 15043+1, 2-inf. Repeatable.",
    ),
    click.option(
        "--samplers",
        callback=_samplers,
        metavar="A;B;...",
        help="Samplers in the order to run.  [default: penalties;top_k;top_p;min_p;temperature]",
    ),
)
