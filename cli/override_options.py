"""The options that change a context's rope and activation, for every tool that makes one.

    @override_options                              # declares the flags
    context = Context(model, overrides=current_overrides())

They are kept in click's context, so a command that takes ``-c`` takes them without knowing. Values
are checked where the context is made (``pyllama.core.overrides``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from pyllama.core.overrides import Overrides

F = TypeVar("F")
_META = "pyllama.core.overrides."
_SCALE = "rope_scale"
_OPTIONS: tuple[tuple[tuple[str, ...], type, str], ...] = (
    (("--rope-scale",), float, "Times more context: as --rope-freq-scale 1/N."),
    (("--rope-freq-base",), float, "Base of rope's frequencies (NTK-aware scaling)."),
    (("--rope-freq-scale",), float, "Positions are multiplied by it: 1/N for N times the context."),
    (("--yarn-orig-ctx",), int, "Context that the model was trained with before any scaling."),
    (("--yarn-ext-factor",), float, "How much YaRN extrapolates. 0: it interpolates all."),
    (("--yarn-attn-factor",), float, "Times the length of rotated queries and keys."),
    (("--yarn-beta-slow",), float, "Turns below which a pair is interpolated."),
    (("--yarn-beta-fast",), float, "Turns above which a pair is left as it is."),
)


def _keep(ctx: click.Context, param: click.Parameter, value: object) -> None:
    if value is not None:
        ctx.meta[f"{_META}{param.name}"] = value


def override_options(function: F) -> F:
    """``--rope-*``, ``--yarn-*`` and ``--act``."""
    options: list[tuple[tuple[str, ...], dict[str, Any]]] = [
        (
            ("--rope-scaling",),
            {
                "type": click.Choice(["none", "linear", "yarn"]),
                "help": "How rope is scaled to a longer context.  [default: the model's]",
            },
        )
    ]
    for flags, kind, help in _OPTIONS:
        options.append((flags, {"type": kind, "metavar": "N", "help": help}))
    options.append(
        (
            ("--act", "hidden_act"),
            {
                "type": click.Choice(
                    ["relu", "gelu", "silu", "gelu_erf", "gelu_quick", "relu_sqr"]
                ),
                "help": "Activation of the feed-forward part in place of the model's.",
            },
        )
    )
    for flags, more in reversed(options):
        function = click.option(*flags, expose_value=False, callback=_keep, **more)(function)  # type: ignore[type-var]
    return function


def current_overrides() -> Overrides:
    """What this command line says."""
    from pyllama.core.overrides import Overrides

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
