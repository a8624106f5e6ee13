"""Encodes metadata and a tensor table to the bytes of a GGUF header.

    head = encode_header({"general.name": encode_value("general.name", "tiny")}, entries, 32)

An encoded value is its type id and its bytes. NumPy scalars and arrays and ``GGUFStrings`` keep
their types, so the metadata of a file can be copied unchanged.
Source: the GGUF specification, version 3.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..dtype import GGMLType
from ..errors import GGUFError
from ..rounding import round_up
from . import limits
from .magic import MAGIC
from .types import NATURAL, GGUFStrings, ValueType, fits

_VERSION = 3
_BY_DTYPE = {t.dtype: t for t in ValueType if t.code}


class Entry(NamedTuple):
    """An entry of the tensor table: name, sizes, type, bytes of data."""

    name: str
    ne: tuple[int, ...]
    type: GGMLType
    nbytes: int


def encode_header(
    metadata: Mapping[str, bytes],
    entries: Sequence[Entry],
    alignment: int,
    magic: bytes = MAGIC,
) -> bytes:
    """Return the header including padding; the tensors' data must follow in the same order."""
    pieces = [magic, struct.pack("<IQQ", _VERSION, len(entries), len(metadata))]
    for key, value in metadata.items():
        pieces += _string(key.encode()), value
    offset = 0
    for name, ne, type, nbytes in entries:
        dims = struct.pack(f"<I{len(ne)}q", len(ne), *ne)
        pieces += _string(name.encode()), dims, struct.pack("<IQ", type, offset)
        offset += round_up(nbytes, alignment)
    head = b"".join(pieces)
    return head + bytes(round_up(len(head), alignment) - len(head))


def encode_value(key: str, value: Any) -> bytes:
    """Return type id and bytes of a metadata value; ``write_gguf`` lists the types.

    Raises:
        GGUFError: GGUF cannot represent the key or value.
    """
    try:
        return _encode_value(key, value)
    except UnicodeEncodeError as error:
        raise GGUFError(
            f"metadata {key!r:.80}: {error.object[error.start : error.end]!r} is not a character: "
            f"this text cannot be encoded as UTF-8"
        ) from None


def _encode_value(key: str, value: Any) -> bytes:
    n_bytes = len(key.encode())
    if not 0 < n_bytes <= limits.MAX_KEY_BYTES:
        raise GGUFError(f"a metadata key of {n_bytes} bytes: 1 to 65535 are legal")
    if isinstance(value, np.ndarray | np.generic):
        return _encode_numpy(key, value)
    if isinstance(value, str | bytes | bool | int | float):
        kind = _element_type(key, [value], unsigned=True)
        return struct.pack("<I", kind) + _pack(kind, [value])
    if isinstance(value, GGUFStrings):
        return _array(ValueType.STRING, len(value), value.encoded)
    if isinstance(value, Sequence):
        if not len(value):
            raise GGUFError(
                f"metadata {key!r} is an empty array without a type: use an empty NumPy array, or "
                f"omit it"
            )
        kind = _element_type(key, value, unsigned=False)
        return _array(kind, len(value), _pack(kind, value))
    raise GGUFError(f"metadata {key!r}: GGUF has no type for {type(value).__name__}")


def _encode_numpy(key: str, value: Any) -> bytes:
    kind = _BY_DTYPE.get(value.dtype.newbyteorder("<"))
    if kind is None or value.ndim > 1:
        raise GGUFError(
            f"metadata {key!r}: GGUF has no type for {value.dtype} with {value.ndim} dimensions"
        )
    data = np.asarray(value, kind.dtype).tobytes()
    return _array(kind, value.size, data) if value.ndim else struct.pack("<I", kind) + data


def _array(kind: ValueType, n: int, data: bytes) -> bytes:
    return struct.pack("<IIQ", ValueType.ARRAY, kind, n) + data


def _pack(kind: ValueType, values: Sequence[Any]) -> bytes:
    if kind is not ValueType.STRING:
        return np.array(values, kind.dtype).tobytes()
    texts = (v.encode("utf-8", "surrogateescape") if isinstance(v, str) else v for v in values)
    return b"".join(map(_string, texts))


def _string(text: bytes) -> bytes:
    return len(text).to_bytes(8, "little") + text


def _element_type(key: str, values: Sequence[Any], *, unsigned: bool) -> ValueType:
    """Return the type that can represent all ``values``, which must have one Python type.

    Args:
        unsigned: an int is UINT32 if it fits.
    """
    kinds = {str if isinstance(v, bytes) else type(v) for v in values}
    if len(kinds) != 1 or not kinds <= NATURAL.keys():
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise GGUFError(
            f"metadata {key!r}: GGUF has no array of {names}: use bool, int, float or str"
        )
    (kind,) = kinds
    ends = (min(values), max(values)) if kind is int else values if kind is float else ()
    for candidate in NATURAL[kind]:
        if (unsigned or candidate is not ValueType.UINT32) and all(
            fits(candidate, v) for v in ends
        ):
            return candidate
    raise GGUFError(f"metadata {key!r}: an integer does not fit 64 bits")
