"""Options of click made of the table of parameters, and its dataclasses of their values.

    @parameter_options(ContextParams, section="Context")
    def command(**options: Any) -> None:
        params = from_options(ContextParams, options)

A row with flags becomes an option of the row's name. Numbers are checked here: every number is
finite and in range.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from pyllama.parameters import INT32_MAX as INT32_MAX
from pyllama.parameters import Flags, Parameter, rows

from .help_pages import stack

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
Callback = Callable[[click.Context, click.Parameter, Any], Any]
_NAMED = re.compile(r"`([a-z_]+)`")


class Number(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A finite number in a range: an integer, or a float with ``kind=float``."""

    name = "N"

    def __init__(
        self, minimum: float = -math.inf, maximum: float = math.inf, *, kind: type = int
    ) -> None:
        self.minimum, self.maximum, self.kind = minimum, maximum, kind

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | float:
        """Return the number. NaN and infinity are refused, which a range alone would not do."""
        try:
            number: int | float = self.kind(value)
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is not a {self._expected()}.", param, ctx)
        if not (self.minimum <= number <= self.maximum and math.isfinite(number)):
            self.fail(f"{value} is not a {self._expected()}.", param, ctx)
        return number

    def _expected(self) -> str:
        kind = "whole number" if self.kind is int else "finite number"
        if self.maximum == math.inf:
            return kind if self.minimum == -math.inf else f"{kind} of at least {self.minimum:g}"
        return f"{kind} from {self.minimum:.10g} to {self.maximum:.10g}"


class Parsed(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A type of values that a function parses.

    Args:
        name: shown in place of a value in the help.
        parse: returns the value of a text; raises ``click.BadParameter`` if the text is wrong.
    """

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name, self.parse = name, parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the parsed value; a default that is not a string is returned as it is."""
        return self.parse(value) if isinstance(value, str) else value


def _words(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (word.strip() for word in text.split(","))))


WORDS = Parsed("NAME,...", _words)  # separated by commas; empty ones are left out


def parameter_options(
    table: type,
    *,
    first: Sequence[str] = (),
    only: Collection[str] = (),
    but: Collection[str] = (),
    callbacks: Mapping[str, Callback] | None = None,
    types: Mapping[str, click.ParamType[Any]] | None = None,
    also: Sequence[str] = (),
    keep: bool = False,
    section: str | None = None,
    **defaults: Any,
) -> Callable[[F], F]:
    """Return the decorator of the options of a table's rows that have flags.

    Args:
        first: rows that a help page has first.
        only, but: the rows, and those to leave out; all by default.
        callbacks: parsers of values, by the last flag. What one returns is the value; those of
            a row with several flags set it in ``ctx.params``.
        types: of values that are no numbers, texts or paths, by the last flag.
        also: further names of each flag.
        keep: the command does not get the values: `kept_values` has them.
        section: of the help page.
        defaults: of a tool, by the rows' names.
    """
    found = rows(table)
    named = [name for name in dict.fromkeys((*first, *found)) if name not in but]
    chosen = [found[name] for name in named if name in only or not only]
    options = []
    for one in chosen:
        for flags in one.flags:
            last, more = flags.names[-1], _settings(one, flags, found)
            if callbacks and last in callbacks:
                more["callback"] = callbacks[last]
            if types and last in types:
                more["type"] = types[last]
            if one.name in defaults:
                more["default"] = defaults[one.name]
            if keep:
                more |= {"callback": partial(_keep, table), "expose_value": False}
            if len(one.flags) > 1:  # the callbacks decide which flag's value counts
                options.append(click.option(*flags.names, expose_value=False, **more))
            else:
                options.append(click.option(*also, *flags.names, one.name, **more))
    return stack(*options, section=section)


def from_options(table: type[T], options: Mapping[str, Any], **more: Any) -> T:
    """The dataclass with the values of the options; an option that is None leaves the default.

    A field without a row takes the option of its name, which the tool declares itself.
    """
    found = rows(table)
    names = [f.name for f in fields(cast(Any, table)) if f.name not in found or found[f.name].flags]
    values = {name: options[name] for name in names if options.get(name) is not None}
    return table(**values | more)


def _keep(table: type, ctx: click.Context, param: click.Parameter, value: object) -> None:
    if value is not None:
        kept_values(table, ctx)[param.name or ""] = value


def kept_values(table: type, ctx: click.Context | None = None) -> dict[str, Any]:
    """The values of a command line that `parameter_options` keeps, by the rows' names.

    Args:
        ctx: of the command line; None for the current one.
    """
    ctx = ctx or click.get_current_context(silent=True)
    kept: dict[str, Any] = ctx.meta.setdefault(f"{__name__}.{table.__name__}", {}) if ctx else {}
    return kept


def _settings(row: Parameter, flags: Flags, table: Mapping[str, Parameter]) -> dict[str, Any]:
    """The arguments of click.option."""
    kind = row.kind.partition(" | ")[0]
    more: dict[str, Any] = {
        "help": _NAMED.sub(lambda match: flag_of(table[match[1]]), flags.help or row.help),
        "metavar": flags.metavar,
    }
    if not flags.option.get("required"):
        more["default"] = row.default if flags.default is MISSING else flags.default
    if kind == "int":
        low = max(row.low, flags.low)
        high = min(flags.high, INT32_MAX if row.high == math.inf else row.high)
        more["type"] = Number(0 if low == -math.inf else low, high)
    elif kind == "float":
        more["type"] = Number(max(row.low, flags.low), min(row.high, flags.high), kind=float)
    elif flags.choices:
        more["type"] = click.Choice(flags.choices)
    elif kind == "Path":
        more["type"] = click.Path(path_type=Path)
    elif kind == "bool" and "/" not in flags.names[0]:
        more["is_flag"] = True
    elif kind.startswith("tuple[str, ...]") and not flags.repeated:
        more["type"] = WORDS
    if flags.repeated:
        more |= {"multiple": True, "default": None}
    return more | flags.option


def flag_of(row: Parameter) -> str:
    """The first long flag of a row."""
    return next(flag for flag in row.flags[0].names if flag.startswith("--"))
