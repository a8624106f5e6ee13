"""Options of the sampler chain, shared by the tools that generate text, with llama.cpp's names.

@sampling_options
def command(**options: Any) -> None:
    params = sampling_params(options)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import click

from pyllama.parameters.sampling import LETTERS, SamplingParams

from ..parameters import from_options, parameter_options
from .prompt import process_escapes


def sampling_params(options: Mapping[str, Any]) -> SamplingParams:
    """Return the parameters of the sampler chain, with the escapes in DRY's breakers."""
    breakers = options["dry_sequence_breakers"]
    if options.get("escape") and breakers:
        as_bytes = (process_escapes(b.encode("utf-8", "surrogateescape")) for b in breakers)
        breakers = tuple(b.decode("utf-8", "replace") for b in as_bytes)
    return from_options(SamplingParams, {**options, "dry_sequence_breakers": breakers})


def _logit_bias(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> dict[int, float]:
    """Parse ``ID+BIAS`` or ``ID-BIAS``: a token id and the number added to its logit."""
    found: dict[int, float] = {}
    for value in values:
        match = re.fullmatch(r"(\d{1,18})([+-](?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|-inf)", value)
        if match is None:
            raise click.BadParameter(
                f"{value!r} is not ID+BIAS or ID-BIAS, such as 15043+1 or 2-inf."
            )
        found[int(match[1])] = float(match[2])
    return found


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
    for letter in value or "":
        if letter not in LETTERS:
            letters = ", ".join(f"{letter} ({name})" for letter, name in LETTERS.items())
            raise click.BadParameter(f"unknown letter {letter!r}; choose from {letters}.")
    _keep_last(ctx, None if value is None else tuple(LETTERS[letter] for letter in value))


def _breakers(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> tuple[str, ...] | None:
    """The given breakers, those after the last ``none``; None if there are none."""
    if not values:
        return None
    after = len(values) - values[::-1].index("none") if "none" in values else 0
    return values[after:]


sampling_options = parameter_options(
    SamplingParams,
    first=("samplers",),
    callbacks={
        "--samplers": _samplers,
        "--sampling-seq": _sampler_seq,
        "--dry-sequence-breaker": _breakers,
        "--logit-bias": _logit_bias,
    },
    section="Sampling",
)
"""The rows of `SamplingParams` that have flags."""
