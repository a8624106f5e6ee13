"""Limits on a chat template: time, length of the text, and size of values.

    budget = Budget(Limits(), [messages, tools])
    budget.check_time()                            # raises TemplateError after the time limit
    budget.measure(["a", ["b", "c"]])              # 6: items and characters
    budget.write(120)                              # counts characters of text

Size limits grow with the template's input, so long conversations are possible.
"""

from __future__ import annotations

import time
from collections.abc import ItemsView, Iterable, Iterator, KeysView, ValuesView
from dataclasses import dataclass
from typing import Any

from ..errors import TemplateError

_CONTAINERS = (list, tuple, dict, set, frozenset, ItemsView, KeysView, ValuesView)


@dataclass(frozen=True)
class Limits:
    """Limits on one rendering.

    Attributes:
        time_s: CPU time of the rendering thread, which does not depend on other load.
        message_s: additional time per message and tool; some templates are quadratic in them.
        size: characters of text and items of values, plus ``growth`` times those of the input.
        growth: number of times that a template may repeat its input.
        source: characters of the template's source.
    """

    time_s: float = 3.0
    message_s: float = 0.01
    size: int = 1 << 20
    growth: int = 8
    source: int = 1 << 18


class RenderBudget:
    """The resources used in one rendering, with their limits.

    Args:
        limits: the limits.
        given: the variables of the template.

    Attributes:
        size: maximum number of characters and items of one value, and of the text.
    """

    def __init__(self, limits: Limits, given: Iterable[Any] = ()) -> None:
        given = list(given)
        n_items = sum(len(value) for value in given if isinstance(value, list))
        self._time_s = limits.time_s + limits.message_s * n_items
        self._ends_s = time.thread_time() + self._time_s
        self._written = 0
        self.size = 1 << 40  # the input itself is not limited
        self.size = limits.size + limits.growth * self.measure(given)

    def check_time(self) -> None:
        """Raise TemplateError after the time limit."""
        if time.thread_time() > self._ends_s:
            raise TemplateError(
                f"it has not finished after {self._time_s:g} s; is there an endless loop?"
            )

    def check_size(self, size: float) -> None:
        """Raise TemplateError for a size above the limit."""
        if size > self.size:
            raise TemplateError(
                f"it creates a value or text of more than {self.size} characters or items"
            )

    def write(self, n_chars: int) -> None:
        """Count characters written to the prompt, or to the result of a macro or block."""
        self._written += n_chars
        self.check_size(self._written)
        self.check_time()

    def measure(self, value: Any) -> int:
        """The number of characters and items in a value, repeated references included."""
        if isinstance(value, str):
            self.check_size(len(value))
            return len(value)
        if not isinstance(value, _CONTAINERS):
            return 1
        weight, todo, seen = 0, [value], 0
        while todo:
            item = todo.pop()
            weight += len(item) if isinstance(item, str) else 1
            if isinstance(item, _CONTAINERS):
                self.check_size(weight + len(item))
                todo.extend(item)
                if isinstance(item, dict):
                    todo.extend(item.values())
            seen += 1
            if not seen % 4096:
                self.check_size(weight)
                self.check_time()
        self.check_size(weight)
        return weight

    def limit_items(self, items: Iterator[Any]) -> Iterator[Any]:
        """The same items, with checks of time and of their number."""
        for i, item in enumerate(items):
            self.check_time()
            self.check_size(i)
            yield item
