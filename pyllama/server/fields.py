"""Reads the fields of a request's JSON object: types, ranges, defaults.

    fields = Fields(body)
    fields.whole("n_predict", -1, low=-1, also=("max_tokens",))
    fields.flag("stream")

A field that is null counts as absent. A wrong one raises an `ApiError` that names it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

from .errors import ApiError

T = TypeVar("T")
INT32_MAX = 2**31 - 1
_ABSENT = object()


class Fields:
    """The fields of one JSON object.

    Args:
        body: the object.
        where: its name in messages, such as ``stream_options``.

    Raises:
        ApiError: it is not an object.
    """

    def __init__(self, body: Any, where: str = "") -> None:
        if not isinstance(body, Mapping):
            raise ApiError.invalid(f"{where or 'the body'} must be a JSON object")
        self.body: Mapping[str, Any] = body
        self._where = f"{where}." if where else ""

    def has(self, name: str) -> bool:
        """Whether a field is there and not null."""
        return self.body.get(name) is not None

    def get(self, name: str, default: T, kind: type[T], also: tuple[str, ...] = ()) -> T:
        """A field of a type: str, list or dict; under its name or another one."""
        name, value = self._find(name, also)
        if value is _ABSENT:
            return default
        if not isinstance(value, kind):
            self._refuse(name, f"must be of type {kind.__name__}, got {_shown(value)}")
        found: T = value
        return found

    def flag(self, name: str, default: bool = False) -> bool:
        """A boolean field."""
        return self.get(name, default, bool)

    def whole(
        self,
        name: str,
        default: int,
        *,
        low: int = -INT32_MAX - 1,
        high: int = INT32_MAX,
        also: tuple[str, ...] = (),
        clamp: bool = False,
    ) -> int:
        """A whole number in a range; with ``clamp`` the nearest one in it."""
        name, value = self._find(name, also)
        if value is _ABSENT:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self._refuse(name, f"must be a number, got {_shown(value)}")
        if isinstance(value, float):
            if not math.isfinite(value):
                self._refuse(name, f"must be a finite number, got {_shown(value)}")
            value = int(value)
        return int(self._in_range(name, value, low, high, clamp))

    def number(
        self,
        name: str,
        default: float,
        *,
        low: float = -math.inf,
        high: float = math.inf,
        clamp: bool = False,
    ) -> float:
        """A finite number in a range; with ``clamp`` the nearest one in it."""
        value = self.body.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self._refuse(name, f"must be a number, got {_shown(value)}")
        try:
            value = float(value)
        except OverflowError:
            value = math.inf
        if not math.isfinite(value):
            self._refuse(name, "must be a finite number")
        return float(self._in_range(name, value, low, high, clamp))

    def texts(self, name: str) -> tuple[str, ...] | None:
        """A text or a list of texts; None if absent."""
        value = self.body.get(name)
        if value is None:
            return None
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list) or not all(isinstance(v, str) for v in values):
            self._refuse(name, f"must be a string or a list of strings, got {_shown(value)}")
        return tuple(values)

    def _find(self, name: str, also: tuple[str, ...]) -> tuple[str, Any]:
        for key in (name, *also):
            if self.body.get(key) is not None:
                return key, self.body[key]
        return name, _ABSENT

    def _in_range(self, name: str, value: float, low: float, high: float, clamp: bool) -> float:
        if clamp:
            return max(low, min(high, value))
        if not low <= value <= high:
            self._refuse(name, f"must be between {low} and {high}, got {_shown(value)}")
        return value

    def _refuse(self, name: str, problem: str) -> None:
        raise ApiError.invalid(f"Field '{self._where}{name}': {problem}")


def _shown(value: Any) -> str:
    return f"{value!r:.60}"
