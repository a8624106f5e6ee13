"""Types of a GGUF header: value types, lazy string arrays, tensor entries.

    tokens = f.metadata["tokenizer.ggml.tokens"]   # GGUFStrings: nothing is decoded yet
    len(tokens), tokens[5], tokens.raw(5)          # 49152, 'Ġthe', b'\\xc4\\xa0the'
    tokens.tolist()                                # all at once, about 0.2 us a string

All objects are immutable and own their memory, so they remain valid after the file is closed.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from math import inf
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from ..dtype import GGMLType


def decode(text: bytes) -> str:
    """Return a GGUF string as ``str``, losslessly for any bytes.

    Invalid UTF-8 (old vocabularies have partial characters) becomes lone surrogates, as in Python's
    file names; ``.encode("utf-8", "surrogateescape")`` restores the bytes.
    """
    return str(text, "utf-8", "surrogateescape")


class ValueType(IntEnum):
    """The type of a metadata value; the value is the id in the file."""

    code: str

    def __new__(cls, value: int, code: str) -> ValueType:
        member = int.__new__(cls, value)
        member._value_ = value
        member.code = code  # type code of struct and NumPy; empty for strings and arrays
        return member

    UINT8 = (0, "B")
    INT8 = (1, "b")
    UINT16 = (2, "H")
    INT16 = (3, "h")
    UINT32 = (4, "I")
    INT32 = (5, "i")
    FLOAT32 = (6, "f")
    BOOL = (7, "?")
    STRING = (8, "")
    ARRAY = (9, "")
    UINT64 = (10, "Q")
    INT64 = (11, "q")
    FLOAT64 = (12, "d")

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy dtype of a number or bool, in the file's byte order."""
        return np.dtype("<" + self.code)


NATURAL = {  # bool is a subclass of int, so it comes first
    bool: (ValueType.BOOL,),
    int: (ValueType.UINT32, ValueType.INT32, ValueType.INT64, ValueType.UINT64),
    float: (ValueType.FLOAT32, ValueType.FLOAT64),
    str: (ValueType.STRING,),
}


def natural_type(value: bool | int | float | str) -> ValueType:
    """Return the usual type of a value in GGUF files, or a wider one if the value needs it."""
    kinds = next(kinds for python, kinds in NATURAL.items() if isinstance(value, python))
    return next((kind for kind in kinds if fits(kind, value)), kinds[-1])


def fits(kind: ValueType, value: bool | int | float | str) -> bool:
    """Return whether type ``kind`` can represent ``value``; integers are allowed as floats."""
    if isinstance(value, bool):
        return kind is ValueType.BOOL
    if isinstance(value, str):
        return kind is ValueType.STRING
    if kind in (ValueType.FLOAT32, ValueType.FLOAT64):
        return value != value or abs(value) == inf or abs(value) <= float(np.finfo(kind.dtype).max)
    if isinstance(value, float) or not kind.code or kind is ValueType.BOOL:
        return False
    info = np.iinfo(kind.dtype)
    return bool(info.min <= value <= info.max)


def parse_value(kind: ValueType, text: str) -> bool | int | float | str:
    """Parse a text as a value of a type (not an array).

    Raises:
        ValueError: the text is not such a value, or out of range.
    """
    value: bool | int | float | str
    if kind is ValueType.STRING:
        return text
    if kind is ValueType.BOOL:
        if text not in ("true", "false"):
            raise ValueError(f"{text!r} is not true or false")
        return text == "true"
    try:
        whole = kind not in (ValueType.FLOAT32, ValueType.FLOAT64)
        value = int(text, 0) if whole else float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number of type {kind.name}") from None
    if not fits(kind, value):
        raise ValueError(f"{text} does not fit {kind.name}")
    return value


class GGUFStrings(Sequence[str]):
    """An array of strings that are decoded on access.

    Args:
        blob: the strings as in the file, each preceded by its 8-byte length.
        bounds: offset of each string in ``blob``, and the end of the last.
    """

    __slots__ = ("_blob", "_bounds")

    def __init__(self, blob: bytes, bounds: array[int]) -> None:
        self._blob = blob
        self._bounds = bounds

    @property
    def encoded(self) -> bytes:
        """All strings as in the file, each preceded by its length."""
        return self._blob

    def raw(self, index: int) -> bytes:
        """Return the bytes of one string."""
        n = len(self)
        if not -n <= index < n:
            raise IndexError(f"string {index} of an array of {n}")
        index %= n
        return self._blob[self._bounds[index] + 8 : self._bounds[index + 1]]

    def tolist(self) -> list[str]:
        """Return all strings, decoded."""
        blob, starts = self._blob, np.frombuffer(self._bounds, np.int64)[:-1]
        data = np.frombuffer(blob, np.uint8).copy()
        for k in range(8):
            data[starts + k] = 0
        try:
            if np.count_nonzero(data) == data.size - 8 * starts.size:  # no string contains a NUL
                return data.tobytes().decode().split(8 * "\0")[1:]  # 3x as fast as the loop
            return [blob[start + 8 : end].decode() for start, end in pairwise(self._bounds)]
        except UnicodeDecodeError:  # rare
            return self[:]

    def __len__(self) -> int:
        return len(self._bounds) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [decode(self.raw(i)) for i in range(*index.indices(len(self)))]
        return decode(self.raw(index))

    def __repr__(self) -> str:
        return f"<GGUFStrings of {len(self)}>"


NumberArray = npt.NDArray[Any]
Value = int | float | bool | str | NumberArray | GGUFStrings


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One entry of the tensor table.

    Attributes:
        ne: elements in each dimension, ``ne[0]`` contiguous, padded with ones.
        n_dims: number of dimensions in the file.
        offset: byte offset of the data in its file.
        nbytes: size of the data without padding.
        part: index of its file in a split model, from 0.
    """

    name: str
    ne: tuple[int, int, int, int]
    n_dims: int
    type: GGMLType
    offset: int
    nbytes: int
    part: int = 0

    @property
    def n_elements(self) -> int:
        """Number of elements."""
        return self.ne[0] * self.ne[1] * self.ne[2] * self.ne[3]
