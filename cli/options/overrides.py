"""The options that override a model's RoPE and activation, for every tool that creates a context.

    @override_options                              # declares the flags
    context = Context(model, overrides=current_overrides())

The values are stored in click's context, so commands need no parameters for them. They are checked
when the context is created (``pyllama.runtime.overrides``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pyllama.parameters.loading import OverrideParams

from ..help_pages import stack
from .parameters import Number, parameter_options

if TYPE_CHECKING:
    from pyllama.runtime.overrides import Overrides

_META = "pyllama.runtime.overrides."
_SCALE = "rope_scale"


def _keep(ctx: click.Context, param: click.Parameter, value: object) -> None:
    if value is not None:
        ctx.meta[f"{_META}{param.name}"] = value


override_options = stack(
    parameter_options(OverrideParams, only=("rope_scaling",), keep=_keep),
    click.option(
        "--rope-scale",
        type=Number(kind=float),
        expose_value=False,
        callback=_keep,
        help="RoPE context scaling factor; same as --rope-freq-scale 1/N.",
    ),
    parameter_options(OverrideParams, but=("rope_scaling",), keep=_keep),
    section="RoPE and activation",
)
"""``--rope-*``, ``--yarn-*`` and ``--act``."""


def current_overrides() -> Overrides:
    """Return the overrides of this command line.

    Raises:
        click.UsageError: --rope-scale is not positive, or given with --rope-freq-scale.
    """
    from pyllama.runtime.overrides import Overrides

    context = click.get_current_context(silent=True)
    given = {
        key.removeprefix(_META): value
        for key, value in (context.meta if context else {}).items()
        if key.startswith(_META)
    }
    scale = given.pop(_SCALE, None)
    if scale is not None:
        if "rope_freq_scale" in given:
            raise click.UsageError("--rope-scale N is --rope-freq-scale 1/N: give one of them")
        if not scale > 0:
            raise click.UsageError(f"--rope-scale {scale:g} is not larger than 0")
        given["rope_freq_scale"] = 1 / scale
    return Overrides(**given)
