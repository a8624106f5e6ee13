"""Limits of memory and time for reading an untrusted checkpoint, checked in advance.

    budget = Budget()
    budget.take("values", count_values(data), path)   # ModelError if the limit is exceeded
    budget.take("bytes", len(data), path)
    with budget.pattern_time(): ...                   # time of regular expressions from files

All files of a conversion share one budget, so that many small files cost no more than one. The
limits are far above any known checkpoint, and keep the cost of everything but weights below about
1 GB and a few seconds.
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
    # JSON, tables of tensors, vocabularies; the largest known tokenizer.json has 35 MB
    "bytes": 128 << 20,
    # JSON values, pickle opcodes, pieces, of 80 bytes each; the same tokenizer.json has 2.1 million
    "values": 8 << 20,
    # tensors of a checkpoint; up to 90,000 with unstacked experts
    "tensors": 1 << 17,
}
MAX_JSON_BYTES = 64 << 20  # of one file
MAX_PICKLE_BYTES = 16 << 20  # a table of 10,000 tensors has 2 MB
MAX_DIRECTORY_BYTES = 8 << 20  # of all zip directories; Python needs 15 bytes per byte
MAX_SENTENCEPIECE_BYTES = 16 << 20  # the largest have 5 MB
MAX_CARD_BYTES = 1 << 20  # front matter of README.md; with benchmark results about 0.1 MB
MAX_CARD_SIZE = 1 << 20  # its characters plus 16 per value, with aliases expanded
MAX_CARD_DEPTH = 32
MAX_CARD_TEXT = 1 << 14  # characters of one value
MAX_TEMPLATE_BYTES = 1 << 20  # a chat template; rendering has a limit of 256 KB
MAX_SHARED = 4  # maximum ratio of tensor bytes to file bytes, if tensors share arrays
OPCODE_VALUES = 4  # a pickle opcode counts as 4 values: it takes about a microsecond
PATTERN_SECONDS = 1.0  # for all regular expressions of a tokenizer.json together


class ReadBudget:
    """The remaining amounts of the limits.

    Attributes:
        left: remaining amounts, by name of ``LIMITS``.
        pattern_seconds: remaining time for regular expressions.
        directory_bytes: remaining size of zip directories.
    """

    def __init__(self) -> None:
        self.left = dict(LIMITS)
        self.pattern_seconds = PATTERN_SECONDS
        self.directory_bytes = MAX_DIRECTORY_BYTES

    def take(self, what: What, n: int, path: Path) -> None:
        """Consume ``n`` for the file ``path``. Raises: ModelError: the limit is exceeded."""
        if n > self.left[what]:
            raise ModelError(
                f"{path}: needs {n} {what} of tables and settings, {max(self.left[what], 0)} are "
                f"left of the limit of {LIMITS[what]} per conversion: the file is damaged or "
                "malicious"
            )
        self.left[what] -= n

    def take_directory(self, n_bytes: int, path: Path) -> None:
        """Consume bytes of a zip directory. Raises: ModelError: the limit is exceeded."""
        self.directory_bytes -= n_bytes
        if self.directory_bytes < 0:
            raise ModelError(
                f"{path}: the zip directory has more than {MAX_DIRECTORY_BYTES} bytes: download "
                "the file again"
            )

    @contextmanager
    def pattern_time(self) -> Iterator[float]:
        """Yield the remaining seconds for regular expressions; consume the time of the block."""
        start = time.monotonic()
        try:
            yield self.pattern_seconds
        finally:
            self.pattern_seconds -= time.monotonic() - start


def shown(value: Any, n_chars: int = 80, depth: int = 3) -> str:
    """Return ``repr(value)`` for a message, truncated, in time independent of the value's size.

    A pickle of 200 bytes can contain a nested tuple whose full ``repr`` is practically endless.
    """
    if isinstance(value, str | bytes):
        text = repr(value[:n_chars])
    elif (
        isinstance(value, int) and value.bit_length() > 256
    ):  # Python limits the digits of int -> str
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
