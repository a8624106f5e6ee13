"""The options of speculative decoding, with llama.cpp's names, old and new.

    @speculative_options()
    def command(**options: Any) -> None:
        drafts = SpeculativeOptions.from_click(options)

``drafting`` makes drafters of them. Options that contradict each other are refused here, before a
model is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import click
from click.core import ParameterSource

from pyllama.parameters import rows
from pyllama.parameters.drafting import (
    DRAFT_MAX,
    DRAFT_MODEL,
    DRAFTERS,
    HEAD_FILES,
    HEADS,
    MAX_DRAFT,
    DraftParams,
)

from ..help_pages import stack
from ..output import note
from ..parameters import Number, from_options, parameter_options
from ..paths import writable
from ..tool import ignored_option
from .options import GPU_LAYERS
from .sparse import THRESHOLD

F = TypeVar("F", bound=Callable[..., Any])
SPEC_TYPES = tuple(DRAFTERS)
_OF_ALL = ("size-n", "size-m", "min-hits")  # llama.cpp's old flags, of all types that have them
_LENGTH = ("draft_max", "draft_min", "adaptive_draft")
_CACHES = ("lookup_cache_static", "lookup_cache_dynamic")
_CHOICE = ("draft_branches", "lookup", "spec_type", "spec_default")


@dataclass(frozen=True, eq=False, repr=False)
class SpeculativeOptions(DraftParams):
    """What drafts, how much, and how a draft model samples.

    ``draft_max`` None: the drafter's own maximum. ``ngram`` has by type of drafter its
    parameters from the ``--spec-ngram-*`` flags.
    """

    @classmethod
    def from_click(cls, options: Mapping[str, Any]) -> Self:
        """Return an instance filled from click's values; flags that a tool lacks have defaults."""
        speculative = from_options(cls, options, ngram=_ngram_parameters(options))
        if not speculative.types and speculative.draft_max != 0:
            _note_unused()
        return speculative

    def __post_init__(self) -> None:
        limit = self.draft_max if self.draft_max is not None else MAX_DRAFT
        if self.draft_min > limit:
            raise click.UsageError(f"--draft-min {self.draft_min} is above --draft-max {limit}")
        if self.has_model and self.is_self_draft:
            raise click.UsageError(
                "the draft is another model (-md, -hfd) or the same one (--self-draft-*): give one "
                "of them"
            )
        heads = self.heads
        if len(heads) > 1 or (heads and DRAFT_MODEL in self.spec_type and self.has_model):
            raise click.UsageError(
                "-md is a draft model or has a head, and one head can draft: give one of "
                f"--spec-type draft-simple, {', '.join(HEADS[:-1])} and {HEADS[-1]}"
            )
        if heads and heads[0] in HEAD_FILES and not self.has_model:
            raise click.UsageError(f"--spec-type {heads[0]} needs the head's file: -md or -hfd")
        if DRAFT_MODEL in self.spec_type and not (self.has_model or self.is_self_draft):
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
    def heads(self) -> list[str]:
        """The types of heads that draft."""
        return [name for name in HEADS if name in self.spec_type]

    @property
    def is_self_draft(self) -> bool:
        """Whether the model drafts for itself."""
        return self.self_draft_threshold is not None or self.self_draft_layers is not None

    @property
    def types(self) -> list[str]:
        """The types of ``SPEC_TYPES`` that draft, in their order; [] for no drafts."""
        is_model = self.has_model and not self.heads
        chosen = {
            *self.spec_type,
            *([DRAFT_MODEL] if is_model or self.is_self_draft else []),
            *(["prompt-lookup"] if self.lookup else []),
            *(["ngram-mod"] if self.spec_default else []),
            *(["ngram-cache"] if self.lookup_cache_static or self.lookup_cache_dynamic else []),
        }
        return [name for name in SPEC_TYPES if name in chosen and self.draft_max != 0]

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
    def is_tree(self) -> bool:
        """Whether drafts have several branches."""
        return self.draft_branches > 1

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
    for kind, entry in DRAFTERS.items():
        for end, number in entry.numbers.items():
            own = options.get(f"spec_{kind}_{end}".replace("-", "_"))
            of_all = options.get(f"spec_ngram_{end}".replace("-", "_"))
            given = own if own is not None else of_all
            value = number.default if given is None else given
            found.setdefault(kind, {})[number.argument] = value
    return found


def _note_unused() -> None:
    """Say which flags of drafts have no effect because nothing drafts."""
    context = click.get_current_context(silent=True)
    if context is None:
        return
    own = {*rows(SpeculativeOptions)}
    for param in context.command.params:
        name = param.name or ""
        if name in own or name.startswith("spec_ngram"):
            given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
            if given and context.params.get(name) not in ((), None):  # it may not be exposed
                note(
                    f"{param.opts[0]} has no effect without a drafter: give -md, --lookup or "
                    "--spec-type"
                )


def _types(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    """Check a list of types; ``none`` adds none."""
    names = tuple(name for name in value if name != "none")
    for name in names:
        if name not in SPEC_TYPES:
            known = ", ".join(("none", *SPEC_TYPES))
            raise click.BadParameter(f"{name!r} is not one of {known}.")
    return names


def _ngram_options() -> list[Callable[[Any], Any]]:
    options = [
        click.option(
            f"--spec-{kind}-{end}",
            type=Number(number.low, MAX_DRAFT),
            help=f"{kind}: {number.help}  [default: {number.default}]",
        )
        for kind, entry in DRAFTERS.items()
        for end, number in entry.numbers.items()
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


def _rows(only: Sequence[str], section: str, but: Sequence[str] = ()) -> Callable[[F], F]:
    return parameter_options(
        SpeculativeOptions,
        only=only,
        but=but,
        callbacks={"--spec-type": _types, "--lookup-cache-dynamic": writable},
        types={"--self-draft-threshold": THRESHOLD, "--spec-draft-ngl": GPU_LAYERS},
        section=section,
    )


length_options = _rows(_LENGTH, "Speculative decoding")
lookup_cache_options = _rows(_CACHES, "Drafts of n-grams")
draft_model_options = _rows((), "Draft model", but=(*_LENGTH, *_CACHES, *_CHOICE))


def speculative_options(*branch_flags: str) -> Callable[[F], F]:
    """Return the decorator of all options of this module.

    Args:
        branch_flags: further names of ``--draft-branches``.
    """
    return stack(
        draft_model_options,
        parameter_options(SpeculativeOptions, only=_CHOICE[:1], also=branch_flags),
        _rows(_CHOICE[1:], "Speculative decoding"),
        lookup_cache_options,
        length_options,
        stack(*_ngram_options(), section="Drafts of n-grams"),
        section="Speculative decoding",
    )
