"""Sets of Unicode code points, as sorted ranges that do not touch.

    vowels = normalize([(ord("a"), ord("a")), (ord("e"), ord("e"))])
    complement(vowels)

Surrogates are in no set: UTF-8 has no spelling for them.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable
from itertools import chain, groupby, pairwise

Range = tuple[int, int]  # first and last code point
Ranges = tuple[Range, ...]

MAX_CODE = 0x10FFFF
SURROGATES: Ranges = ((0xD800, 0xDFFF),)
ALL: Ranges = ((0, 0xD7FF), (0xE000, MAX_CODE))


def normalize(ranges: Iterable[Range]) -> Ranges:
    """Return the ranges sorted and merged."""
    merged: list[Range] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def subtract(ranges: Ranges, removed: Ranges) -> Ranges:
    """Return the code points of the first set that are not in the second."""
    left: list[Range] = []
    for low, high in ranges:
        for first, last in removed:
            if last < low:
                continue
            if first > high:
                break
            if first > low:
                left.append((low, first - 1))
            low = last + 1
            if low > high:
                break
        if low <= high:
            left.append((low, high))
    return tuple(left)


def complement(ranges: Ranges) -> Ranges:
    """Return the code points that are not in the set."""
    return subtract(ALL, ranges)


def contains(ranges: Ranges, code: int) -> bool:
    """Return whether a code point is in the set."""
    index = bisect_right(ranges, (code, MAX_CODE)) - 1
    return index >= 0 and code <= ranges[index][1]


def atoms(sets: Iterable[Ranges]) -> list[Ranges]:
    """Return a partition of all code points whose parts are inside or outside of each set."""
    changes: dict[int, int] = {MAX_CODE + 1: 0}  # code point -> bits of the sets that it flips
    for index, ranges in enumerate(dict.fromkeys([ALL, *sets])):
        for low, high in ranges:
            for code in (low, high + 1):
                changes[code] = changes.get(code, 0) ^ (1 << index)
    parts: dict[int, list[Range]] = {}
    members = 0
    for first, after in pairwise(sorted(changes)):
        members ^= changes[first]
        if members & 1:  # of ALL
            parts.setdefault(members, []).append((first, after - 1))
    return [tuple(part) for part in parts.values()]


DIGITS: Ranges = ((0x30, 0x39),)
WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
SPACES: Ranges = ((0x09, 0x0D), (0x20, 0x20))
LINE_ENDS: Ranges = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))


@functools.cache
def unicode_members(escape: str) -> Ranges:
    r"""Return the code points of ``\d``, ``\w`` or ``\s`` in Python, and of ECMAScript's ``\s``.

    Args:
        escape: ``"d"``, ``"w"`` or ``"s"``.
    """
    if escape == "s":
        single = (0x85, 0xA0, 0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000, 0xFEFF)
        ranges = (*SPACES, (0x1C, 0x1F), (0x2000, 0x200A))
        return normalize([*ranges, *((code, code) for code in single)])
    text = "".join(map(chr, range(0x40000)))  # the planes that have letters and digits
    found = re.finditer(rf"\{escape}+", text)
    return normalize((match.start(), match.end() - 1) for match in found)


_PRIVATE: Ranges = ((0xE000, 0xF8FF), (0xF0000, 0xFFFFD), (0x100000, 0x10FFFD))
_LONG_NAMES = {  # of general categories -> the short ones; those of one letter are several
    "Letter": "L", "Cased_Letter": "LC", "Uppercase_Letter": "Lu", "Lowercase_Letter": "Ll",
    "Titlecase_Letter": "Lt", "Modifier_Letter": "Lm", "Other_Letter": "Lo", "Mark": "M",
    "Combining_Mark": "M", "Nonspacing_Mark": "Mn", "Spacing_Mark": "Mc", "Enclosing_Mark": "Me",
    "Number": "N", "Decimal_Number": "Nd", "digit": "Nd", "Letter_Number": "Nl",
    "Other_Number": "No", "Punctuation": "P", "punct": "P", "Connector_Punctuation": "Pc",
    "Dash_Punctuation": "Pd", "Open_Punctuation": "Ps", "Close_Punctuation": "Pe",
    "Initial_Punctuation": "Pi", "Final_Punctuation": "Pf", "Other_Punctuation": "Po",
    "Symbol": "S", "Math_Symbol": "Sm", "Currency_Symbol": "Sc", "Modifier_Symbol": "Sk",
    "Other_Symbol": "So", "Separator": "Z", "Space_Separator": "Zs", "Line_Separator": "Zl",
    "Paragraph_Separator": "Zp", "Control": "Cc", "cntrl": "Cc", "Format": "Cf",
    "Private_Use": "Co",
}  # fmt: skip


@functools.cache
def _categories() -> dict[str, Ranges]:
    """The code points of each general category of two letters, but those that have none yet."""
    found: dict[str, list[Range]] = {}
    for plane in (range(0x40000), range(0xE0000, 0xE0200)):  # beyond is private use only
        at = plane.start
        for kind, codes in groupby(map(unicodedata.category, map(chr, plane))):
            n = sum(1 for _ in codes)
            found.setdefault(kind, []).append((at, at + n - 1))
            at += n
    categories = {k: tuple(r) for k, r in found.items() if k not in ("Cn", "Cs", "Co")}
    return categories | {"Co": _PRIVATE}


@functools.cache
def category(name: str) -> Ranges | None:
    r"""Return the code points of a general category by its name in ``\p{...}``; None: unknown.

    ``C`` has assigned code points only. ``Any``, ``ASCII`` and ``Assigned`` are names too.
    """
    if name in ("Any", "ASCII"):
        return ALL if name == "Any" else ((0, 0x7F),)
    short = _LONG_NAMES.get(name, name)
    kinds = {"Assigned": "", "L&": "LC"}.get(short, short)
    if kinds == "LC":
        inner = [category(kind) or () for kind in ("Lu", "Ll", "Lt")]
        return normalize(chain.from_iterable(inner))
    chosen = [ranges for kind, ranges in _categories().items() if kind.startswith(kinds)]
    is_name = short == "Assigned" or short in _LONG_NAMES.values()
    return normalize(chain.from_iterable(chosen)) if is_name else None


@functools.cache
def _cases() -> tuple[dict[int, int], dict[int, frozenset[int]]]:
    """Letters -> the other case under every reading, and -> what some reading makes equal."""
    exact: dict[int, int] = {}
    keys: dict[str, set[int]] = {"i": {0x130, 0x131}}  # Turkish letters, for Python
    for code in range(0x20000):
        char = chr(code)
        lower, upper = char.lower(), char.upper()
        if lower == upper:
            continue
        other = upper if lower == char else lower
        if len(other) == 1 and (other.lower(), other.upper()) == (lower, upper):
            exact[code] = ord(other)
        for key in {lower, upper, char.casefold()}:
            keys.setdefault(key, set()).add(code)
    wide: dict[int, set[int]] = {}
    for codes in keys.values():
        for code in codes:
            wide.setdefault(code, set()).update(codes)
    return exact, {code: frozenset(codes) for code, codes in wide.items()}


def with_other_case(ranges: Ranges, *, widely: bool = False) -> Ranges:
    """Return a set with its letters in the other case too.

    Args:
        widely: with all that Python or ECMAScript makes equal to one of the set; else with what
            both do.
    """
    exact, wide = _cases()
    more = (
        [(code, code) for code, same in wide.items() if any(contains(ranges, c) for c in same)]
        if widely
        else [(other, other) for code, other in exact.items() if contains(ranges, code)]
    )
    return normalize([*ranges, *more])
