"""The front matter of README.md, as text, lists and dictionaries.

    card = read_card(Folder(Path("Llama-3.2-1B")))
    card["license"]                                # "mit"

YAML's grammar is the ``yaml`` package's; values are made here, of its events, so that tags name no
types, numbers and dates stay as they are written, and aliases are counted each time they repeat
something: ten lines of them would otherwise stand for more values than fit into any memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import ModelError
from ..files.budget import MAX_CARD_BYTES, MAX_CARD_DEPTH, MAX_CARD_SIZE, MAX_CARD_TEXT
from .folder import Folder

_NAME = "README.md"
_VALUE = 16  # characters that a value counts as, however short it is
_NULL = ("", "~", "null", "Null", "NULL")


def read_card(folder: Folder) -> dict[str, Any]:
    """What README.md says; {} where there is none, or no front matter.

    Raises:
        ModelError: it cannot be read or understood, or has too many values.
    """
    if not folder.has(_NAME):
        return {}
    path = folder.path / _NAME
    lines = folder.head(_NAME, MAX_CARD_BYTES).removeprefix(b"\xef\xbb\xbf").split(b"\n")
    lines = [line.removesuffix(b"\r") for line in lines]
    if lines[0] != b"---":
        return {}
    if b"---" not in lines[1:]:
        raise ModelError(f"{path}: its front matter has no end in the first {MAX_CARD_BYTES} bytes")
    try:
        text = b"\n".join(lines[1 : lines.index(b"---", 1)]).decode()
    except UnicodeDecodeError as error:
        raise ModelError(f"{path}: not UTF-8 ({error})") from None
    value = _parse(path, text.replace("\t", "  ") + "\n")  # YAML takes no tabs, cards have some
    return value if isinstance(value, dict) else {}


def _parse(path: Path, text: str) -> Any:
    import yaml  # slow to import

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    builder = _Builder(path)
    try:
        for event in yaml.parse(text, Loader=loader):
            builder.take(event)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ModelError(f"{path}: its front matter is no YAML ({error})") from None
    return builder.root[0] if builder.root else None


class _Builder:
    """Makes values of YAML's events.

    Attributes:
        root: what documents hold; the first counts.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.root: list[Any] = []
        self.size = 0
        self._open: list[tuple[str | None, Any, int]] = []  # anchor, list or pairs, size before
        self._anchors: dict[str, tuple[Any, int]] = {}  # value, and its size

    def take(self, event: Any) -> None:
        """The next event. Raises: ModelError."""
        kind = type(event).__name__.removesuffix("Event")
        if kind == "Alias":
            if event.anchor not in self._anchors:
                raise self._error(f"an alias of {event.anchor!r:.40}, which is not there")
            value, size = self._anchors[event.anchor]
            self._count(size)
            self._add(value)
        elif kind == "Scalar":
            if len(event.value) > MAX_CARD_TEXT:
                raise self._error(f"a value of {len(event.value)} characters")
            self._count(_VALUE + len(event.value))
            plain = event.style in (None, "") and event.value in _NULL
            value = None if plain else event.value
            if event.anchor:
                self._anchors[event.anchor] = value, _VALUE + len(event.value)
            self._add(value)
        elif kind.endswith("Start") and kind[:3] in ("Seq", "Map"):
            if len(self._open) == MAX_CARD_DEPTH:
                raise self._error(f"more than {MAX_CARD_DEPTH} levels")
            self._open.append((event.anchor, _Pairs() if kind[0] == "M" else [], self.size))
            self._count(_VALUE)
        elif kind.endswith("End") and kind[:3] in ("Seq", "Map"):
            anchor, items, before = self._open.pop()
            value = items.whole() if isinstance(items, _Pairs) else items
            if anchor:
                self._anchors[anchor] = value, self.size - before
            self._add(value)

    def _add(self, value: Any) -> None:
        (self._open[-1][1] if self._open else self.root).append(value)

    def _count(self, n: int) -> None:
        self.size += n
        if self.size > MAX_CARD_SIZE:
            raise self._error(f"more than {MAX_CARD_SIZE} characters and values, with its aliases")

    def _error(self, what: str) -> ModelError:
        return ModelError(f"{self.path}: its front matter has {what}: no model card has")


class _Pairs(list[Any]):
    """Keys and values in turn."""

    def whole(self) -> dict[str, Any]:
        """As a dictionary; keys that are no text are left out."""
        pairs = zip(self[::2], self[1::2], strict=True)
        return {key: value for key, value in pairs if isinstance(key, str)}
