"""How large the fields of a request may be, in one table for all APIs.

    check_sizes(body)                              # ApiError (400) names the first that is larger

The cost of a request is that of its prompt and its tokens, which the context bounds. A field that
costs time or memory beside them is bounded here: its values could hold up the texts of others. The
bounds are far over what clients send.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...parameters import Size, rows
from ...parameters.generation import RequestParams
from ...parameters.sampling import SamplingParams
from .errors import ApiError

KIB, MIB = 1 << 10, 1 << 20
LIMITS: Mapping[str, Size] = {
    **{
        name: row.json.size
        for table in (SamplingParams, RequestParams)
        for row in rows(table).values()
        if row.json is not None and row.json.size is not None
        for name in (*row.json.names, *filter(None, (row.json.anthropic, row.json.ollama)))
    },
    "grammar_triggers": Size(256, 16 * KIB),
    "reasoning_budget_message": Size(1, 4 * KIB),
    "model": Size(1, KIB),
    # they are tokenized before their length in tokens is known
    "input_prefix": Size(64 * KIB, MIB),
    "input_suffix": Size(64 * KIB, MIB),
    "input_extra": Size(KIB, MIB),
}
"""Bounds by the name of the field."""
TO_TOKENIZE = Size(64 * KIB, MIB)
"""Bound of a text whose tokens no context holds: of ``/tokenize``."""
_INNER = ("options",)  # objects whose fields are those of a request, as in Ollama's API


def check_sizes(body: Any) -> None:
    """Raise ApiError if a field of a request's object is larger than its limit."""
    if not isinstance(body, Mapping):
        return
    for name, value in body.items():
        if name in LIMITS:
            check_size(name, value, LIMITS[name])
        elif name in _INNER:
            check_sizes(value)


def check_size(name: str, value: Any, limit: Size) -> None:
    """Raise ApiError if the value of a field is larger than a limit."""
    n_items = len(value) if isinstance(value, (list, Mapping)) else 1
    if n_items > limit.items:
        raise ApiError.invalid(
            f"Field '{name}': has {n_items} elements, at most {limit.items} are allowed"
        )
    n_chars = _n_chars(value)
    if n_chars > limit.chars:
        raise ApiError.invalid(
            f"Field '{name}': has {n_chars} characters, at most {limit.chars} are allowed"
        )


def _n_chars(value: Any) -> int:
    """The characters of all texts in a value, names of fields included."""
    total, left = 0, [value]
    while left:
        one = left.pop()
        if isinstance(one, str):
            total += len(one)
        elif isinstance(one, list):
            left += one
        elif isinstance(one, Mapping):
            left += one
            left += one.values()
    return total
