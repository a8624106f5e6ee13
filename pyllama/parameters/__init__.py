"""The table of parameters: a row for each, of which every face is made.

    @documented
    @dataclass(frozen=True)
    class SamplingParams:
        "Parameters of a `Chain`."

        top_k: int = row(
            40, "Keep the k most likely tokens. 0: off.", Flags("--top-k", low=-1),
            Json(low=0, ollama="top_k"), arguments=("top_k",),
        )

    rows(SamplingParams)["top_k"].default          # 40

A row is the field of a dataclass. Library, tools, the server's four APIs, `Llama` and
docs/parameters.md read it; what is particular to one of them is an entry of the row. The package
imports neither NumPy nor anything that does, and tables that others inherit have no methods of
their own, so that ``--help`` is fast.

Source: llama.cpp's ``common/arg.cpp`` and ``tools/server/server-schema.cpp`` are such tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache
from math import inf
from typing import Any, Literal, NamedTuple, TypeVar, cast

T = TypeVar("T")
INT32_MAX = 2**31 - 1


class Size(NamedTuple):
    """The most elements of a list or an object, and the most characters of all texts in it."""

    items: int
    chars: int


class Flags:
    """The flags of a parameter on the command line.

    Args:
        names: llama.cpp's spellings; ``--a/--no-a`` is a switch.
        low, high: the range, where it is narrower than the row's.
        default: where it differs from the row's.
        metavar: how a help page names the value.
        choices: the values of a text.
        repeated: whether each use adds a value.
        help: where it differs from the row's.
        option: further arguments of click's option.
    """

    def __init__(
        self,
        *names: str,
        low: float = -inf,
        high: float = inf,
        default: Any = MISSING,
        metavar: str | None = None,
        choices: tuple[str, ...] = (),
        repeated: bool = False,
        help: str = "",
        **option: Any,
    ) -> None:
        self.names, self.low, self.high, self.default = names, low, high, default
        self.metavar, self.choices, self.repeated, self.help = metavar, choices, repeated, help
        self.option = option


class Json:
    """The fields of requests that set a parameter.

    Args:
        names: llama.cpp's and OpenAI's names, of which the first that is there counts; () for the
            row's name.
        low, high: the range.
        outside: what becomes of a number outside: it is refused, the nearest in it is used, it
            is left out and named, or it wraps around as unsigned numbers of C do.
        size: how large a list or text may be.
        is_own: whether it only changes responses in llama.cpp's own format.
        anthropic, ollama, responses: the name in that API, in Ollama's among the ``options``; ""
            if it has no such field.
    """

    def __init__(
        self,
        *names: str,
        low: float = -inf,
        high: float = inf,
        outside: Literal["refuse", "clamp", "leave out", "wrap"] = "clamp",
        size: Size | None = None,
        is_own: bool = False,
        anthropic: str = "",
        ollama: str = "",
        responses: str = "",
    ) -> None:
        self.names, self.low, self.high, self.outside, self.size = names, low, high, outside, size
        self.is_own = is_own
        self.anthropic, self.ollama, self.responses = anthropic, ollama, responses


@dataclass(eq=False, slots=True)
class Parameter:
    """A row.

    Attributes:
        help: what it does, as help pages and docstrings say it; other parameters between
            backquotes.
        flags: of the tools; several if they are written in different ways.
        json: of the server; None for no field.
        arguments: names in `Llama`'s methods, whose signatures are llama-cpp-python's; a sampling
            parameter that it does not have is one of their ``sampling={...}``.
        unset: values of such an argument that mean the default.
        low, high: the range of a number that the library accepts.
        name: of the dataclass's field.
        kind: its type, as text.
        default: its value where nothing sets it.
    """

    help: str
    flags: tuple[Flags, ...]
    json: Json | None
    arguments: tuple[str, ...]
    unset: tuple[object, ...]
    low: float
    high: float
    name: str = ""
    kind: str = ""
    default: Any = None


def row(
    default: T,
    help: str,
    *faces: Flags | Json,
    arguments: tuple[str, ...] = (),
    unset: tuple[object, ...] = (),
    low: float = -inf,
    high: float = inf,
) -> T:
    """A field of a dataclass, see `Parameter`; a default that can change is copied."""
    found = Parameter(
        help,
        tuple(face for face in faces if isinstance(face, Flags)),
        next((face for face in faces if isinstance(face, Json)), None),
        arguments,
        unset,
        low,
        high,
    )
    more: Any = {"default": default}
    if isinstance(default, dict):
        more = {"default_factory": lambda: dict(default)}
    return cast(T, field(**more, metadata={"row": found}))


def rows(table: type) -> Mapping[str, Parameter]:
    """The rows of a dataclass by name; fields that are none are left out."""
    return _rows(table)


@cache
def _rows(table: Any) -> dict[str, Parameter]:
    return {f.name: _named(f) for f in fields(table) if "row" in f.metadata}


def _named(field: Field[Any]) -> Parameter:
    """The row of a field, with the field's name, type and default."""
    found: Parameter = field.metadata["row"]
    found.name, found.kind, found.default = field.name, str(field.type), field.default
    if field.default_factory is not MISSING:
        found.default = field.default_factory()
    if found.json is not None and not found.json.names:
        found.json.names = (field.name,)
    return found


def documented(table: type[T]) -> type[T]:
    """Add the rows of a dataclass to its docstring, before its errors."""
    lines = [f"    {r.name}: {r.help[:1].lower()}{r.help[1:]}" for r in rows(table).values()]
    text, raises, rest = (table.__doc__ or "").partition("    Raises:")
    table.__doc__ = text + "\n    ".join(["    Args:", *lines, "", ""]) + raises + rest
    return table


def from_arguments(table: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of rows by their names, from arguments of `Llama`; others are left out."""
    return {
        entry.name: given[name]
        for entry in rows(table).values()
        for name in entry.arguments
        if name in given and not (entry.unset and given[name] in entry.unset)
    }
