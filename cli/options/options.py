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
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

import click

from pyllama.parameters import Flags, row, rows
from pyllama.parameters.loading import ContextSizes, DeviceParams, FileParams

from ..help_pages import stack
from ..machine import machine_options
from ..output import note
from ..parameters import Parsed, from_options, parameter_options
from ..tool import ignored_option
from ..unsupported import OP_OFFLOAD
from .adapters import adapter_options
from .hub import hub_options
from .kv_overrides import parse_overrides
from .overrides import current_overrides, override_options
from .sparse import sparse_options

if TYPE_CHECKING:
    from pyllama.runtime.devices import Offload
    from pyllama.runtime.overrides import Overrides
    from pyllama.runtime.params import ContextParams

F = TypeVar("F", bound=Callable[..., Any])
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


def host_names(given: tuple[str, ...] | None, hosts: tuple[str, ...]) -> tuple[str, ...] | None:
    """The names that ``Host`` may have; None for any.

    A server of this machine alone is protected from pages whose name resolves to it.
    """
    if given is not None:
        return None if "*" in given else tuple(name.lower() for name in given)
    local = ("127.0.0.1", "localhost", "::1")
    return () if all(host in local or host.endswith(".sock") for host in hosts) else None


def _byte_count(text: str) -> int:
    match = re.fullmatch(r"([1-9]\d{0,8})([MG])", text)
    if match is None:
        raise click.BadParameter(
            f"{text!r} is not a size in M (10**6 bytes) or G (10**9 bytes), such as 2G."
        )
    return int(match[1]) * {"M": 1000**2, "G": 1000**3}[match[2]]


def _gpu_layers(text: str) -> int | Literal["auto"]:
    """Return the number of layers, -1 for all; ``auto`` also for -1, as in llama.cpp."""
    if text in ("auto", "-1"):
        return "auto"
    try:
        return -1 if text == "all" else max(-1, int(text))
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a number of layers, auto or all.") from None


def _numbers(text: str) -> tuple[float, ...]:
    try:
        numbers = tuple(map(float, re.split("[,/]", text)))
    except ValueError:
        numbers = (math.nan,)
    if not all(0 <= number < math.inf for number in numbers):
        raise click.BadParameter(f"{text!r} is not a list of numbers of at least 0, such as 3,1.")
    return numbers


BYTE_COUNT = Parsed("N(M|G)", _byte_count)  # in the units of llama-gguf-split
GPU_LAYERS = Parsed("N", _gpu_layers)
_NUMBERS = Parsed("N,...", _numbers)


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


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class OffloadOptions(DeviceParams):
    """Devices of a model and what goes there."""

    # fmt: off
    cpu_moe: bool = row(False, "Keep the experts of all layers on the CPU.",
        Flags("-cmoe", "--cpu-moe"))
    n_cpu_moe: int = row(0, "Keep the experts of the first N layers on the CPU.",
        Flags("-ncmoe", "--n-cpu-moe", high=4096))
    n_cpu_ffn: int = row(0, "Keep the dense FFN weights of the first N layers on the CPU.",
        Flags("-ncffn", "--n-cpu-ffn", high=4096))
    gpu_index: Path | None = row(None,
        "Put the neurons listed in this .gpuidx file on the GPU; it is only read.",
        Flags("--gpu-index"))
    reset_gpu_index: bool = row(False,
        "Choose the neurons for the GPU again, and rewrite MODEL.generated.gpuidx.",
        Flags("--reset-gpu-index"))
    disable_gpu_index: bool = row(False,
        "Put only dense tensors of a sparse model on the GPU, no neurons.",
        Flags("--disable-gpu-index"))
    dry_run: bool = row(False,
        "Print what would be on which device, with bytes, and exit; loads no weights.",
        Flags("--dry-run"))
    # fmt: on

    @property
    def asked_for(self) -> list[str]:
        """The given flags that have no effect without a GPU."""
        found = rows(type(self))
        changed = [n for n in _GPU_ONLY if getattr(self, n) not in (found[n].default, 0, "auto")]
        return [found[name].flags[0].names[0] for name in changed]

    def offload(self) -> Offload:
        """Return the library's form. Raises: BackendError."""
        from pyllama.runtime.devices import CPU, Offload

        patterns = [_EXPERTS] if self.cpu_moe else []
        patterns += [rf"blk\.{i}{_EXPERTS}" for i in range(self.n_cpu_moe)]
        patterns += [rf"blk\.{i}{_DENSE}" for i in range(self.n_cpu_ffn)]
        return Offload(
            "auto" if self.n_gpu_layers is None else self.n_gpu_layers,
            self.main_gpu,
            self.split_mode,
            self.tensor_split,
            (*self.override_tensor, *((pattern, CPU) for pattern in patterns)),
            tuple(int(gib * 2**30) for gib in self.vram_budget),
        )


_GPU_ONLY = (
    "n_gpu_layers", "main_gpu", "split_mode", "tensor_split", "vram_budget", "gpu_index",
    "reset_gpu_index", "disable_gpu_index",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ModelOptions(FileParams):
    """Which model to load, and how. ``model`` None is the demo model."""

    model: Path | None = row(None,
        "GGUF file, or the first file of a split model.  [default: a small demo model, downloaded "
        "once]", Flags("-m", "--model"))  # fmt: skip
    offload: OffloadOptions = field(default_factory=OffloadOptions)

    @classmethod
    def from_click(cls, options: Mapping[str, Any]) -> Self:
        """Return an instance filled from click's values; --load-mode replaces --mmap, --mlock."""
        mode, modes = options["load_mode"], {}
        if mode not in (None, "auto"):
            modes = {"use_mmap": "mmap" in mode, "use_mlock": "mlock" in mode}
        offload = from_options(OffloadOptions, options)
        return from_options(cls, {**options, **modes}, offload=offload)


offload_options = parameter_options(
    OffloadOptions,
    callbacks={"--split-mode": _split_mode, "--override-tensor": _overrides},
    types={"--n-gpu-layers": GPU_LAYERS, "--tensor-split": _NUMBERS, "--vram-budget": _NUMBERS},
    section="GPU",
)

model_option = stack(parameter_options(ModelOptions, only=("model",), section="Model"), hub_options)

load_options = stack(
    click.option(
        "-lm",
        "--load-mode",
        type=click.Choice(["auto", "none", "mmap", "mlock", "mmap+mlock"]),
        help="How to load the file. auto: as --mmap and --mlock say.",
    ),
    parameter_options(
        FileParams, but=("sparse", "sparse_threshold"), callbacks={"--override-kv": parse_overrides}
    ),
    sparse_options,
    offload_options,
    section="Model",
)

model_options = stack(model_option, load_options)


@dataclass(frozen=True, eq=False, repr=False)
class ContextOptions(ContextSizes):
    """Sizes and threads of a context, with types of the cache by name."""

    @classmethod
    def from_click(cls, options: Mapping[str, Any]) -> Self:
        """Return an instance filled from click's values."""
        threads = options["n_threads"] if options["n_threads"] > 0 else None
        batch = options["n_threads_batch"] if options["n_threads_batch"] > 0 else threads
        return from_options(cls, {**options, "n_threads": threads, "n_threads_batch": batch})

    def params(
        self, n_seq_max: int = 1, unified: bool = True, overrides: Overrides | None = None
    ) -> ContextParams:
        """Return the library's form; ``overrides`` None: those of the command line."""
        from pyllama.runtime.params import ContextParams

        return ContextParams(
            **vars(self),
            n_seq_max=n_seq_max,
            unified=unified,
            overrides=current_overrides() if overrides is None else overrides,
        )


numa_option = ignored_option("--numa", takes_value=True, why="start the process with numactl(8)")


def _flash_attn(ctx: click.Context, param: click.Parameter, value: str) -> None:
    if value == "off":
        note("-fa off is ignored: attention is always fused")


def context_options(n_ctx: int = 0, *, adapters: bool = True) -> Callable[[F], F]:
    """Return the decorator of the context options.

    Args:
        n_ctx: the tool's default.
        adapters: whether the tool loads adapters.
    """
    cpu, gpu = ("n_threads", "n_threads_batch"), ("offload_kqv",)
    return stack(
        parameter_options(ContextSizes, only=("n_ctx", "n_batch", "n_ubatch"), n_ctx=n_ctx),
        parameter_options(ContextSizes, only=cpu, section="CPU"),
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
        parameter_options(ContextSizes, but=("n_ctx", "n_batch", "n_ubatch", *cpu, *gpu)),
        override_options,
        *([adapter_options] if adapters else []),
        parameter_options(ContextSizes, only=gpu, section="GPU"),
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
