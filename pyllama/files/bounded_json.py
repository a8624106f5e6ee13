"""JSON that strangers wrote, parsed in memory that is counted before.

    rows = parse_json(data, max_values=1 << 20)    # ValueError: no JSON, or too many values

A value takes up to 80 bytes of memory and as few as three of the text, so a limit of bytes alone
bounds little.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

MAX_DEPTH = 64  # the deepest tokenizer.json has 10 levels

Pairs = list[tuple[str, Any]]


def parse_json(
    data: bytes, max_values: int, *, make_object: Callable[[Pairs], Any] | None = None
) -> Any:
    """The value of a JSON text.

    Args:
        max_values: counted before they are made, with the keys.
        make_object: makes an object of its keys and values; ``dict`` otherwise.

    Raises:
        ValueError: it is no JSON, or has more values, or more than ``MAX_DEPTH`` levels.
    """
    n_values = count_values(data)
    if n_values > max_values:
        raise ValueError(f"{n_values} values, at most {max_values} are read")
    deep = f"nested too deeply, in more than {MAX_DEPTH} levels"
    try:
        with _no_collections():
            value = json.loads(data, object_pairs_hook=make_object)
    except RecursionError:
        raise ValueError(deep) from None
    if _is_too_deep(value):
        raise ValueError(deep)
    return value


def count_values(data: bytes) -> int:
    """At least as many as the values and keys in a JSON text."""
    return 1 + sum(map(data.count, (b",", b":", b"[", b"{")))


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
    """Without looks for garbage: a million new lists hold none, and every look goes through all."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
