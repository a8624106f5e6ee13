"""Parses and checks a GGUF header: every length, type, dimension and offset, before its use.

    header = parse_header(np.fromfile("x.gguf", np.uint8), "x.gguf")

Guarantees for any input: the result is consistent with the size of ``data``, or GGUFError is
raised; time and memory are linear in the size of the header (see ``limits``). Keeps no view of
``data``. Positions in messages are byte offsets in the file.
Source: the GGUF specification; ggml, ``gguf_init_from_file_impl``.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from ..dtype import GGMLType, row_size
from ..errors import GGUFError
from ..rounding import round_up
from . import limits, magic
from .cursor import DAMAGED, INCOMPLETE, NEWER, U32, U64, Cursor, clip
from .types import GGUFStrings, NumberArray, TensorInfo, Value, ValueType, decode

ALIGNMENT_KEY = "general.alignment"

_PIECE = 1 << 16  # bytes searched for strings at once
_ODD = 100  # additional pieces after which ``_strings`` is faster
_SCALARS = {t: struct.Struct("<" + t.code) for t in ValueType if t.code}
_DIMS = [struct.Struct(f"<{n}q") for n in range(limits.MAX_DIMS + 1)]
_TENSOR_TYPES = {int(t): t for t in GGMLType}
_REMOVED = {4: "Q4_2", 5: "Q4_3", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8"} | {
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}


@dataclass(frozen=True, slots=True)
class Header:
    """The content of a GGUF header; see ``GGUFFile`` for the attributes."""

    magic: bytes
    version: int
    alignment: int
    metadata: dict[str, Value]
    value_types: dict[str, ValueType]
    value_offsets: dict[str, int]
    tensors: dict[str, TensorInfo]
    data_offset: int


def parse_header(data: npt.NDArray[np.uint8], path: str) -> Header:
    """Parse and return the header of a file with the bytes ``data``; ``path`` is for messages.

    Raises:
        GGUFError: the bytes are not a valid GGUF file, or the file is truncated.
    """
    cur = Cursor(data, path)
    version, n_tensors, n_kv = _read_counts(cur)
    metadata: dict[str, Value] = {}
    value_types: dict[str, ValueType] = {}
    value_offsets: dict[str, int] = {}
    for i in range(n_kv):
        at = cur.pos
        key = cur.name(f"the key of metadata entry {i}", limits.MAX_KEY_BYTES)
        if key in metadata:
            cur.fail(f"metadata key {clip(key)} occurs twice; {DAMAGED}", at)
        value_types[key] = cur.value_type(clip(key))
        value_offsets[key] = cur.pos
        metadata[key] = _read_value(cur, value_types[key], clip(key))
    alignment = _alignment(cur, metadata, value_types)
    cur.check_count(n_tensors, "tensors", limits.MIN_TENSOR_BYTES, limits.MAX_TENSORS)
    entries = [_read_tensor(cur, i) for i in range(n_tensors)]
    data_offset = round_up(cur.pos, alignment)
    tensors = _place(cur, entries, data_offset, alignment)
    first = bytes(cur.view[:4])
    return Header(
        first, version, alignment, metadata, value_types, value_offsets, tensors, data_offset
    )


def _read_counts(cur: Cursor) -> tuple[int, int, int]:
    """Check the magic and return (version, n_tensors, n_kv)."""
    head = bytes(cur.view[: magic.HEAD_BYTES])
    if not head:
        raise GGUFError(f"{cur.path}: the file is empty (0 bytes); {INCOMPLETE}")
    if not head.startswith(magic.MAGICS):
        if any(m.startswith(head) for m in magic.MAGICS):
            cur.need(limits.HEADER_BYTES, "the header")
        raise GGUFError(
            f"{cur.path}: not a GGUF file: it starts with {head[:4]!r} instead of b'GGUF'; "
            f"it looks like {magic.describe(head)}"
        )
    cur.need(limits.HEADER_BYTES, "the header")
    cur.pos = 4
    version = cur.number(U32, "the version")
    if version not in limits.VERSIONS:
        if version and not version & 0xFFFF:
            why = "the file is big endian: convert it to little endian (gguf-convert-endian)"
        elif version == 1:
            why = "version 1 was replaced in August 2023: convert the original model again"
        else:
            why = NEWER
        cur.fail(f"GGUF version {version} is not supported, 2 and 3 are; {why}", 4)
    n_tensors = cur.number(U64, "the number of tensors")
    n_kv = cur.number(U64, "the number of metadata entries")
    cur.check_count(n_kv, "metadata entries", limits.MIN_KV_BYTES, limits.MAX_KV)
    cur.check_count(n_tensors, "tensors", limits.MIN_TENSOR_BYTES, limits.MAX_TENSORS)
    return version, n_tensors, n_kv


def _read_value(cur: Cursor, kind: ValueType, key: str) -> Value:
    if kind is ValueType.STRING:
        return decode(cur.string(f"the value of {key}"))
    if kind is ValueType.ARRAY:
        kind = cur.value_type(key, element=True)
        n = cur.number(U64, f"the length of {key}")
        if kind is ValueType.STRING:
            return _read_strings(cur, n, key)
        return _read_numbers(cur, kind, n, key)
    if kind is ValueType.BOOL:
        return bool(_read_numbers(cur, kind, 1, key)[0])
    return cur.number(_SCALARS[kind], f"the value of {key}")


def _read_numbers(cur: Cursor, kind: ValueType, n: int, key: str) -> NumberArray:
    """Return an aligned read-only copy of the numbers."""
    at = cur.pos
    values = np.frombuffer(cur.take(n * kind.dtype.itemsize, f"the value of {key}"), kind.dtype)
    if kind is ValueType.BOOL and n and values.view(np.uint8).max() > 1:
        wrong = int(np.argmax(values.view(np.uint8) > 1))
        got = values.view(np.uint8)[wrong]
        cur.fail(f"{key} has the bool {got}, legal are 0 and 1; {DAMAGED}", at + wrong)
    return values


def _read_strings(cur: Cursor, n: int, key: str) -> GGUFStrings:
    """Return ``n`` strings undecoded; only their lengths are read."""
    cur.check_count(n, f"strings in {key}", limits.MIN_STRING_BYTES)
    view = cur.view[cur.pos :]
    bounds = _short_strings(view, n) or _strings(view, n)
    if len(bounds) <= n or bounds[n] > len(view):
        _blame_string(cur, bounds, n, key)
    blob = bytes(view[: bounds[n]])
    cur.pos += bounds[n]
    return GGUFStrings(blob, bounds)


def _strings(view: memoryview, n: int) -> array[int]:
    """Return the start of each string and the end of the last.

    The result has less than ``n + 1`` entries if a length exceeds the file.
    """
    bounds, pos = array("q"), 0
    append, unpack = bounds.append, U64.unpack_from
    try:
        for _ in range(n):
            append(pos)
            pos += 8 + unpack(view, pos)[0]
        append(pos)
    except (struct.error, OverflowError):  # beyond the end of the file, or of int64
        pass
    return bounds


def _short_strings(view: memoryview, n: int) -> array[int] | None:
    """Do the same 15 times as fast, if most strings have 1 to 255 bytes; None if it fails.

    The upper seven bytes of such lengths are zeros. Runs of seven zeros are found by vectorized
    comparisons on a piece of the data. Other strings, such as long ones, start a new piece.
    """
    bounds, at, pieces = array("q", [0]), 0, 0
    while len(bounds) <= n:
        data = np.frombuffer(view[at : at + _PIECE], np.uint8)
        zero = data == 0
        begins = zero[1:-6].copy()
        for k in range(2, 8):
            begins &= zero[k : zero.size - 7 + k]
        starts = begins.nonzero()[0][: n + 1 - len(bounds)]
        ends = starts + 8 + data[starts]
        if starts.size and starts[0] == 0:
            fit = np.append(ends[:-1] != starts[1:], True).argmax() + 1
            bounds.frombytes((at + ends[:fit]).astype(np.int64).tobytes())
        else:
            size = U64.unpack_from(view, at)[0] if len(data) >= 8 else len(view)
            bounds.append(at + 8 + min(size, len(view)))
        at, pieces = bounds[-1], pieces + 1
        if at > len(view) or pieces > _ODD + at // _PIECE:
            return None
    return bounds


def _blame_string(cur: Cursor, bounds: array[int], n: int, key: str) -> NoReturn:
    """Raise the error of the string that exceeds the file: one of the last that start in it."""
    first = max(0, bisect_right(bounds, len(cur.view) - cur.pos) - 2)
    cur.pos += bounds[first]
    for i in range(first, n):
        cur.string(f"string {i} of {n} in {key}")
    raise AssertionError("unreachable: all strings are within the file")


def _alignment(cur: Cursor, metadata: dict[str, Value], value_types: dict[str, ValueType]) -> int:
    """Return ``general.alignment``, or the default."""
    value = metadata.get(ALIGNMENT_KEY, limits.DEFAULT_ALIGNMENT)
    kind = value_types.get(ALIGNMENT_KEY, ValueType.UINT32)
    if kind is not ValueType.UINT32:
        raise GGUFError(f"{cur.path}: {ALIGNMENT_KEY} is {kind.name}, must be UINT32; {DAMAGED}")
    assert isinstance(value, int)
    if value < limits.MIN_ALIGNMENT or value & (value - 1):
        raise GGUFError(
            f"{cur.path}: {ALIGNMENT_KEY} is {value}, must be a power of two from "
            f"{limits.MIN_ALIGNMENT}; {DAMAGED}"
        )
    return value


def _read_tensor(cur: Cursor, i: int) -> tuple[TensorInfo, int]:
    """Return an entry of the tensor table (offset as in the file), and its position."""
    at = cur.pos
    name = cur.name(f"the name of tensor {i}", limits.MAX_NAME_BYTES)
    who = f"tensor {name!r}"
    n_dims = cur.number(U32, f"n_dims of {who}")
    if n_dims > limits.MAX_DIMS:
        cur.fail(
            f"{who} has {n_dims} dimensions, at most {limits.MAX_DIMS} are legal; {DAMAGED}", at
        )
    cur.need(8 * n_dims, f"the sizes of {who}")
    dims: tuple[int, ...] = _DIMS[n_dims].unpack_from(cur.view, cur.pos)
    cur.pos += 8 * n_dims
    if min(dims, default=0) < 0:
        cur.fail(f"{who} has sizes {dims}, none may be negative; {DAMAGED}", at)
    n_elements = 1
    for size in dims:
        n_elements *= max(size, 1)  # ignores zeros, since strides could overflow nevertheless
    if n_elements > limits.MAX_ELEMENTS:
        cur.fail(f"{who} with sizes {dims} has more than 2**63 - 1 elements; {DAMAGED}", at)
    type = _tensor_type(cur, cur.number(U32, f"the type of {who}"), who, at)
    ne0, ne1, ne2, ne3 = dims + (1,) * (limits.MAX_DIMS - n_dims)
    if ne0 % type.block_size:
        cur.fail(
            f"{who} of type {type.name} has rows of {ne0} elements, which must be a multiple of "
            f"{type.block_size}; {DAMAGED}",
            at,
        )
    offset = cur.number(U64, f"the offset of {who}")
    nbytes = row_size(type, ne0) * ne1 * ne2 * ne3
    return TensorInfo(name, (ne0, ne1, ne2, ne3), n_dims, type, offset, nbytes), at


def _tensor_type(cur: Cursor, number: int, who: str, at: int) -> GGMLType:
    if number in _TENSOR_TYPES:
        return _TENSOR_TYPES[number]
    if number in _REMOVED:
        why = f"{_REMOVED[number]}, which ggml removed: quantize the original model again"
    else:
        why = f"which does not exist; {NEWER}"
    cur.fail(f"{who} has type {number}, {why}", at)


def _place(
    cur: Cursor, entries: list[tuple[TensorInfo, int]], data_offset: int, alignment: int
) -> dict[str, TensorInfo]:
    """Return the tensors with absolute offsets; checks that they are contiguous (with padding)."""
    tensors: dict[str, TensorInfo] = {}
    expected, end, first_cut = 0, 0, None
    for info, at in entries:
        if info.name in tensors:
            cur.fail(f"tensor name {info.name!r} occurs twice; {DAMAGED}", at)
        if info.offset != expected:
            cur.fail(
                f"tensor {info.name!r} has offset {info.offset} in the data, expected {expected}, "
                f"the end of the one before it; {DAMAGED}",
                at,
            )
        if info.nbytes:  # the offset of an empty tensor may be after the end of the file
            end = data_offset + expected + info.nbytes
            if first_cut is None and end > cur.size:
                first_cut = info.name
        tensors[info.name] = TensorInfo(
            info.name, info.ne, info.n_dims, info.type, data_offset + expected, info.nbytes
        )
        expected += round_up(info.nbytes, alignment)
    if first_cut is not None:
        raise GGUFError(
            f"{cur.path}: the file has {cur.size} bytes, its {len(entries)} tensors end at byte "
            f"{end} (the first truncated one is {first_cut!r}): {end - cur.size} bytes are "
            f"missing; {INCOMPLETE}"
        )
    return tensors
