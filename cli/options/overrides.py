"""The options that override a model's RoPE and activation, for every tool that creates a context.

    @override_options                              # declares the flags
    context = Context(model, overrides=current_overrides())

The values are stored in click's context, so commands need no parameters for them. They are checked
when the context is created (``pyllama.runtime.overrides``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from ..help_pages import stack

if TYPE_CHECKING:
    from pyllama.runtime.overrides import Overrides

_META = "pyllama.runtime.overrides."
_SCALE = "rope_scale"
_OPTIONS: tuple[tuple[tuple[str, ...], type, str], ...] = (
    (("--rope-scale",), float, "RoPE context scaling factor; same as --rope-freq-scale 1/N."),
    (("--rope-freq-base",), float, "RoPE base frequency, used by NTK-aware scaling."),
    (("--rope-freq-scale",), float, "RoPE frequency scaling factor; expands the context by 1/N."),
    (("--yarn-orig-ctx",), int, "YaRN: original context size of the model."),
    (("--yarn-ext-factor",), float, "YaRN: extrapolation mix factor. 0: full interpolation."),
    (("--yarn-attn-factor",), float, "YaRN: scale of the attention magnitude."),
    (("--yarn-beta-slow",), float, "YaRN: high correction dim, alpha in the paper."),
    (("--yarn-beta-fast",), float, "YaRN: low correction dim, beta in the paper."),
)


def _keep(ctx: click.Context, param: click.Parameter, value: object) -> None:
    if value is not None:
        ctx.meta[f"{_META}{param.name}"] = value


def _option(*flags: str, **more: Any) -> Callable[[Any], Any]:
    return click.option(*flags, expose_value=False, callback=_keep, **more)


override_options = stack(
    _option(
        "--rope-scaling",
        type=click.Choice(["none", "linear", "yarn"]),
        help="RoPE frequency scaling method.  [default: the model's]",
    ),
    *(_option(*flags, type=kind, metavar="N", help=help) for flags, kind, help in _OPTIONS),
    _option(
        "--act",
        "hidden_act",
        type=click.Choice(["relu", "gelu", "silu", "gelu_erf", "gelu_quick", "relu_sqr"]),
        metavar="NAME",
        help="Activation of the feed-forward network: relu, gelu, silu, gelu_erf, gelu_quick or "
        "relu_sqr.  [default: the model's]",
    ),
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
