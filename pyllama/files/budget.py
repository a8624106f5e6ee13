"""What reading a stranger's checkpoint may cost, counted before the work is done.

    budget = Budget()
    budget.take("values", count_values(data), path)   # ModelError once a conversion has had all
    budget.take("bytes", len(data), path)
    with budget.pattern_time(): ...                   # what regular expressions of files take

One budget is shared by all files of a conversion, so that a thousand small files cost no more than
one. Every limit is far beyond any checkpoint that exists, and keeps a conversion of anything that
is no weights below about a gigabyte and a few seconds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from ..errors import ModelError

What = Literal["bytes", "values", "tensors"]

LIMITS: dict[What, int] = {
    # Of JSON, tables of tensors, vocabularies: the largest tokenizer.json has 35 MB.
    "bytes": 128 << 20,
    # Of JSON, opcodes of pickles, pieces: 80 bytes of memory each; that tokenizer.json has 2.1
    # million.
    "values": 8 << 20,
    # In a checkpoint: with unstacked experts up to 90,000.
    "tensors": 1 << 17,
}
MAX_JSON_BYTES = 64 << 20  # of one file
MAX_PICKLE_BYTES = 16 << 20  # a table of 10,000 tensors has 2 MB
MAX_DIRECTORY_BYTES = 8 << 20  # of zip archives, in all of a conversion: 1 KB takes 15 KB then
MAX_SENTENCEPIECE_BYTES = 16 << 20  # the largest have 5 MB
MAX_CARD_BYTES = 1 << 20  # README.md's front matter, where benchmark results stand: 0.1 MB
MAX_CARD_SIZE = 1 << 20  # characters of it, 16 more a value, each time an alias repeats them
MAX_CARD_DEPTH = 32
MAX_CARD_TEXT = 1 << 14  # characters of one value
MAX_TEMPLATE_BYTES = 1 << 20  # a chat template; what renders them takes 256 KB
MAX_SHARED = 4  # times that tensors may take the bytes of their file, of which they share some
OPCODE_VALUES = 4  # values that an opcode of a pickle counts as: it takes Python a microsecond
PATTERN_SECONDS = 1.0  # for all regular expressions of a tokenizer.json together


class Budget:
    """What is left of the limits.

    Attributes:
        left: by name of ``LIMITS``.
        pattern_seconds: that regular expressions may take still.
        directory_bytes: of zip archives' tables of contents.
    """

    def __init__(self) -> None:
        self.left = dict(LIMITS)
        self.pattern_seconds = PATTERN_SECONDS
        self.directory_bytes = MAX_DIRECTORY_BYTES

    def take(self, what: What, n: int, path: Path) -> None:
        """Count ``n`` more, of the file ``path``. Raises: ModelError: that is too much."""
        if n > self.left[what]:
            raise ModelError(
                f"{path}: needs {n} {what} of tables and settings, {max(self.left[what], 0)} are "
                f"left of the {LIMITS[what]} that a conversion reads: no checkpoint has as many, "
                "the file is damaged or made to fill the memory"
            )
        self.left[what] -= n

    def take_directory(self, n_bytes: int, path: Path) -> None:
        """Count bytes of an archive's table of contents. Raises: ModelError."""
        self.directory_bytes -= n_bytes
        if self.directory_bytes < 0:
            raise ModelError(
                f"{path}: the archive's table of contents takes more than "
                f"{MAX_DIRECTORY_BYTES} bytes: no checkpoint's does, fetch the file again"
            )

    @contextmanager
    def pattern_time(self) -> Iterator[float]:
        """Yields the seconds that a regular expression may take; those it takes are counted."""
        start = time.monotonic()
        try:
            yield self.pattern_seconds
        finally:
            self.pattern_seconds -= time.monotonic() - start


def shown(value: Any, n_chars: int = 80, depth: int = 3) -> str:
    """``repr(value)`` for a message: cut, in time that does not depend on the value's size.

    A pickle of 200 bytes may hold a tuple whose ``repr`` would never end.
    """
    if isinstance(value, str | bytes):
        text = repr(value[:n_chars])
    elif isinstance(value, int) and value.bit_length() > 256:  # Python may refuse to print it
        text = f"an integer of {value.bit_length()} bits"
    elif isinstance(value, dict):
        few = islice(value.items(), n_chars // 8 if depth else 0)
        items = [f"{shown(k, n_chars, 0)}: {shown(v, n_chars, depth - 1)}" for k, v in few]
        text = "{" + ", ".join(items) + (", ..." if len(value) > len(items) else "") + "}"
    elif isinstance(value, list | tuple):
        items = [shown(v, n_chars, depth - 1) for v in value[: n_chars // 8 if depth else 0]]
        if len(value) > len(items):
            items.append("...")
        begin, end = "[]" if isinstance(value, list) else "()"
        text = begin + ", ".join(items) + end
    elif value is None or isinstance(value, int | float):
        text = repr(value)
    else:
        text = type(value).__name__
    return text if len(text) <= n_chars else text[: n_chars - 3] + "..."
