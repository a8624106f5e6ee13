"""Sets of Unicode code points, as sorted ranges that do not touch.

    vowels = normalize([(ord("a"), ord("a")), (ord("e"), ord("e"))])
    complement(vowels)

Surrogates are in no set: UTF-8 has no spelling for them.
"""

from __future__ import annotations

import functools
import re
from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise

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


def intersect(a: Ranges, b: Ranges) -> Ranges:
    """Return the code points of both sets."""
    return subtract(a, complement(b))


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
