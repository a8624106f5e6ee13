"""The options of speculative decoding, with llama.cpp's names, old and new.

    @speculative_options()
    def command(**options: Any) -> None:
        drafts = SpeculativeOptions.from_click(options)

``drafting`` makes drafters of them. Options that contradict each other are refused here, before a
model is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self, TypeVar

import click
from click.core import ParameterSource

from ..help_pages import stack
from ..output import note
from ..paths import writable
from ..tool import ignored_option
from ..unsupported import DRAFT_HEADS
from .options import CACHE_TYPES, INT32_MAX, MAX_THREADS, GpuLayers, Group, Number
from .sparse import Threshold

F = TypeVar("F", bound=Callable[..., Any])

MAX_DRAFT = 1024  # tokens of a draft, llama.cpp's limit of its m-grams
DRAFT_MAX = 16  # default; the adaptive length drafts fewer where fewer pay
SPEC_TYPES = (  # pyllama.speculative.names, in the order in which they are asked
    "ngram-simple",
    "ngram-map-k",
    "ngram-map-k4v",
    "ngram-mod",
    "ngram-cache",
    "prompt-lookup",
    "suffix",
    "draft-simple",
)
DRAFT_HEAD_TYPES = ("draft-eagle3", "draft-mtp", "draft-dflash", "draft-dspark")
_N_GRAM = ("n", 12, 1, "length of the n-gram to look for.")
_M_GRAM = ("m", 48, 1, "maximum length of a draft.")
_NGRAM = {  # by --spec-type and end of the flag: parameter, default, minimum, help
    "ngram-simple": {"size-n": _N_GRAM, "size-m": _M_GRAM},
    "ngram-map-k": {"size-n": _N_GRAM, "size-m": _M_GRAM},
    "ngram-map-k4v": {
        "size-n": _N_GRAM,
        "size-m": _M_GRAM,
        "min-hits": ("min_hits", 1, 1, "uses of an n-gram from which on it is drafted."),
    },
    "ngram-mod": {
        "n-match": ("n_match", 24, 1, "length of the n-gram to look for."),
        "n-min": ("n_min", 48, 0, "minimum length of a draft, before --draft-max cuts it."),
        "n-max": ("n_max", 64, 0, "maximum length of a draft."),
    },
}
_OF_ALL = ("size-n", "size-m", "min-hits")  # llama.cpp's old flags, of all types that have them


@dataclass(frozen=True)
class SpeculativeOptions(Group):
    """What drafts, how much, and how a draft model samples.

    ``draft_max`` None: the drafter's own maximum. ``ngram`` has by type of drafter its
    parameters from the ``--spec-ngram-*`` flags.
    """

    model_draft: Path | None = None
    hf_repo_draft: str | None = None
    self_draft_threshold: float | None = None
    self_draft_layers: int | None = None
    lookup: bool = False
    spec_type: tuple[str, ...] = ()
    spec_default: bool = False
    lookup_cache_static: Path | None = None
    lookup_cache_dynamic: Path | None = None
    draft_max: int | None = None
    draft_min: int = 0
    adaptive_draft: bool = True
    draft_branches: int = 1
    draft_p_split: float = 0.1
    draft_p_min: float = 0.0
    draft_sampling: str | None = None
    draft_temp: float | None = None
    draft_top_k: int | None = None
    draft_top_p: float | None = None
    draft_min_p: float | None = None
    draft_seed: int | None = None
    threads_draft: int = -1
    threads_batch_draft: int = -1
    ctx_size_draft: int = 0
    cache_type_k_draft: str = "f16"
    cache_type_v_draft: str = "f16"
    device_draft: str | None = None
    gpu_layers_draft: int | None = None
    ngram: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @classmethod
    def from_click(cls, options: Mapping[str, Any]) -> Self:
        """Return an instance filled from click's values; flags that a tool lacks have defaults."""
        names = {f.name for f in fields(cls)} & options.keys()
        made = cls(**{name: options[name] for name in names}, ngram=_ngram_parameters(options))
        if not made.types and made.draft_max != 0:
            _note_unused()
        return made

    def __post_init__(self) -> None:
        limit = self.draft_max if self.draft_max is not None else MAX_DRAFT
        if self.draft_min > limit:
            raise click.UsageError(f"--draft-min {self.draft_min} is above --draft-max {limit}")
        if self.has_model and self.is_self_draft:
            raise click.UsageError(
                "the draft is another model (-md, -hfd) or the same one (--self-draft-*): give one "
                "of them"
            )
        if "draft-simple" in self.spec_type and not (self.has_model or self.is_self_draft):
            raise click.UsageError("--spec-type draft-simple needs a draft model: -md or -hfd")
        if self.sampling and self.draft_sampling == "greedy":
            raise click.UsageError(
                f"--draft-{next(iter(self.sampling)).replace('_', '-')} has no effect with "
                "--draft-sampling greedy"
            )

    @property
    def has_model(self) -> bool:
        """Whether a draft model is given."""
        return self.model_draft is not None or self.hf_repo_draft is not None

    @property
    def is_self_draft(self) -> bool:
        """Whether the model drafts for itself."""
        return self.self_draft_threshold is not None or self.self_draft_layers is not None

    @property
    def types(self) -> list[str]:
        """The types of ``SPEC_TYPES`` that draft, in their order; [] for no drafts."""
        wanted = {
            *self.spec_type,
            *(["draft-simple"] if self.has_model or self.is_self_draft else []),
            *(["prompt-lookup"] if self.lookup else []),
            *(["ngram-mod"] if self.spec_default else []),
            *(["ngram-cache"] if self.lookup_cache_static or self.lookup_cache_dynamic else []),
        }
        return [name for name in SPEC_TYPES if name in wanted and self.draft_max != 0]

    @property
    def sampling(self) -> dict[str, Any]:
        """The draft's own sampling parameters that are given, under ``SamplingParams``' names."""
        names = ("temp", "top_k", "top_p", "min_p", "seed")
        given = {name: getattr(self, f"draft_{name}") for name in names}
        return {name: value for name, value in given.items() if value is not None}

    @property
    def is_sampled(self) -> bool:
        """Whether a draft model samples; else it drafts its likeliest tokens."""
        return self.draft_sampling == "probabilistic" or bool(self.sampling)

    @property
    def max_draft(self) -> int:
        """Maximum number of drafted tokens of a step."""
        if self.draft_max is not None:
            return self.draft_max
        sizes = [self.ngram[name] for name in self.types if name in self.ngram]
        own = [size.get("m", size.get("n_max", 0)) for size in sizes]
        return max([DRAFT_MAX, self.draft_min, *own])


def _ngram_parameters(options: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for kind, numbers in _NGRAM.items():
        for end, (name, default, _, _) in numbers.items():
            own = options.get(f"spec_{kind}_{end}".replace("-", "_"))
            of_all = options.get(f"spec_ngram_{end}".replace("-", "_"))
            given = own if own is not None else of_all
            found.setdefault(kind, {})[name] = default if given is None else given
    return found


def _note_unused() -> None:
    """Say which flags of drafts have no effect because nothing drafts."""
    context = click.get_current_context(silent=True)
    if context is None:
        return
    own = {f.name for f in fields(SpeculativeOptions)}
    for param in context.command.params:
        name = param.name or ""
        if name in own or name.startswith("spec_ngram"):
            given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
            if given and context.params[name] not in ((), None):
                note(
                    f"{param.opts[0]} has no effect without a drafter: give -md, --lookup or "
                    "--spec-type"
                )


def _types(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, ...]:
    """Parse a list of types; ``none`` adds none."""
    names = tuple(name for name in map(str.strip, value.split(",")) if name != "none")
    for name in names:
        if name in DRAFT_HEAD_TYPES:
            raise click.BadParameter(f"{name} is not supported: {DRAFT_HEADS}.")
        if name not in SPEC_TYPES:
            known = ", ".join(("none", *SPEC_TYPES))
            raise click.BadParameter(f"{name!r} is not one of {known}.")
    return names


def _probability(*flags: str, default: float | None, help: str) -> Callable[[F], F]:
    kind = Number(0, 1, kind=float)
    return click.option(*flags, type=kind, default=default, help=help)


def _threads(*flags: str, help: str) -> Callable[[F], F]:
    kind = Number(-1, MAX_THREADS)
    return click.option(*flags, type=kind, default=-1, help=help)


def _cache_type(*flags: str, of: str) -> Callable[[F], F]:
    return click.option(
        *flags,
        type=click.Choice(CACHE_TYPES),
        default="f16",
        metavar="TYPE",
        help=f"KV cache type for {of} of the draft model.",
    )


def _ngram_options() -> list[Callable[[Any], Any]]:
    options = [
        click.option(
            f"--spec-{kind}-{end}",
            type=Number(minimum, MAX_DRAFT),
            help=f"{kind}: {help}  [default: {default}]",
        )
        for kind, numbers in _NGRAM.items()
        for end, (_, default, minimum, help) in numbers.items()
    ]
    options += [
        click.option(f"--spec-ngram-{end}", type=Number(1, MAX_DRAFT), hidden=True)
        for end in _OF_ALL
    ]
    unused = "it does not change what is drafted, as in llama.cpp"
    options += [
        ignored_option(f"--spec-{kind}-min-hits", takes_value=True, why=unused)
        for kind in ("ngram-simple", "ngram-map-k")
    ]
    return options


length_options = stack(
    click.option(
        "--draft-max",
        "--draft",
        "--draft-n",
        "--spec-draft-n-max",
        "draft_max",
        type=Number(0, MAX_DRAFT),
        help="Maximum number of drafted tokens per step; 0: no drafts.  [default: "
        f"{DRAFT_MAX}, or more if a --spec-ngram-* maximum is larger]",
    ),
    click.option(
        "--draft-min",
        "--draft-n-min",
        "--spec-draft-n-min",
        "draft_min",
        type=Number(0, MAX_DRAFT),
        default=0,
        help="Minimum number of drafted tokens; shorter drafts are not used.",
    ),
    click.option(
        "--adaptive-draft/--no-adaptive-draft",
        default=True,
        help="Draft as many tokens as pay, by measured times and accept rates, or always as many "
        "as --draft-max.",
    ),
    section="Speculative decoding",
)

lookup_cache_options = stack(
    click.option(
        "-lcs",
        "--lookup-cache-static",
        type=click.Path(path_type=Path),
        help="Lookup cache of a corpus (see pyllama-lookup-create); it is only read.",
    ),
    click.option(
        "-lcd",
        "--lookup-cache-dynamic",
        type=click.Path(path_type=Path),
        callback=writable,
        help="Lookup cache of earlier texts: read if it exists, updated at the end.",
    ),
    section="Drafts of n-grams",
)

draft_model_options = stack(
    click.option(
        "-md",
        "--model-draft",
        "--spec-draft-model",
        "model_draft",
        type=click.Path(path_type=Path),
        help="GGUF file of a draft model, of any vocabulary.",
    ),
    click.option(
        "-hfd",
        "-hfrd",
        "--hf-repo-draft",
        "--spec-draft-hf",
        "hf_repo_draft",
        metavar="USER/MODEL[:QUANT]",
        help="Hugging Face repository of the draft model; -md then names a file in it.",
    ),
    click.option(
        "--self-draft-threshold",
        type=Threshold(),
        metavar="X",
        help="The model drafts for itself, with this --sparse-threshold: fewer neurons.",
    ),
    click.option(
        "--self-draft-layers",
        type=Number(1, INT32_MAX),
        help="The model drafts for itself, with its first N layers only.",
    ),
    _probability(
        "--draft-p-split",
        "--spec-draft-p-split",
        "draft_p_split",
        default=0.1,
        help="Minimum probability, in the draft model, of a token that begins another branch.",
    ),
    _probability(
        "--draft-p-min",
        "--spec-draft-p-min",
        "draft_p_min",
        default=0.0,
        help="Stop drafting where the draft model's likeliest token is less probable.",
    ),
    click.option(
        "--draft-sampling",
        "--spec-draft-sampling",
        "draft_sampling",
        type=click.Choice(["greedy", "probabilistic"]),
        help="How a draft model drafts. greedy: its likeliest tokens; the text is then that "
        "without drafts, seed for seed. probabilistic: it samples, and rejection sampling keeps "
        "the distribution of the text.  [default: greedy, or probabilistic with --draft-temp, "
        "--draft-top-k, --draft-top-p, --draft-min-p or --draft-seed]",
    ),
    click.option(
        "--draft-temp",
        type=Number(0, kind=float),
        help="Temperature of the draft model.  [default: --temp]",
    ),
    click.option(
        "--draft-top-k",
        type=Number(0, INT32_MAX),
        help="Top-k sampling of the draft model. 0: off.  [default: --top-k]",
    ),
    _probability(
        "--draft-top-p",
        default=None,
        help="Top-p sampling of the draft model. 1: off.  [default: --top-p]",
    ),
    _probability(
        "--draft-min-p",
        default=None,
        help="Min-p sampling of the draft model. 0: off.  [default: --min-p]",
    ),
    click.option(
        "--draft-seed",
        type=Number(-1, 2**32 - 1),
        help="RNG seed of the draft model. -1: random.  [default: from --seed]",
    ),
    click.option(
        "-cd",
        "--ctx-size-draft",
        type=Number(0, INT32_MAX),
        default=0,
        help="Size of the draft model's context. 0: the size of the model's.",
    ),
    _threads(
        "-td",
        "--threads-draft",
        "--spec-draft-threads",
        "threads_draft",
        help="Threads of the draft model. -1: same as -t.",
    ),
    _threads(
        "-tbd",
        "--threads-batch-draft",
        "--spec-draft-threads-batch",
        "threads_batch_draft",
        help="Threads of the draft model for prompts. -1: same as -td.",
    ),
    _cache_type(
        "-ctkd", "--cache-type-k-draft", "--spec-draft-type-k", "cache_type_k_draft", of="K"
    ),
    _cache_type(
        "-ctvd", "--cache-type-v-draft", "--spec-draft-type-v", "cache_type_v_draft", of="V"
    ),
    click.option(
        "-devd",
        "--device-draft",
        "--spec-draft-device",
        "device_draft",
        metavar="DEV,...",
        help="Devices of the draft model.  [default: --device]",
    ),
    click.option(
        "-ngld",
        "--gpu-layers-draft",
        "--n-gpu-layers-draft",
        "--spec-draft-ngl",
        "gpu_layers_draft",
        type=GpuLayers(),
        help="Layers of the draft model to offload: a number, auto or all.  [default: auto]",
    ),
    section="Draft model",
)


def speculative_options(*branch_flags: str) -> Callable[[F], F]:
    """Return the decorator of all options of this module.

    Args:
        branch_flags: further names of ``--draft-branches``.
    """
    return stack(
        draft_model_options,
        click.option(
            *branch_flags,
            "--draft-branches",
            "draft_branches",
            type=Number(1, 64),
            default=1,
            help="Number of branches of a draft. Above 1, a draft model and suffix draft trees.",
        ),
        click.option(
            "--lookup",
            is_flag=True,
            help="Draft what followed the last tokens earlier in the text; same as --spec-type "
            "prompt-lookup.",
        ),
        click.option(
            "--spec-type",
            default="none",
            callback=_types,
            metavar="TYPE,...",
            help=f"Drafters, of which the first that finds anything drafts: "
            f"{', '.join(SPEC_TYPES)}.  [default: draft-simple with a draft model, else none]",
        ),
        click.option("--spec-default", is_flag=True, help="Same as --spec-type ngram-mod."),
        lookup_cache_options,
        length_options,
        stack(*_ngram_options(), section="Drafts of n-grams"),
        section="Speculative decoding",
    )
