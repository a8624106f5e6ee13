"""Texts that users give as files or pipes.

    text = read_text(Path("template.jinja"), max_bytes=1 << 20)

A byte order mark, which some editors and shells write, is not part of the text. It also tells that
a text is UTF-16. Other texts are UTF-8.
"""

from __future__ import annotations

import codecs
import os

from pyggml.files import read_input

_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def utf8(data: bytes) -> bytes:
    """Return a user's bytes as UTF-8 without a mark; invalid bytes of UTF-8 are kept."""
    if data.startswith(_UTF16):
        return data.decode("utf-16", "replace").encode()
    return data.removeprefix(codecs.BOM_UTF8)


def decode_text(data: bytes, errors: str = "replace") -> str:
    """Return the text of a user's bytes, with their line ends.

    Args:
        errors: see `bytes.decode`; by default invalid bytes become U+FFFD.

    Raises:
        UnicodeDecodeError: with ``errors="strict"``, the text is not valid UTF-8.
    """
    return utf8(data).decode("utf-8", errors)


def read_text(path: str | os.PathLike[str], max_bytes: int, errors: str = "replace") -> str:
    """Return the text of a file or pipe, with newlines as line ends.

    Raises:
        OSError: the file cannot be read, or is too large.
        UnicodeDecodeError: see `decode_text`.
    """
    text = decode_text(read_input(path, max_bytes), errors)
    return text.replace("\r\n", "\n").replace("\r", "\n")
