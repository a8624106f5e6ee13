"""What a chat template may use up: time, text, and size of the values that it makes.

    budget = Budget(Limits(), [messages, tools])
    budget.check()                                 # raises TemplateError once time is up
    budget.weigh(["a", ["b", "c"]])                # 6: items and characters, each time they occur
    budget.write(120)                              # counts text

Limits on sizes grow with what the template is given, so a long conversation is no attack.
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
        time_s: processor time of the rendering thread, so that a busy machine fails nobody.
        message_s: more of it for each message and tool; some templates read all for each one.
        size: characters of text and items of values; to it comes ``growth`` times the input's.
        growth: how many times a template may repeat its input.
        source: characters of the template itself.
    """

    time_s: float = 3.0
    message_s: float = 0.01
    size: int = 1 << 20
    growth: int = 8
    source: int = 1 << 18


class Budget:
    """What is left of the limits in one rendering.

    Args:
        limits: the limits.
        given: the values that the template is given.

    Attributes:
        size: most characters and items of one value, and of the text.
    """

    def __init__(self, limits: Limits, given: Iterable[Any] = ()) -> None:
        given = list(given)
        n_items = sum(len(value) for value in given if isinstance(value, list))
        self._time_s = limits.time_s + limits.message_s * n_items
        self._ends_s = time.thread_time() + self._time_s
        self._written = 0
        self.size = 1 << 40  # the input itself is not limited
        self.size = limits.size + limits.growth * self.weigh(given)

    def check(self) -> None:
        """Raise TemplateError once the time is up."""
        if time.thread_time() > self._ends_s:
            raise TemplateError(
                f"it is not done after {self._time_s:g} s; is there an endless loop?"
            )

    def fits(self, size: float) -> None:
        """Raise TemplateError for a value of more than the allowed characters or items."""
        if size > self.size:
            raise TemplateError(
                f"it makes a value or text of more than {self.size} characters or items"
            )

    def write(self, n_chars: int) -> None:
        """Count text that goes to the prompt, or to a macro's or block's result."""
        self._written += n_chars
        self.fits(self._written)
        self.check()

    def weigh(self, value: Any) -> int:
        """Characters and items in a value, counted as often as they occur in its text."""
        if isinstance(value, str):
            self.fits(len(value))
            return len(value)
        if not isinstance(value, _CONTAINERS):
            return 1
        weight, todo, seen = 0, [value], 0
        while todo:
            item = todo.pop()
            weight += len(item) if isinstance(item, str) else 1
            if isinstance(item, _CONTAINERS):
                self.fits(weight + len(item))
                todo.extend(item)
                if isinstance(item, dict):
                    todo.extend(item.values())
            seen += 1
            if not seen % 4096:
                self.fits(weight)
                self.check()
        self.fits(weight)
        return weight

    def watch(self, items: Iterator[Any]) -> Iterator[Any]:
        """The same items, as long as there is time and they are not too many."""
        for i, item in enumerate(items):
            self.check()
            self.fits(i)
            yield item
