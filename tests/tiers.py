"""Which parameters of a test run by default; the others have the marker ``long``.

@pytest.mark.parametrize("kind", some(KINDS, 4), ids=lambda t: t.name)
@pytest.mark.parametrize("isa", only(ISAS, ISAS[:1]))
@pytest.mark.parametrize("count", tenth(300))
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import pytest


def some(values: Iterable[Any], n: int) -> list[Any]:
    """All values, of which ``n`` run by default: from the first to the last, evenly spread."""
    every = list(values)
    chosen = {i * (len(every) - 1) // max(1, n - 1) for i in range(n)}
    return [v if i in chosen else long(v) for i, v in enumerate(every)]


def only(values: Iterable[Any], default: Container[Any]) -> list[Any]:
    """All values, of which those in ``default`` run by default."""
    return [v if v in default else long(v) for v in values]


def tenth(count: int) -> list[Any]:
    """How many damaged files a test tries: a tenth by default."""
    return [count // 10, long(count)]


def long(value: Any) -> Any:
    """A parameter (a tuple: several) that does not run by default."""
    values = value if type(value) is tuple else (value,)
    return pytest.param(*values, marks=pytest.mark.long)
