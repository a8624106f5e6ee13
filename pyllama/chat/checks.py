"""Limits on the operators, filters and methods of a chat template.

    check_product(budget, "a", 10**10)             # TemplateError

Checks the operations whose results can be much larger than their inputs, before they run; see
`sandbox`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ..errors import TemplateError
from .limits import RenderBudget

_METHODS = """
    capitalize casefold count endswith find format index isalnum isalpha isdecimal isdigit
    islower isnumeric isspace istitle isupper join lower lstrip partition removeprefix
    removesuffix replace rfind rindex rpartition rsplit rstrip split splitlines startswith strip
    swapcase title upper
"""
MAX_ITEMS = 100_000  # of a range; also the maximum of any count argument
_MAX_BITS = 4096
_MAX_WIDTH = 9999  # of a field in a format: numbers of five digits are refused
_Sequences = (str, list, tuple)


def check_filter(
    budget: RenderBudget, name: str, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Check the arguments of a filter. Raises: TemplateError, as all functions here."""
    given = [*args, *kwargs.values()]
    numbers = [abs(n) for n in given if isinstance(n, int)]
    if max(numbers, default=0) > (100 if name == "round" else MAX_ITEMS):
        raise TemplateError(f"the argument of {name}({max(numbers)}) is too large")
    if name == "indent":
        width = max([4, *numbers, *(len(g) for g in given if isinstance(g, str))])
        budget.check_size(len(str(value)) + width * (str(value).count("\n") + 1))
    elif name == "join":
        budget.check_size(budget.measure(value) + _n_items(value) * sum(map(_length, given)))
    elif name == "replace":
        _check_replace(budget, str(value), given)
    elif name == "format":
        check_format(budget, str(value), given)
    elif name == "sum" and any(isinstance(g, _Sequences) for g in given):
        raise TemplateError("it sums lists; use + instead")


def _n_items(value: Any) -> int:
    # `Budget.limit_items` bounds iterators
    return len(value) if hasattr(value, "__len__") else MAX_ITEMS


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str) else 0


def check_method(
    budget: RenderBudget, owner: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Check that a string method is one that prompts need, and its arguments are not too large."""
    if name not in _METHODS.split():
        raise TemplateError(f"it calls str.{name}, which prompts do not need")
    if name == "replace":
        _check_replace(budget, owner, args)
    elif name == "join" and args:
        budget.check_size(budget.measure(args[0]) + _n_items(args[0]) * len(owner))
    elif name == "format":
        check_format(budget, owner, [*args, *kwargs.values()])


def _check_replace(budget: RenderBudget, text: str, args: Any) -> None:
    if len(args) >= 2 and isinstance(args[0], str):
        n = text.count(args[0]) if args[0] else len(text) + 1
        budget.check_size(len(text) + n * _length(args[1]))


def check_format(budget: RenderBudget, text: str, args: Any) -> None:
    """Check ``%`` and ``str.format``, whose fields may have any width."""
    if re.search(r"\d{5}|\*|\{[^{}]*\{", text):
        raise TemplateError(f"the format {text[:40]!r} has a width that is too large")
    fields = text.count("%") + text.count("{")
    budget.check_size(
        len(text) + fields * (budget.measure(args) + (_MAX_WIDTH if re.search(r"\d", text) else 0))
    )


def check_product(budget: RenderBudget, left: Any, right: Any) -> None:
    """Check ``*`` of two numbers, or of a string or list and a number."""
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() + right.bit_length())
    elif isinstance(right, _Sequences):
        left, right = right, left
    if isinstance(left, _Sequences) and isinstance(right, int):
        budget.check_size((budget.measure(left) + 1) * max(right, 0))


def check_power(base: Any, exponent: Any) -> None:
    """Check ``**`` of integers."""
    if isinstance(base, int) and isinstance(exponent, int):
        _check_bits(base.bit_length() * abs(exponent))


def _check_bits(n_bits: int) -> None:
    if n_bits > _MAX_BITS:
        raise TemplateError(f"it computes a number of {n_bits} bits")


def tojson(
    budget: RenderBudget,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as transformers writes it, without HTML escapes."""
    import json

    budget.measure(value)

    def items(value: Any) -> list[Any]:
        if not isinstance(value, Iterator):
            raise TemplateError(f"it writes a value of type {type(value).__name__} as JSON")
        return list(budget.limit_items(value))

    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=items,  # filters such as map give iterators
    )
    parts, size = [], 0
    for part in encoder.iterencode(value):
        parts.append(part)
        size += len(part)
        budget.check_size(size)
    budget.check_time()
    return "".join(parts)
