"""The options that name adapters, for every tool that creates a context.

    @adapter_options                               # declares the flags
    apply_adapters(context)                        # loads the files

The values are stored in click's context, so commands need no parameters for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click

from pyllama.parameters.loading import AdapterParams

from ..parameters import kept_values, parameter_options

if TYPE_CHECKING:
    from pyllama.runtime.context import Context

adapter_options = parameter_options(AdapterParams, keep=True, section="Adapters")
"""``--lora``, ``--control-vector`` and those with factors."""


def apply_adapters(context: Context, *, apply_loras: bool = True) -> None:
    """Load the adapters of this command line.

    Args:
        apply_loras: False gives LoRA adapters the factor 0 until a client sets another one.

    Raises:
        click.UsageError: as of ``files_of``.
        PyggmlError: a file is no adapter of the model; see ``load_lora``.
    """
    given = kept_values(AdapterParams)
    loras = files_of(given.get("lora"), given.get("lora_scaled"), "--lora-scaled")
    vectors = files_of(
        given.get("control_vector"), given.get("control_vector_scaled"), "--control-vector-scaled"
    )
    first, last = given.get("control_vector_layers") or (0, 0)
    if not loras and not vectors:
        return
    from pyllama.runtime.adapters import Adapter, load_control_vector, load_lora

    model, scales = context.model, dict[Adapter, float]()
    for path, scale in loras:
        scales[load_lora(path, model)] = scale if apply_loras else 0.0
    for path, scale in vectors:
        scales[load_control_vector(path, model, first, last)] = scale
    context.set_adapters([*scales], scales)


def files_of(
    plain: Iterable[str] | None, scaled: Iterable[str] | None, flag: str
) -> list[tuple[str, float]]:
    """The files of ``FILE,...`` and ``FILE:SCALE,...`` with their factors.

    Args:
        flag: of those with factors, for the message.

    Raises:
        click.UsageError: a name is empty, or a factor is no number.
    """
    found = [(path, 1.0) for path in _parts(plain)]
    if any(not path for path, _ in found):
        raise click.UsageError(f"{flag.removesuffix('-scaled')}: the name of a file is empty")
    for part in _parts(scaled):
        path, _, text = part.rpartition(":")
        try:
            scale = float(text)
        except ValueError:
            scale = math.nan
        if not path or not math.isfinite(scale):
            raise click.UsageError(f"{flag}: {part!r} is not FILE:SCALE, such as x.gguf:0.5")
        found.append((path, scale))
    return found


def _parts(values: Iterable[str] | None) -> Iterator[str]:
    return (part for text in values or () for part in text.split(","))
