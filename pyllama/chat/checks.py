"""What of a template's operators, filters and methods is refused, because of what it would make.

    check_product(budget, "a", 10**10)             # TemplateError

Only what can make much of little is looked at, before it is done; see `sandbox`.
"""

from __future__ import annotations

import re
from typing import Any

from ..errors import TemplateError
from .limits import Budget

_METHODS = """
    capitalize casefold count endswith find format index isalnum isalpha isdecimal isdigit
    islower isnumeric isspace istitle isupper join lower lstrip partition removeprefix
    removesuffix replace rfind rindex rpartition rsplit rstrip split splitlines startswith strip
    swapcase title upper
"""
MOST_ITEMS = 100_000  # of a range, and any other number that says how many
_MOST_BITS = 4096
_WIDEST = 9999  # of a field in a format, which is also the most that its digits can say
_Sequences = (str, list, tuple)


def check_filter(
    budget: Budget, name: str, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """A filter's arguments. Raises: TemplateError, as all here."""
    given = [*args, *kwargs.values()]
    numbers = [abs(n) for n in given if isinstance(n, int)]
    if max(numbers, default=0) > (100 if name == "round" else MOST_ITEMS):
        raise TemplateError(f"{name}({max(numbers)}) is too much")
    if name == "indent":
        width = max([4, *numbers, *(len(g) for g in given if isinstance(g, str))])
        budget.fits(len(str(value)) + width * (str(value).count("\n") + 1))
    elif name == "join":
        budget.fits(budget.weigh(value) + _n_items(value) * sum(map(_length, given)))
    elif name == "replace":
        _check_replace(budget, str(value), given)
    elif name == "format":
        check_format(budget, str(value), given)
    elif name == "sum" and any(isinstance(g, _Sequences) for g in given):
        raise TemplateError("it sums lists; use + instead")


def _n_items(value: Any) -> int:
    # an iterator is watched, its items are at most these
    return len(value) if hasattr(value, "__len__") else MOST_ITEMS


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str) else 0


def check_method(
    budget: Budget, owner: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """A method of a string: one that prompts need, with arguments that are not too much."""
    if name not in _METHODS.split():
        raise TemplateError(f"it calls str.{name}, which prompts do not need")
    if name == "replace":
        _check_replace(budget, owner, args)
    elif name == "join" and args:
        budget.fits(budget.weigh(args[0]) + _n_items(args[0]) * len(owner))
    elif name == "format":
        check_format(budget, owner, [*args, *kwargs.values()])


def _check_replace(budget: Budget, text: str, args: Any) -> None:
    if len(args) >= 2 and isinstance(args[0], str):
        n = text.count(args[0]) if args[0] else len(text) + 1
        budget.fits(len(text) + n * _length(args[1]))


def check_format(budget: Budget, text: str, args: Any) -> None:
    """``%`` and ``str.format``: a width may be any number, or be taken from an argument."""
    if re.search(r"\d{5}|\*|\{[^{}]*\{", text):
        raise TemplateError(f"the format {text[:40]!r} has a width that is too much")
    fields = text.count("%") + text.count("{")
    budget.fits(
        len(text) + fields * (budget.weigh(args) + (_WIDEST if re.search(r"\d", text) else 0))
    )


def check_product(budget: Budget, left: Any, right: Any) -> None:
    """``*`` of numbers, or of a text or list and a number."""
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() + right.bit_length())
    elif isinstance(right, _Sequences):
        left, right = right, left
    if isinstance(left, _Sequences) and isinstance(right, int):
        budget.fits((budget.weigh(left) + 1) * max(right, 0))


def check_power(base: Any, exponent: Any) -> None:
    """``**`` of whole numbers."""
    if isinstance(base, int) and isinstance(exponent, int):
        _check_bits(base.bit_length() * abs(exponent))


def _check_bits(n_bits: int) -> None:
    if n_bits > _MOST_BITS:
        raise TemplateError(f"it makes a number of {n_bits} bits")


def tojson(
    budget: Budget,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as transformers writes it: no escapes for HTML."""
    import json

    budget.weigh(value)
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    parts, size = [], 0
    for part in encoder.iterencode(value):
        parts.append(part)
        size += len(part)
        budget.fits(size)
    budget.check()
    return "".join(parts)
