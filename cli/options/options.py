"""Option groups that the tools share, with llama.cpp's names, defaults and meaning.

    @click.command(cls=Program)
    @model_options
    @context_options()
    def command(**options: Any) -> None:
        model, context = ModelOptions.from_click(options), ContextOptions.from_click(options)

Each group is a decorator that declares the flags and a dataclass that holds their values. Numbers
are checked here: every number in a dataclass is finite and in range. Flag names that llama.cpp
removed are still accepted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

import click

from ..help_pages import stack
from ..machine import machine_options
from ..output import note
from ..tool import ignored_option
from ..unsupported import OP_OFFLOAD
from .hub import hub_options
from .kv_overrides import Value, override_kv_option
from .overrides import current_overrides, override_options
from .sparse import sparse_options

if TYPE_CHECKING:
    from pyllama.runtime.devices import Offload
    from pyllama.runtime.overrides import Overrides
    from pyllama.runtime.params import ContextParams

F = TypeVar("F", bound=Callable[..., Any])
INT32_MAX = 2**31 - 1
MAX_THREADS = 1024
CACHE_TYPES = ("f16", "f32", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl")  # KV_TYPES
_EXPERTS = r"\.ffn_(up|down|gate)_exps"  # names of weights of experts
_DENSE = r"\.ffn_(up|down|down_t|gate)\."


def keys_of(flag: str, text: str) -> tuple[str, ...]:
    """Return the keys of a flag, which are separated by commas.

    Raises:
        click.UsageError: one is empty, which would let everybody in.
    """
    keys = tuple(key.strip() for key in text.split(","))
    if not all(keys):
        raise click.UsageError(
            f"{flag}: got {text!r}, which has an empty key; leave the flag out for a server "
            "without keys"
        )
    return keys


class Number(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A finite number in a range: an integer, or a float with ``kind=float``."""

    name = "N"

    def __init__(
        self, minimum: float = -math.inf, maximum: float = math.inf, *, kind: type = int
    ) -> None:
        self.minimum, self.maximum, self.kind = minimum, maximum, kind

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | float:
        """Return the number. NaN and infinity are refused, which a range alone would not do."""
        try:
            number: int | float = self.kind(value)
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is not a {self._expected()}.", param, ctx)
        if not (self.minimum <= number <= self.maximum and math.isfinite(number)):
            self.fail(f"{value} is not a {self._expected()}.", param, ctx)
        return number

    def _expected(self) -> str:
        kind = "whole number" if self.kind is int else "finite number"
        if self.maximum == math.inf:
            return kind if self.minimum == -math.inf else f"{kind} of at least {self.minimum:g}"
        return f"{kind} from {self.minimum:.10g} to {self.maximum:.10g}"


class ByteCount(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A number of bytes in M (10**6) or G (10**9), the units of llama-gguf-split."""

    name = "N(M|G)"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number of bytes."""
        match = re.fullmatch(r"([1-9]\d{0,8})([MG])", str(value))
        if match is None:
            self.fail(
                f"{value!r} is not a size in M (10**6 bytes) or G (10**9 bytes), such as 2G.",
                param,
                ctx,
            )
        return int(match[1]) * {"M": 1000**2, "G": 1000**3}[match[2]]


class Group:
    """Base of a dataclass with one field per option, of the same name."""

    @classmethod
    def from_click(cls, options: Mapping[str, Any]) -> Self:
        """Return an instance filled from click's values."""
        return cls(**{f.name: options[f.name] for f in fields(cls)})  # type: ignore[arg-type]


def _threads(*flags: str, help: str) -> Callable[[F], F]:
    kind = Number(-1, MAX_THREADS)
    return click.option(*flags, type=kind, default=-1, help=help)


class GpuLayers(click.ParamType[int | Literal["auto"]]):
    """A number of layers, ``auto`` or ``all``."""

    name = "N"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | Literal["auto"]:
        """Return the number of layers, -1 for all; ``auto`` also for -1, as in llama.cpp."""
        if value in ("auto", "-1", -1):
            return "auto"
        try:
            return -1 if value == "all" else max(-1, int(value))
        except ValueError:
            self.fail(f"{value!r} is not a number of layers, auto or all.", param, ctx)


class Numbers(click.ParamType[tuple[float, ...]]):
    """Finite numbers of at least 0, separated by commas or slashes."""

    name = "N,..."

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        """Return the numbers."""
        if isinstance(value, tuple):
            return value
        try:
            numbers = tuple(map(float, re.split("[,/]", value)))
        except ValueError:
            numbers = (math.nan,)
        if not all(0 <= number < math.inf for number in numbers):
            self.fail(f"{value!r} is not a list of numbers of at least 0, such as 3,1.", param, ctx)
        return numbers


def _split_mode(ctx: click.Context, param: click.Parameter, value: str) -> str:
    if value in ("row", "tensor"):
        raise click.BadParameter(
            f"{value!r} is not supported: weights are not divided between devices; use layer "
            "(whole layers on each) or none (one device)."
        )
    if value not in ("none", "layer"):
        raise click.BadParameter(f"{value!r} is none of none, layer.")
    return value


def _overrides(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> tuple[tuple[str, str], ...]:
    """Parse ``REGEX=DEVICE,...``."""
    found = []
    for part in (part for value in values for part in value.split(",")):
        pattern, equals, device = part.partition("=")
        if not equals or not device:
            raise click.BadParameter(f"{part!r} is not REGEX=DEVICE, such as ffn_up=cpu.")
        try:
            re.compile(pattern)
        except re.error as error:
            raise click.BadParameter(f"{pattern!r} is not a regular expression: {error}.") from None
        found.append((pattern, device))
    return tuple(found)


@dataclass(frozen=True)
class OffloadOptions(Group):
    """Devices of a model and what goes there; None: not given."""

    device: str | None = None
    gpu_layers: int | Literal["auto"] | None = None
    main_gpu: int | None = None
    split_mode: str = "layer"
    tensor_split: tuple[float, ...] | None = None
    override_tensor: tuple[tuple[str, str], ...] = ()
    cpu_moe: bool = False
    n_cpu_moe: int = 0
    n_cpu_ffn: int = 0
    vram_budget: tuple[float, ...] | None = None
    gpu_index: Path | None = None
    reset_gpu_index: bool = False
    disable_gpu_index: bool = False
    dry_run: bool = False

    def offload(self) -> Offload:
        """Return the library's form. Raises: BackendError."""
        from pyllama.runtime.devices import CPU, Offload

        patterns = [_EXPERTS] if self.cpu_moe else []
        patterns += [rf"blk\.{i}{_EXPERTS}" for i in range(self.n_cpu_moe)]
        patterns += [rf"blk\.{i}{_DENSE}" for i in range(self.n_cpu_ffn)]
        return Offload(
            "auto" if self.gpu_layers is None else self.gpu_layers,
            self.main_gpu or 0,
            self.split_mode,
            self.tensor_split or (),
            (*self.override_tensor, *((pattern, CPU) for pattern in patterns)),
            tuple(int(gib * 2**30) for gib in self.vram_budget or ()),
        )

    def given(self) -> list[str]:
        """Return the given flags that have no effect without a GPU."""
        flags = {
            "-ngl": self.gpu_layers not in (None, 0, "auto"),
            "-mg": self.main_gpu is not None,
            "-sm": self.split_mode != "layer",
            "-ts": self.tensor_split is not None,
            "--vram-budget": self.vram_budget is not None,
            "--gpu-index": self.gpu_index is not None,
            "--reset-gpu-index": self.reset_gpu_index,
            "--disable-gpu-index": self.disable_gpu_index,
        }
        return [flag for flag, is_given in flags.items() if is_given]


@dataclass(frozen=True)
class ModelOptions(Group):
    """Which model to load, and how. ``model`` None is the demo model."""

    model: Path | None
    load_mode: str | None
    mmap: bool
    mlock: bool
    no_repack: bool
    override_kv: Mapping[str, Value] = field(default_factory=dict)
    check_tensors: bool = False
    sparse: str = "auto"
    sparse_threshold: float | None = None
    offload: OffloadOptions = field(default_factory=OffloadOptions)

    @classmethod
    def from_click(cls, options: Mapping[str, Any]) -> Self:
        """Return an instance filled from click's values."""
        return super().from_click({**options, "offload": OffloadOptions.from_click(options)})

    @property
    def use_mmap(self) -> bool:
        return self.mmap if self.load_mode in (None, "auto") else "mmap" in self.load_mode

    @property
    def use_mlock(self) -> bool:
        return self.mlock if self.load_mode in (None, "auto") else "mlock" in self.load_mode


offload_options = stack(
    click.option(
        "-dev",
        "--device",
        metavar="DEV,...",
        help="Devices to offload to, in order of preference; the CPU computes the rest. none: only "
        "the CPU. See --list-devices.  [default: all GPUs]",
    ),
    click.option(
        "-ngl",
        "--gpu-layers",
        "--n-gpu-layers",
        type=GpuLayers(),
        help="Layers to offload, counted from the last with the output as one: a number, all, or "
        "auto for as many as fit into the free memory less 1 GiB.  [default: auto]",
    ),
    click.option(
        "-sm",
        "--split-mode",
        default="layer",
        callback=_split_mode,
        metavar="MODE",
        help="layer: divide the layers and their KV cache among the GPUs. none: use one GPU.",
    ),
    click.option(
        "-mg",
        "--main-gpu",
        type=Number(-1, 1 << 16),
        help="Number of the GPU to use with --split-mode none.  [default: 0]",
    ),
    click.option(
        "-ts",
        "--tensor-split",
        type=Numbers(),
        help="Proportions of the layers on each GPU, such as 3,1.  [default: free memory]",
    ),
    click.option(
        "-ot",
        "--override-tensor",
        multiple=True,
        callback=_overrides,
        metavar="REGEX=DEV,...",
        help="Put the tensors whose names contain a match on a device. Repeatable; the first match "
        "decides.",
    ),
    click.option("-cmoe", "--cpu-moe", is_flag=True, help="Keep the experts of all layers on the "
                 "CPU."),
    click.option(
        "-ncmoe",
        "--n-cpu-moe",
        type=Number(0, 4096),
        default=0,
        help="Keep the experts of the first N layers on the CPU.",
    ),
    click.option(
        "-ncffn",
        "--n-cpu-ffn",
        type=Number(0, 4096),
        default=0,
        help="Keep the dense FFN weights of the first N layers on the CPU.",
    ),
    click.option(
        "--vram-budget",
        type=Numbers(),
        metavar="GIB,...",
        help="GPU memory that may be used, in GiB, of all GPUs or of each. Of a ReLU model with "
        "sparse inference, dense tensors go to the GPU first, then the most active neurons.",
    ),
    click.option(
        "--gpu-index",
        type=click.Path(path_type=Path),
        help="Put the neurons listed in this .gpuidx file on the GPU; it is only read.",
    ),
    click.option(
        "--reset-gpu-index",
        is_flag=True,
        help="Choose the neurons for the GPU again, and rewrite MODEL.generated.gpuidx.",
    ),
    click.option(
        "--disable-gpu-index",
        is_flag=True,
        help="Put only dense tensors of a sparse model on the GPU, no neurons.",
    ),
    click.option(
        "--dry-run",
        is_flag=True,
        help="Print what would be on which device, with bytes, and exit; loads no weights.",
    ),
    section="GPU",
)  # fmt: skip

model_option = stack(
    click.option(
        "-m",
        "--model",
        type=click.Path(path_type=Path),
        help="GGUF file, or the first file of a split model.  [default: a small demo model, "
        "downloaded once]",
    ),
    hub_options,
    section="Model",
)

load_options = stack(
    click.option(
        "-lm",
        "--load-mode",
        type=click.Choice(["auto", "none", "mmap", "mlock", "mmap+mlock"]),
        help="How to load the file. auto: as --mmap and --mlock say.",
    ),
    click.option(
        "--mmap/--no-mmap",
        default=True,
        help="Memory-map the file, or read it into memory. Truncating a mapped file kills the "
        "process (SIGBUS).",
    ),
    click.option("--mlock", is_flag=True, help="Lock the model in RAM, so that it is not swapped."),
    click.option(
        "-nr",
        "--no-repack",
        is_flag=True,
        help="Do not repack weights for this CPU: faster loading, slower inference.",
    ),
    override_kv_option,
    click.option(
        "--check-tensors",
        is_flag=True,
        help="Check the weights for NaN, infinity and invalid scales while loading.",
    ),
    sparse_options,
    offload_options,
    section="Model",
)

model_options = stack(model_option, load_options)


@dataclass(frozen=True)
class ContextOptions(Group):
    """Sizes and threads of a context. ``ctx_size`` 0: the model's; threads -1: automatic."""

    ctx_size: int
    batch_size: int
    ubatch_size: int
    threads: int
    threads_batch: int
    cache_type_k: str
    cache_type_v: str
    swa_full: bool
    kv_offload: bool

    def params(
        self, n_seq_max: int = 1, unified: bool = True, overrides: Overrides | None = None
    ) -> ContextParams:
        """Return the library's form; ``overrides`` None: those of the command line."""
        from pyggml.dtype import GGMLType
        from pyllama.runtime.params import ContextParams

        return ContextParams(
            n_ctx=self.ctx_size,
            n_batch=self.batch_size,
            n_ubatch=self.ubatch_size,
            n_seq_max=n_seq_max,
            type_k=GGMLType[self.cache_type_k.upper()],
            type_v=GGMLType[self.cache_type_v.upper()],
            unified=unified,
            swa_full=self.swa_full,
            offload_kqv=self.kv_offload,
            overrides=current_overrides() if overrides is None else overrides,
        )

    @property
    def n_threads(self) -> int | None:
        return self.threads if self.threads > 0 else None

    @property
    def n_threads_batch(self) -> int | None:
        return self.threads_batch if self.threads_batch > 0 else self.n_threads


numa_option = ignored_option("--numa", takes_value=True, why="start the process with numactl(8)")


def _flash_attn(ctx: click.Context, param: click.Parameter, value: str) -> None:
    if value == "off":
        note("-fa off is ignored: attention is always fused")


def context_options(ctx_size: int = 0) -> Callable[[F], F]:
    """Return the decorator of the context options; ``ctx_size`` is the tool's default."""
    positive = Number(1, INT32_MAX)
    return stack(
        click.option(
            "-c",
            "--ctx-size",
            type=Number(0, INT32_MAX),
            default=ctx_size,
            help="Size of the context in tokens. 0: the model's training context.",
        ),
        click.option(
            "-b",
            "--batch-size",
            type=positive,
            default=2048,
            help="Logical batch size: maximum number of tokens per decode call.",
        ),
        click.option(
            "-ub",
            "--ubatch-size",
            type=positive,
            default=512,
            help="Physical batch size: maximum number of tokens per graph; limits the memory for "
            "activations.",
        ),
        stack(
            _threads(
                "-t",
                "--threads",
                help="Threads for generation. -1: min(affinity, cgroup quota, physical cores).",
            ),
            _threads(
                "-tb", "--threads-batch", help="Threads for prompt processing. -1: same as -t."
            ),
            section="CPU",
        ),
        click.option(
            "-fa",
            "--flash-attn",
            type=click.Choice(["on", "off", "auto"]),
            is_flag=False,
            flag_value="on",
            default="auto",
            expose_value=False,
            callback=_flash_attn,
            help="Flash attention. It is always on; off is ignored with a note.",
        ),
        click.option(
            "-ctk",
            "--cache-type-k",
            type=click.Choice(CACHE_TYPES),
            default="f16",
            metavar="TYPE",
            help=f"KV cache type for K: {', '.join(CACHE_TYPES)}. Relative to f16, f32 takes twice "
            "the memory, q8_0 about half, q4_0 about a quarter.",
        ),
        click.option(
            "-ctv",
            "--cache-type-v",
            type=click.Choice(CACHE_TYPES),
            default="f16",
            metavar="TYPE",
            help="KV cache type for V.",
        ),
        click.option(
            "--swa-full",
            is_flag=True,
            help="Use a full-size KV cache for sliding-window attention layers.",
        ),
        override_options,
        stack(
            click.option(
                "-kvo/-nkvo",
                "--kv-offload/--no-kv-offload",
                default=True,
                help="Keep the KV cache of a layer on the layer's device, or in host memory.",
            ),
            section="GPU",
        ),
        *(ignored_option(flag, why=OP_OFFLOAD) for flag in ("--op-offload", "--no-op-offload")),
        machine_options,
        numa_option,
        section="Context",
    )


kv_unified_option = stack(
    click.option(
        "-kvu/-no-kvu",
        "--kv-unified/--no-kv-unified",
        default=True,
        help="Share one KV cache among all sequences, or give each sequence an equal part.",
    ),
    section="Context",
)
