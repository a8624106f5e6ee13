"""Typed and validated access to the tokenizer keys of GGUF metadata.

    keys = Metadata({"tokenizer.ggml.add_bos_token": True})
    keys.flag("add_bos_token", default=False)

A value of the wrong type, length or range raises TokenizerError with one line.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import TokenizerError

log = logging.getLogger(__name__)
PREFIX = "tokenizer.ggml."


class Metadata:
    """The ``tokenizer.ggml.*`` keys of a GGUF file.

    Args:
        values: all metadata of the file, by full key.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def __contains__(self, key: str) -> bool:
        return self._values.get(PREFIX + key) is not None

    def text(self, key: str) -> str | None:
        """The string under ``key``, or None if it is absent."""
        return self.full_text(PREFIX + key)

    def full_text(self, key: str) -> str | None:
        """As `text`, for a key given with its prefix (``general.name``)."""
        value = self._values.get(key)
        if value is not None and not isinstance(value, str):
            raise _wrong_type(key, "a string", value)
        return value

    def flag(self, key: str, default: bool) -> bool:
        """The boolean under ``key``, or ``default`` if it is absent."""
        value = self._values.get(PREFIX + key)
        if value is None:
            return default
        if not isinstance(value, bool | np.bool_):
            raise _wrong_type(PREFIX + key, "a boolean", value)
        return bool(value)

    def token_id(self, key: str, n_tokens: int) -> int | None:
        """The token id under ``key``, or None if it is absent or, with a warning, out of range.

        Converters write -1, as 4294967295, for a token that a model does not have.

        Raises:
            TokenizerError: the value is not an integer.
        """
        value = self.number(PREFIX + key, "a token id")
        if value is None or 0 <= value < n_tokens:
            return value
        log.warning(
            "%s is %d, but the vocabulary has %d tokens: there is no such token",
            PREFIX + key, value, n_tokens,
        )  # fmt: skip
        return None

    def number(self, key: str, kind: str = "an integer") -> int | None:
        """The integer under ``key``, given with its prefix, or None if it is absent."""
        value = self._values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise _wrong_type(key, kind, value)
        return int(value)

    def strings(self, key: str) -> list[str]:
        """The array of strings under ``key``.

        Raises:
            TokenizerError: the key is missing, or not an array of strings.
        """
        items = self._array(key)
        items = items.tolist() if hasattr(items, "tolist") else items
        if not isinstance(items, list | tuple) or not set(map(type, items)) <= {str}:
            raise _wrong_type(PREFIX + key, "an array of strings", items)
        return list(items)

    def numbers(
        self, key: str, kinds: str, default: Sequence[float] | None = None
    ) -> np.ndarray[Any, Any]:
        """The array of numbers under ``key``.

        Args:
            key: name after ``tokenizer.ggml.``.
            kinds: allowed NumPy kind codes, such as "iu" or "iuf".
            default: in place of a key that is missing.

        Raises:
            TokenizerError: the key is missing, or not an array of such numbers.
        """
        items = self._array(key) if default is None or key in self else default
        try:
            array = np.asarray(items)
        except (ValueError, TypeError, OverflowError):
            raise _wrong_type(PREFIX + key, "an array of numbers", items) from None
        if array.size == 0:
            return np.zeros(0, np.int64)
        if array.ndim != 1 or array.dtype.kind not in kinds:
            raise _wrong_type(PREFIX + key, "an array of numbers", items)
        return array

    def _array(self, key: str) -> Any:
        value = self._values.get(PREFIX + key)
        if value is None:
            raise TokenizerError(f"{PREFIX + key} is missing: this file has no usable vocabulary")
        return value


def _wrong_type(key: str, expected: str, value: Any) -> TokenizerError:
    value = value.tolist() if hasattr(value, "tolist") else value
    shown = type(value).__name__
    if isinstance(value, list | tuple) and value:
        shown += " of " + ", ".join(sorted({type(item).__name__ for item in value}))
    return TokenizerError(f"{key} is not {expected} (got {shown}): the file is damaged")
