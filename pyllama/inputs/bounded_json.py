"""Parses untrusted JSON in bounded memory.

    rows = parse_json(data, max_values=1 << 20)    # ValueError: not JSON, or too many values

A value needs up to 80 bytes of memory and as few as three bytes of text, so a limit of the text's
size alone is not enough.
"""

from __future__ import annotations

import gc
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

MAX_DEPTH = 64  # the deepest tokenizer.json has 10 levels


def parse_json(data: bytes, max_values: int, *, unique: bool = False, finite: bool = False) -> Any:
    """Return the value of a JSON text.

    Args:
        max_values: limit of values and keys, checked before parsing.
        unique: refuse a key that occurs twice in an object; else its last value counts.
        finite: refuse NaN and infinity, which are not JSON, and numbers as large as ``1e999``.

    Raises:
        ValueError: it is not JSON, or has too many values, or more than ``MAX_DEPTH`` levels.
    """
    n_values = count_values(data)
    if n_values > max_values:
        raise ValueError(f"{n_values} values, the limit is {max_values}")
    numbers: dict[str, Any] = {}
    if finite:
        numbers = {"parse_constant": _finite, "parse_float": _finite}
    deep = f"nested too deeply, in more than {MAX_DEPTH} levels"
    try:
        with _no_collections():
            value = json.loads(data, object_pairs_hook=_unique if unique else None, **numbers)
    except RecursionError:
        raise ValueError(deep) from None
    if _is_too_deep(value):
        raise ValueError(deep)
    return value


def count_values(data: bytes) -> int:
    """Return an upper bound of the number of values and keys in a JSON text."""
    return 1 + sum(map(data.count, (b",", b":", b"[", b"{")))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"the key {name!r:.60} occurs twice")
            seen.add(name)
    return found


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text:.20} is not a finite number")
    return value


def _is_too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for one in level
            if type(one) in (dict, list)
            for item in (one.values() if type(one) is dict else one)
            if type(item) in (dict, list)
        ]
        if not level:
            return False
    return True


@contextmanager
def _no_collections() -> Iterator[None]:
    """Disable garbage collection: it would traverse millions of new objects again and again."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
