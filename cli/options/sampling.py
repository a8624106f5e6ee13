"""Options of the sampler chain, shared by the tools that generate text, with llama.cpp's names.

@sampling_options
def command(**options: Any) -> None:
    params = SamplingOptions.from_click(options).params()
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self, TypeVar

import click

from ..help_pages import stack
from .options import INT32_MAX, Group, Number
from .prompt import process_escapes

if TYPE_CHECKING:
    from pyllama.sampling import SamplingParams

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class SamplingOptions(Group):
    """llama.cpp's sampling parameters, under the names of ``SamplingParams``."""

    seed: int
    samplers: tuple[str, ...] | None
    temp: float
    dynatemp_range: float
    dynatemp_exponent: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    repeat_last_n: int
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: tuple[str, ...] | None
    adaptive_target: float
    adaptive_decay: float
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    ignore_eos: bool
    logit_bias: tuple[tuple[int, float], ...]

    @classmethod
    def from_click(cls, options: Mapping[str, Any]) -> Self:
        """Return an instance filled from click's values, with the escapes in DRY's breakers."""
        breakers = options["dry_sequence_breakers"]
        if options.get("escape") and breakers:
            as_bytes = (process_escapes(b.encode("utf-8", "surrogateescape")) for b in breakers)
            breakers = tuple(b.decode("utf-8", "replace") for b in as_bytes)
        return super().from_click({**options, "dry_sequence_breakers": breakers})

    def params(self) -> SamplingParams:
        """Return the parameters of the sampler chain."""
        from pyllama.sampling import SamplingParams

        values = {f.name: getattr(self, f.name) for f in fields(self)}
        if self.dry_sequence_breakers is None:
            del values["dry_sequence_breakers"]  # the default ones
        return SamplingParams(**{**values, "logit_bias": dict(self.logit_bias)})


def _logit_bias(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> tuple[tuple[int, float], ...]:
    """Parse ``ID+BIAS`` or ``ID-BIAS``: a token id and the number added to its logit."""
    pairs = []
    for value in values:
        match = re.fullmatch(r"(\d{1,18})([+-](?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|-inf)", value)
        if match is None:
            raise click.BadParameter(
                f"{value!r} is not ID+BIAS or ID-BIAS, such as 15043+1 or 2-inf."
            )
        pairs.append((int(match[1]), float(match[2])))
    return tuple(pairs)


def _keep_last(ctx: click.Context, samplers: tuple[str, ...] | None) -> None:
    """Set the samplers; of --samplers and --sampler-seq the last one on the command line counts."""
    if samplers is not None or "samplers" not in ctx.params:
        ctx.params["samplers"] = samplers


def _samplers(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is None:
        return _keep_last(ctx, None)
    from pyllama.sampling import SamplingError, sampler_name

    names = [name for name in map(str.strip, value.split(";")) if name]
    try:
        _keep_last(ctx, tuple(map(sampler_name, names)))
    except SamplingError as error:
        raise click.BadParameter(f"{error}.") from None


def _sampler_seq(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is None:
        return _keep_last(ctx, None)
    from pyllama.sampling import LETTERS

    for letter in value:
        if letter not in LETTERS:
            known = ", ".join(f"{letter} ({name})" for letter, name in LETTERS.items())
            raise click.BadParameter(f"unknown letter {letter!r}; choose from {known}.")
    _keep_last(ctx, tuple(LETTERS[letter] for letter in value))


def _breakers(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> tuple[str, ...] | None:
    """The given breakers, those after the last ``none``; None if there are none."""
    if not values:
        return None
    after = len(values) - values[::-1].index("none") if "none" in values else 0
    return values[after:]


def _real(
    *flags: str,
    default: float,
    help: str,
    minimum: float = -math.inf,
    maximum: float = math.inf,
) -> Callable[[F], F]:
    kind = Number(minimum, maximum, kind=float)
    return click.option(*flags, type=kind, default=default, help=help)


def _whole(
    *flags: str, default: int, help: str, minimum: int = 0, maximum: int = INT32_MAX
) -> Callable[[F], F]:
    kind = Number(minimum, maximum)
    return click.option(*flags, type=kind, default=default, help=help)


sampling_options = stack(
    click.option(
        "--samplers",
        callback=_samplers,
        expose_value=False,
        metavar="A;B;...",
        help="Samplers, in order, separated by ';'; also infill and adaptive_p.  [default: "
        "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature]",
    ),
    click.option(
        "--sampler-seq",
        "--sampling-seq",
        callback=_sampler_seq,
        expose_value=False,
        metavar="LETTERS",
        help="Samplers, in order, a letter each; also i (infill) and a (adaptive_p).  "
        "[default: edskypmxt]",
    ),
    _whole("-s", "--seed", default=-1, minimum=-1, maximum=2**32 - 1, help="RNG seed. -1: random."),
    _real("--temp", "--temperature", default=0.8, help="Temperature. 0 or less: greedy."),
    _whole(
        "--top-k",
        default=40,
        minimum=-1,
        help="Top-k sampling: keep the k most likely tokens. 0: off.",
    ),
    _real(
        "--top-p",
        default=0.95,
        minimum=0,
        help="Top-p sampling: keep the most likely tokens with a total probability of p. 1: off.",
    ),
    _real(
        "--min-p",
        default=0.05,
        minimum=0,
        maximum=1,
        help="Min-p sampling: drop tokens less likely than p times the most likely one. 0: off.",
    ),
    _real(
        "--top-nsigma",
        "--top-n-sigma",
        "top_n_sigma",
        default=-1.0,
        help="Top-n-sigma sampling: drop logits more than N standard deviations below the largest. "
        "0 or less: off.",
    ),
    _real(
        "--xtc-probability",
        default=0.0,
        help="XTC sampling: how often to drop all likely tokens except the last of them. 0: off.",
    ),
    _real(
        "--xtc-threshold",
        default=0.1,
        help="XTC sampling: minimum probability of a likely token. Above 0.5: off.",
    ),
    _real(
        "--typical",
        "--typical-p",
        "typical_p",
        default=1.0,
        help="Locally typical sampling: keep the tokens nearest to the expected surprise with a "
        "total probability of p. 1: off.",
    ),
    _whole(
        "--repeat-last-n",
        default=64,
        minimum=-1,
        help="Number of last tokens that the penalties consider. 0: off, -1: the context size.",
    ),
    _real(
        "--repeat-penalty",
        default=1.0,
        minimum=1e-6,
        help="Penalize repeated tokens: divide their logits. 1: off.",
    ),
    _real(
        "--presence-penalty",
        default=0.0,
        help="Subtracted from the logit of each token that occurred. 0: off.",
    ),
    _real(
        "--frequency-penalty",
        default=0.0,
        help="Subtracted from a token's logit once per occurrence. 0: off.",
    ),
    _real(
        "--dry-multiplier",
        default=0.0,
        help="DRY sampling: penalty of a token that continues a repetition. 0: off.",
    ),
    _real(
        "--dry-base",
        default=1.75,
        minimum=1,
        help="DRY sampling: factor of the penalty for each further repeated token.",
    ),
    _whole(
        "--dry-allowed-length",
        default=2,
        help="DRY sampling: length of a repetition with a penalty of --dry-multiplier.",
    ),
    _whole(
        "--dry-penalty-last-n",
        default=64,
        help="DRY sampling: number of last tokens to search for repetitions. 0: off.",
    ),
    click.option(
        "--dry-sequence-breaker",
        "dry_sequence_breakers",
        multiple=True,
        callback=_breakers,
        metavar="STRING",
        help="DRY sampling: repetitions end at this text. Repeatable; replaces the default ones. "
        "none: no such text.  [default: '\\n', ':', '\"', '*']",
    ),
    _real(
        "--adaptive-target",
        default=-1.0,
        maximum=1,
        help="Sampler adaptive_p: prefer tokens near this probability. Below 0: off.",
    ),
    _real(
        "--adaptive-decay",
        default=0.9,
        minimum=0,
        maximum=0.99,
        help="Sampler adaptive_p: decay of the average over the text. Lower reacts faster.",
    ),
    _real(
        "--dynatemp-range",
        default=0.0,
        help="Dynamic temperature: from --temp minus N to --temp plus N, by the entropy. 0: off.",
    ),
    _real(
        "--dynatemp-exp",
        "dynatemp_exponent",
        default=1.0,
        help="Dynamic temperature: exponent of the relative entropy.",
    ),
    _whole(
        "--mirostat",
        default=0,
        maximum=2,
        help="Use Mirostat 1 or 2 instead of all other samplers but --temp and --logit-bias. 0: "
        "off.",
    ),
    _real("--mirostat-lr", "mirostat_eta", default=0.1, help="Mirostat: learning rate, eta."),
    _real("--mirostat-ent", "mirostat_tau", default=5.0, help="Mirostat: target entropy, tau."),
    click.option(
        "--ignore-eos", is_flag=True, help="Never sample end-of-generation tokens; keep generating."
    ),
    click.option(
        "-l",
        "--logit-bias",
        multiple=True,
        callback=_logit_bias,
        metavar="ID(+/-)BIAS",
        help="Change the logit of a token, as in 15043+1 or 2-inf. Repeatable.",
    ),
    section="Sampling",
)
