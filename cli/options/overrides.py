"""The options that override a model's RoPE and activation, for every tool that creates a context.

    @override_options                              # declares the flags
    context = Context(model, overrides=current_overrides())

The values are stored in click's context, so commands need no parameters for them. They are checked
when the context is created (``pyllama.runtime.overrides``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from pyllama.parameters import Flags, row
from pyllama.parameters.loading import OverrideParams

from ..parameters import kept_values, parameter_options

if TYPE_CHECKING:
    from pyllama.runtime.overrides import Overrides


@dataclass(frozen=True, eq=False, repr=False)
class _OverrideOptions(OverrideParams):
    rope_scale: float | None = row(
        None, "RoPE context scaling factor; same as --rope-freq-scale 1/N.", Flags("--rope-scale")
    )


override_options = parameter_options(
    _OverrideOptions, first=("rope_scaling", "rope_scale"), keep=True, section="RoPE and activation"
)
"""``--rope-*``, ``--yarn-*`` and ``--act``."""


def current_overrides() -> Overrides:
    """Return the overrides of this command line.

    Raises:
        click.UsageError: --rope-scale is not positive, or given with --rope-freq-scale.
    """
    from pyllama.runtime.overrides import Overrides

    given = dict(kept_values(_OverrideOptions))
    scale = given.pop("rope_scale", None)
    if scale is not None:
        if "rope_freq_scale" in given:
            raise click.UsageError("--rope-scale N is --rope-freq-scale 1/N: give one of them")
        if not scale > 0:
            raise click.UsageError(f"--rope-scale {scale:g} is not larger than 0")
        given["rope_freq_scale"] = 1 / scale
    return Overrides(**given)
