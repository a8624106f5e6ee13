"""``--override-kv KEY=TYPE:VALUE``: replace a value of the file's metadata.

    --override-kv tokenizer.ggml.add_bos_token=bool:false,llama.context_length=int:4096

As in llama.cpp: repeatable, or a list with commas; an item with a comma needs double quotes.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable

import click

from pyllama.parameters.loading import FileParams

from ..parameters import parameter_options

Value = bool | int | float | str
_TRUTH = {"true": True, "false": False}
_READ: dict[str, Callable[[str], Value]] = {
    "int": int,
    "float": float,
    "bool": _TRUTH.__getitem__,
    "str": str,
}


def parse_overrides(
    ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]
) -> dict[str, Value]:
    """Return the values by key (a click callback)."""
    found: dict[str, Value] = {}
    for text in texts:
        try:
            items = next(csv.reader([text], strict=True), [])
        except csv.Error as error:
            raise click.BadParameter(f"{text!r} is not a comma-separated list: {error}.") from None
        for item in items:
            match = re.fullmatch(r"([^=]+)=(int|float|bool|str):(.*)", item, re.DOTALL)
            if match is None:
                raise click.BadParameter(
                    f"{item!r} is not KEY=TYPE:VALUE with a TYPE of {', '.join(_READ)}."
                )
            key, kind, value = match.groups()
            try:
                found[key] = _READ[kind](value)
            except (ValueError, KeyError):
                raise click.BadParameter(f"{item!r}: {value!r} is not of type {kind}.") from None
    return found


override_kv_option = parameter_options(
    FileParams, only=("kv_overrides",), callbacks={"--override-kv": parse_overrides}
)
"""``--override-kv``."""
