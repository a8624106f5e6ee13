"""``--override-kv KEY=TYPE:VALUE``: metadata that is read as if the file said so.

    --override-kv tokenizer.ggml.add_bos_token=bool:false,llama.context_length=int:4096

As in llama.cpp: repeatable, several after commas, and a part with a comma in it in double quotes.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from typing import Any

import click

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
    """A click callback: the values by key."""
    found: dict[str, Value] = {}
    for text in texts:
        try:
            items = next(csv.reader([text], strict=True), [])
        except csv.Error as error:
            raise click.BadParameter(f"{text!r} is not a list with commas: {error}.") from None
        for item in items:
            match = re.fullmatch(r"([^=]+)=(int|float|bool|str):(.*)", item, re.DOTALL)
            if match is None:
                raise click.BadParameter(
                    f"{item!r} is not KEY=TYPE:VALUE, TYPE one of {', '.join(_READ)}."
                )
            key, kind, value = match.groups()
            try:
                found[key] = _READ[kind](value)
            except (ValueError, KeyError):
                raise click.BadParameter(f"{item!r}: {value!r} is not of type {kind}.") from None
    return found


def override_kv_option(function: Any) -> Any:
    """``--override-kv``."""
    return click.option(
        "--override-kv",
        multiple=True,
        callback=parse_overrides,
        metavar="KEY=TYPE:VALUE",
        help="Read the file's metadata with another value; TYPE is int, float, bool or str. "
        "Repeatable, or several with commas between.",
    )(function)
