"""Bounds-checked sequential reading of a GGUF header.

    cur = Cursor(data, "x.gguf")
    n_dims = cur.number(U32, "n_dims of tensor 'output.weight'")

Every read takes a description of the value, so that errors say what is missing, where, and how many
bytes are left.
"""

from __future__ import annotations

import struct
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from ..errors import GGUFError
from . import limits
from .types import ValueType

DAMAGED = "the file is damaged: fetch it again"
INCOMPLETE = "the download is probably incomplete: fetch the file again"
NEWER = "the file is damaged or newer than this version of pyggml"

U32, U64 = struct.Struct("<I"), struct.Struct("<Q")
_VALUE_TYPES = {int(t): t for t in ValueType}


def clip(name: str) -> str:
    """Return a key for messages: quoted, escaped, truncated."""
    return repr(name if len(name) <= 80 else name[:77] + "...")


class Cursor:
    """A read position in the header; reading past the end raises GGUFError."""

    __slots__ = ("path", "pos", "size", "view")

    def __init__(self, data: npt.NDArray[np.uint8], path: str) -> None:
        self.view = data.data[: limits.MAX_HEADER_BYTES]
        self.size = data.size  # of the file
        self.path = path
        self.pos = 0

    def fail(self, problem: str, at: int | None = None) -> NoReturn:
        """Raise GGUFError with the position ``at``, by default the current one."""
        raise GGUFError(f"{self.path}: at byte {self.pos if at is None else at}: {problem}")

    def need(self, n_bytes: int, what: str) -> None:
        """Raise GGUFError unless ``n_bytes`` are left."""
        left = len(self.view) - self.pos
        if n_bytes <= left:
            return
        if self.size > len(self.view) and n_bytes <= self.size - self.pos:
            self.fail(
                f"{what} ends after the first {len(self.view)} bytes, the limit of a header; "
                f"{DAMAGED}"
            )
        self.fail(
            f"{what} takes {n_bytes} bytes and {self.size - self.pos} are left of the file's "
            f"{self.size}; the file is damaged or the download incomplete: fetch it again"
        )

    def number(self, fmt: struct.Struct, what: str) -> int:
        self.need(fmt.size, what)
        value: int = fmt.unpack_from(self.view, self.pos)[0]
        self.pos += fmt.size
        return value

    def take(self, n_bytes: int, what: str) -> bytes:
        self.need(n_bytes, what)
        taken = bytes(self.view[self.pos : self.pos + n_bytes])
        self.pos += n_bytes
        return taken

    def string(self, what: str) -> bytes:
        return self.take(self.number(U64, f"the length of {what}"), what)

    def name(self, what: str, max_bytes: int) -> str:
        """Read a key or tensor name: not empty, limited in length, UTF-8 without NUL."""
        at = self.pos
        n_bytes = self.number(U64, f"the length of {what}")
        if not 0 < n_bytes <= max_bytes:
            self.fail(f"{what} is {n_bytes} bytes long, legal are 1 to {max_bytes}; {DAMAGED}", at)
        text = self.take(n_bytes, what)
        try:
            name = text.decode()
        except UnicodeDecodeError:
            self.fail(f"{what} is not UTF-8: {text[:64]!r}; {DAMAGED}", at)
        if "\0" in name:
            self.fail(f"{what} contains a NUL: {text[:64]!r}; {DAMAGED}", at)
        return name

    def value_type(self, key: str, *, element: bool = False) -> ValueType:
        at, what = self.pos, "element type" if element else "value type"
        number = self.number(U32, f"the {what} of {key}")
        if element and number == ValueType.ARRAY:
            self.fail(f"{key} is an array of arrays, which GGUF does not allow; {DAMAGED}", at)
        if number not in _VALUE_TYPES:
            self.fail(f"{key} has unknown {what} {number}, legal are 0 to 12; {NEWER}", at)
        return _VALUE_TYPES[number]

    def check_count(self, n: int, what: str, min_bytes: int, max_count: int | None = None) -> None:
        """Raise GGUFError if ``n`` entries of at least ``min_bytes`` do not fit in the rest."""
        left = self.size - self.pos
        if n * min_bytes > left:
            self.fail(
                f"the file claims {n} {what}, which take at least {n * min_bytes} bytes, and "
                f"{left} are left; the file is damaged or the download incomplete: fetch it again"
            )
        if max_count is not None and n > max_count:
            self.fail(f"the file claims {n} {what}, the limit is {max_count}; {NEWER}")
