"""Reads the YAML front matter of README.md as strings, lists and dictionaries.

    card = read_card(Folder(Path("Llama-3.2-1B")))
    card["license"]                                # "mit"

The ``yaml`` package parses; values are built here from its events. So tags cannot create objects,
numbers and dates stay strings, and every use of an alias counts towards the size limit (nested
aliases can expand exponentially).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import ModelError
from ..inputs.budget import MAX_CARD_BYTES, MAX_CARD_DEPTH, MAX_CARD_SIZE, MAX_CARD_TEXT
from .files.folder import Folder

_NAME = "README.md"
_VALUE = 16  # overhead of a value, added to its number of characters
_NULL = ("", "~", "null", "Null", "NULL")


def read_card(folder: Folder) -> dict[str, Any]:
    """Return the front matter of README.md, {} if there is none.

    Raises:
        ModelError: it cannot be read or parsed, or has too many values.
    """
    if not folder.has(_NAME):
        return {}
    path = folder.path / _NAME
    lines = folder.head(_NAME, MAX_CARD_BYTES).removeprefix(b"\xef\xbb\xbf").split(b"\n")
    lines = [line.removesuffix(b"\r") for line in lines]
    if lines[0] != b"---":
        return {}
    if b"---" not in lines[1:]:
        raise ModelError(
            f"{path}: its front matter does not end in the first {MAX_CARD_BYTES} bytes"
        )
    try:
        text = b"\n".join(lines[1 : lines.index(b"---", 1)]).decode()
    except UnicodeDecodeError as error:
        raise ModelError(f"{path}: not UTF-8 ({error})") from None
    value = _parse(path, text.replace("\t", "  ") + "\n")  # some cards have tabs, YAML forbids them
    return value if isinstance(value, dict) else {}


def _parse(path: Path, text: str) -> Any:
    import yaml  # slow to import

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    builder = _YamlBuilder(path)
    try:
        for event in yaml.parse(text, Loader=loader):
            builder.handle(event)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ModelError(f"{path}: its front matter is not YAML ({error})") from None
    return builder.root[0] if builder.root else None


class _YamlBuilder:
    """Builds values from YAML events.

    Attributes:
        root: the values of the documents; only the first is used.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.root: list[Any] = []
        self.size = 0
        # unfinished containers: (anchor, items or keys and values, size before it)
        self._open: list[tuple[str | None, list[Any], int]] = []
        self._anchors: dict[str, tuple[Any, int]] = {}  # name -> (value, its size)

    def handle(self, event: Any) -> None:
        """Process the next event. Raises: ModelError."""
        kind = type(event).__name__.removesuffix("Event")
        if kind == "Alias":
            if event.anchor not in self._anchors:
                raise self._error(f"an alias of {event.anchor!r:.40}, which is not defined")
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
            self._open.append((event.anchor, [], self.size))
            self._count(_VALUE)
        elif kind.endswith("End") and kind[:3] in ("Seq", "Map"):
            anchor, items, before = self._open.pop()
            value = items
            if kind[0] == "M":  # keys that are not strings are left out
                pairs = zip(items[::2], items[1::2], strict=True)
                value = {key: value for key, value in pairs if isinstance(key, str)}
            if anchor:
                self._anchors[anchor] = value, self.size - before
            self._add(value)

    def _add(self, value: Any) -> None:
        (self._open[-1][1] if self._open else self.root).append(value)

    def _count(self, n: int) -> None:
        self.size += n
        if self.size > MAX_CARD_SIZE:
            raise self._error(f"more than {MAX_CARD_SIZE} characters and values, aliases expanded")

    def _error(self, problem: str) -> ModelError:
        return ModelError(f"{self.path}: its front matter has {problem}: not a model card")
