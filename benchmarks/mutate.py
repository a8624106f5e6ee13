"""Mutations of files for fuzzing: bytes, JSON, text of known pieces; deterministic by seed.

rng = random.Random("gguf/17")
damaged = flip_bytes(data, rng)
damaged = change_json(data, rng)
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

Mutator = Callable[[bytes, Random], bytes]

_NUMBERS = [0, 1, 2, 127, 128, 255, 256, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1]
_FORMATS = ("<B", "<H", "<I", "<Q")


def flip_bytes(data: bytes, rng: Random) -> bytes:
    """One to eight bytes become others."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 8) if out else 0):
        out[rng.randrange(len(out))] = rng.randrange(256)
    return bytes(out)


def put_number(data: bytes, rng: Random) -> bytes:
    """A number with which sizes and counts go wrong, anywhere."""
    width = rng.choice(_FORMATS)
    number = struct.pack(width, rng.choice(_NUMBERS) % (1 << 8 * struct.calcsize(width)))
    at = rng.randrange(max(1, min(len(data), rng.choice((64, 4096, 1 << 30)))))
    return data[:at] + number + data[at + len(number) :]


def cut(data: bytes, rng: Random) -> bytes:
    """The end, or a piece within, is missing."""
    begin = rng.randrange(len(data) + 1)
    return data[:begin] + data[rng.choice((len(data), rng.randint(begin, len(data)))) :]


def repeat(data: bytes, rng: Random) -> bytes:
    """A piece occurs again, once or many times, there or elsewhere."""
    begin = rng.randrange(len(data) + 1)
    piece = data[begin : begin + rng.randint(1, 64)]
    at = rng.choice((begin, rng.randrange(len(data) + 1)))
    return data[:at] + piece * rng.choice((1, 2, 10, 1000)) + data[at:]


MAX_BYTES = 8 << 20  # what grows beyond it stays as it was
BYTES: tuple[Mutator, ...] = (flip_bytes, put_number, cut, repeat)


def any_of(*mutators: Mutator) -> Mutator:
    """One to three of these, one after the other."""

    def apply(data: bytes, rng: Random) -> bytes:
        for _ in range(rng.choice((1, 1, 2, 3))):
            damaged = rng.choice(mutators)(data, rng)
            data = damaged if len(damaged) <= MAX_BYTES else data
        return data

    return apply


def odd_value(rng: Random, depth: int = 2) -> Any:
    """A value that few readers expect."""
    kind = rng.randrange(12)
    if kind == 0:
        return rng.choice([*_NUMBERS, -1, -(2**63), 2**200, 10**400])
    if kind == 1:
        return rng.choice([0.5, -0.0, 1e308, 1e-320, float("nan"), float("inf"), -float("inf")])
    if kind == 2:
        return rng.choice([None, True, False, {}, [], "", [None], [[]], {"": {}}, [{}]])
    if kind == 3:
        return rng.choice(["\ud800", "\0", "\u2581", "\U0010ffff", "a\nb", "%s{}", "../x", "/x"])
    if kind == 4:
        return "x" * rng.choice([10, 300, 70_000])
    if kind == 5:
        return [odd_value(rng, 0)] * rng.choice([2, 50, 1000]) if depth else []
    if kind == 6:
        value: Any = rng.choice([[], {}, "x"])
        for _ in range(rng.choice([3, 50, 500])):
            value = [value] if rng.random() < 0.5 else {"type": "Sequence", "x": value}
        return value
    if kind == 7 and depth:
        return {str(odd_value(rng, depth - 1))[:40]: odd_value(rng, depth - 1) for _ in range(3)}
    if kind == 8 and depth:
        return [odd_value(rng, depth - 1) for _ in range(rng.randint(1, 4))]
    return rng.choice([str(rng.randrange(1 << 40)), rng.randrange(1 << 40), rng.randrange(64)])


def change_json(data: bytes, rng: Random, odd: Callable[[Random], Any] = odd_value) -> bytes:
    """One to three values of a JSON text are removed, copied, exchanged, or become odd ones."""
    try:
        return _change_json(json.loads(data), rng, odd)
    except (ValueError, RecursionError):  # damaged already
        return data


def _change_json(root: Any, rng: Random, odd: Callable[[Random], Any]) -> bytes:
    places = _places(root)
    for _ in range(rng.choice((1, 1, 2, 3)) if places else 0):
        holder, key = rng.choice(places)
        if isinstance(holder, list) and not -len(holder) <= key < len(holder):
            continue
        if isinstance(holder, dict) and key not in holder:
            continue
        kind = rng.randrange(6)
        if kind == 0:
            del holder[key]
        elif kind == 1:
            other, name = rng.choice(places)
            if isinstance(other, dict) and name in other:
                holder[key] = json.loads(json.dumps(other[name]))
        elif kind == 2 and isinstance(holder, dict):
            holder[str(odd_value(rng))[:60]] = holder[key]
        else:
            holder[key] = odd(rng)
    text = json.dumps(root, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    if rng.random() < 0.1:  # a key twice
        text = text.replace(b"{", b'{"x":1,"x":2,', 1)
    return text


def _places(root: Any) -> list[tuple[Any, Any]]:
    """Containers and keys of some values, the outer ones first and so more often of all."""
    found: list[tuple[Any, Any]] = []
    level = [root]
    while level and len(found) < 20_000:
        below = []
        for one in level:
            keys = list(one) if isinstance(one, dict) else list(range(len(one)))
            found += [(one, key) for key in keys]
            below += [one[key] for key in keys if isinstance(one[key], dict | list)]
        level = below
    return found


def insert_piece(pieces: Sequence[bytes]) -> Mutator:
    """Puts one to five of ``pieces``, such as opcodes or tags, anywhere."""

    def apply(data: bytes, rng: Random) -> bytes:
        for _ in range(rng.randint(1, 5)):
            at = rng.randrange(len(data) + 1)
            over = rng.choice((0, 0, 1, 4))
            piece = rng.choice(pieces) * rng.choice((1, 1, 1, 2, 50))
            data = data[:at] + piece + data[at + over :]
        return data

    return apply
