"""Reads the fields of a request's JSON object: types, ranges, defaults.

    body = Body({"stream": True, "max_tokens": 8, "colour": "red"})
    fields = Fields(body)
    fields.whole("n_predict", -1, low=-1, also=("max_tokens",))
    fields.flag("stream")
    body.ignored                                   # ["colour"]

A field that is null counts as absent. A wrong one raises an `ApiError` that names it. One that
nothing reads changes nothing: the client is told of it by a header.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NoReturn, TypeVar

from ...parameters import INT32_MAX, Json, Parameter, rows
from .errors import ApiError

T = TypeVar("T")
_READ = ("int", "float", "bool", "str")
_ABSENT = object()


class Body(Mapping[str, Any]):
    """A JSON object that notes which of its fields are read.

    Args:
        values: the object.
        under: an object that has the fields which this one lacks.
        of: the request's object, if this one was made of it for another API.
        names: the request's names of fields that differ from those of this object.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        under: Body | None = None,
        *,
        of: Body | None = None,
        names: Mapping[str, str] | None = None,
    ) -> None:
        self._values, self._under, self._of, self._names = values, under, of or under, names or {}
        self._read: set[str] = set()
        self._inner: dict[str, Body] = {}
        self._left_out: list[str] = []

    def __getitem__(self, name: str) -> Any:
        if self._under is not None and name not in self._values:
            return self._under[name]
        value = self._values[name]
        self._read.add(name)
        return value

    def __iter__(self) -> Iterator[str]:
        under = () if self._under is None else self._under
        return iter(dict.fromkeys((*self._values, *under)))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def peek(self, name: str) -> Any:
        """A field as if it were not read; None if absent."""
        return self._values.get(name)

    def inner(self, name: str) -> Body:
        """The object in a field, whose own fields are noted too."""
        if self._under is not None and name not in self._values:
            return self._under.inner(name)
        if name not in self._inner:
            self._inner[name] = Body(self[name])
        return self._inner[name]

    def leave_out(self, name: str) -> None:
        """Note that a field, or a part of one, changes nothing though it was read."""
        name = self._names.get(name, name)
        if self._of is not None:
            self._of.leave_out(name)
        else:
            self._left_out.append(name)

    @property
    def ignored(self) -> list[str]:
        """What changes nothing: fields that were not read, and those that were left out."""
        found = [k for k, v in self._values.items() if v is not None and k not in self._read]
        for name, inner in self._inner.items():
            found += [f"{name}.{one}" for one in inner.ignored]
        return found + self._left_out


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

    def inner(self, name: str) -> Fields:
        """The fields of the object in a field, which may be absent."""
        value = self.get(name, {}, dict)
        if value and isinstance(self.body, Body):
            return Fields(self.body.inner(name), f"{self._where}{name}")
        return Fields(value, f"{self._where}{name}")

    def leave_out(self, name: str) -> None:
        """Note that a field, or a part of one, changes nothing though it was read."""
        if isinstance(self.body, Body):
            self.body.leave_out(name)

    def has(self, name: str) -> bool:
        """Whether a field is there and not null."""
        return self.body.get(name) is not None

    def get(self, name: str, default: T, kind: type[T]) -> T:
        """A field of a type: str, list or dict."""
        value = self.body.get(name)
        if value is None:
            return default
        if not isinstance(value, kind):
            self._refuse(name, f"must be of type {kind.__name__}, got {value!r:.60}")
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
        return int(self._in_range(name, self._finite(name, value, int), low, high, clamp))

    def given(
        self,
        table: type,
        *,
        but: Collection[str] = (),
        is_own: bool = True,
        high: Mapping[str, int] | None = None,
    ) -> dict[str, Any]:
        """The values of a table of parameters that are there, by their rows' names.

        Lists and objects are not read.

        Args:
            but: rows that are not read.
            is_own: whether the response has llama.cpp's own format, which some fields change.
            high: upper limits that only the server knows, by the rows' names.
        """
        found: dict[str, Any] = {}
        for row in rows(table).values():
            if row.json is None or row.kind not in _READ or row.name in but:
                continue
            if row.json.is_own and not is_own:
                continue
            name, value = self._find(row.json.names[0], row.json.names[1:])
            if value is not _ABSENT:
                self._read(found, row, row.json, name, (high or {}).get(row.name, row.json.high))
        return found

    def _read(
        self, found: dict[str, Any], row: Parameter, json: Json, name: str, high: float
    ) -> None:
        low, clamp = json.low, json.outside == "clamp"
        if row.kind == "bool":
            found[row.name] = self.flag(name)
        elif row.kind == "str":
            found[row.name] = self.get(name, "", str)
        elif json.outside == "wrap":
            # of any size, as a conversion to unsigned in C
            found[row.name] = self._finite(name, self.body[name], int) % (int(high) + 1)
        elif row.kind == "int":
            ints = max(low, -INT32_MAX), min(high, INT32_MAX)
            found[row.name] = self.whole(name, 0, low=int(ints[0]), high=int(ints[1]), clamp=clamp)
        elif json.outside != "leave out":
            found[row.name] = self.number(name, 0.0, low=low, high=high, clamp=clamp)
        else:
            number = self.number(name, 0.0)
            if low <= number <= high:
                found[row.name] = number
            else:
                self.leave_out(name)

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
        return float(self._in_range(name, self._finite(name, value, float), low, high, clamp))

    def _finite(self, name: str, value: Any, kind: Callable[[float], float]) -> float:
        """The number that a field has, as an integer or a float."""
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self._refuse(name, f"must be a number, got {value!r:.60}")
        if isinstance(value, float) and not math.isfinite(value):
            self._refuse(name, f"must be a finite number, got {value!r:.60}")
        try:
            return kind(value)
        except OverflowError:
            self._refuse(name, f"must be a finite number, got {value!r:.60}")

    def texts(self, name: str) -> tuple[str, ...] | None:
        """A text or a list of texts; None if absent."""
        value = self.body.get(name)
        if value is None:
            return None
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list) or not all(isinstance(v, str) for v in values):
            self._refuse(name, f"must be a string or a list of strings, got {value!r:.60}")
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
            self._refuse(name, f"must be between {low} and {high}, got {value!r:.60}")
        return value

    def _refuse(self, name: str, problem: str) -> NoReturn:
        raise ApiError.invalid(f"Field '{self._where}{name}': {problem}")
