"""UTF-8 of ranges of code points: which first bytes begin one of them, and what may follow.

    leads(((0x61, 0x7A), (0xE9, 0xE9)))     # {0x61: None, ..., 0xC3: Tail(((0xA9, 0xA9, None),))}

A `Tail` says which continuation bytes may come next, each range of bytes with its own tail; None is
the end of the character. Surrogates are no characters. Results are cached.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import lru_cache
from typing import NamedTuple

from .code_points import MAX_CODE, SURROGATES, Ranges, subtract

_LEADS = ((0xC0, 1, 0x80), (0xE0, 2, 0x800), (0xF0, 3, 0x10000))  # byte, following, least


class Tail(NamedTuple):
    """The rest of a character: ranges of the next byte, and the tail after it."""

    edges: tuple[tuple[int, int, Tail | None], ...]


def leads(ranges: Ranges) -> dict[int, Tail | None]:
    """The first bytes of the characters in some ranges, with what follows each."""
    found: dict[int, Tail | None] = {}
    others = []
    for low, high in subtract(ranges, SURROGATES):
        found.update(dict.fromkeys(range(low, min(high, 0x7F) + 1)))
        if high > 0x7F:
            others.append((max(low, 0x80), high))
    if others:
        found.update(_multi_byte_leads(tuple(others)))
    return found


@lru_cache(maxsize=1024)
def _multi_byte_leads(ranges: Ranges) -> dict[int, Tail | None]:
    found: dict[int, Tail | None] = {}
    for first, n_following, least in _LEADS:
        size = 1 << (6 * n_following)  # code points of a first byte
        for lead in range(0x20 >> (n_following - 1)):
            start = lead * size
            part = _clip(ranges, max(start, least), min(start + size - 1, MAX_CODE))
            if part:
                found[first + lead] = _tail(
                    n_following, tuple((low - start, high - start) for low, high in part)
                )
    return found


@lru_cache(maxsize=4096)
def _tail(n_following: int, ranges: Ranges) -> Tail:
    """The tail for these offsets within the code points of the bytes so far."""
    size = 1 << (6 * (n_following - 1))
    edges: list[tuple[int, int, Tail | None]] = []
    for value in range(ranges[0][0] // size, ranges[-1][1] // size + 1):
        start = value * size
        part = _clip(ranges, start, start + size - 1)
        if not part:
            continue
        after = None
        if n_following > 1:
            after = _tail(n_following - 1, tuple((low - start, high - start) for low, high in part))
        byte = 0x80 + value
        if edges and edges[-1][1] == byte - 1 and edges[-1][2] == after:
            edges[-1] = (edges[-1][0], byte, after)
        else:
            edges.append((byte, byte, after))
    return Tail(tuple(edges))


def _clip(ranges: Ranges, low: int, high: int) -> list[tuple[int, int]]:
    """The parts of ranges within [low, high]."""
    found = []
    at = max(0, bisect_right(ranges, (low, MAX_CODE)) - 1)
    while at < len(ranges) and ranges[at][0] <= high:
        if ranges[at][1] >= low:
            found.append((max(ranges[at][0], low), min(ranges[at][1], high)))
        at += 1
    return found
