"""Writes a GGUF file atomically.

    write_gguf("x.gguf", {"llama.block_count": 2, "general.name": "tiny"},
               {"token_embd.weight": np.zeros((32, 8), np.float32),        # ne = (8, 32)
                "blk.0.ffn_up.weight": (blocks, GGMLType.Q8_0, (32, 4))},  # bytes, type, ne
               arch="llama")

The file is written under a temporary name in the same folder and then renamed. Data may be an
iterator of pieces, so that memory is needed for one piece only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from ..dtype import GGMLType, from_numpy_dtype, row_size
from ..errors import GGUFError, TypeMismatch
from ..files import replacing
from ..rounding import round_up
from . import limits
from .encode import Entry, encode_header, encode_value
from .header import ALIGNMENT_KEY
from .magic import MAGIC, MAGICS

Pieces = Iterable[bytes | npt.NDArray[Any]]
RawTensor = tuple[bytes | npt.NDArray[Any] | Pieces, GGMLType, Sequence[int]]
Progress = Callable[[float], None]

_ARCHITECTURE = "general.architecture"


def write_gguf(
    path: str | os.PathLike[str],
    metadata: Mapping[str, Any],
    tensors: Mapping[str, npt.NDArray[Any] | RawTensor],
    *,
    arch: str | None = "llama",
    magic: bytes = MAGIC,
    progress: Progress | None = None,
) -> None:
    """Write ``metadata`` and ``tensors`` to ``path``.

    Args:
        metadata: values by key. NumPy scalars and arrays keep their type. A Python int becomes the
            first fitting type of UINT32, INT32, INT64, UINT64 (in a sequence INT32, INT64,
            UINT64), a float FLOAT32, else FLOAT64. A sequence of bool, int, float, str or bytes
            (an encoded string) becomes an array. ``general.alignment`` sets the alignment.
        tensors: NumPy arrays (shape is ne reversed), or (bytes, type, ne) for any ggml type; the
            bytes may be an iterable of pieces, such as ``GGUFFile.chunks``.
        arch: value of ``general.architecture`` if ``metadata`` has none; None: do not write it.
        magic: the first four bytes; ``b"PWRI"`` for PowerInfer.
        progress: called with the written fraction.

    Raises:
        GGUFError: GGUF cannot represent a name, value or size, or the file cannot be written.
        TypeMismatch: ggml has no type for a NumPy dtype.
    """
    path = Path(path)
    if arch is not None and _ARCHITECTURE not in metadata:
        metadata = {_ARCHITECTURE: arch, **metadata}
    if magic not in MAGICS:
        raise GGUFError(
            f"{path}: the magic is {magic!r}, must be one of {', '.join(map(repr, MAGICS))}"
        )
    alignment = _alignment(metadata)
    encoded = {key: encode_value(key, value) for key, value in metadata.items()}
    if ALIGNMENT_KEY in metadata:
        encoded[ALIGNMENT_KEY] = encode_value(ALIGNMENT_KEY, np.uint32(alignment))
    entries = [_entry(name, tensor) for name, tensor in tensors.items()]
    try:
        with replacing(path) as temporary, open(temporary, "wb") as file:
            file.write(encode_header(encoded, entries, alignment, magic))
            total, done = sum(e.nbytes for e in entries) or 1, 0
            for entry, tensor in zip(entries, tensors.values(), strict=True):
                for n in _write_tensor(file, entry, tensor):
                    done += n
                    if progress is not None:
                        progress(done / total)
                file.write(bytes(round_up(entry.nbytes, alignment) - entry.nbytes))
    except OSError as error:
        raise GGUFError(f"{path}: cannot be written: {error.strerror or error}") from error


def _alignment(metadata: Mapping[str, Any]) -> int:
    given = metadata.get(ALIGNMENT_KEY, limits.DEFAULT_ALIGNMENT)
    if not isinstance(given, int | np.integer) or isinstance(given, bool):
        raise GGUFError(f"{ALIGNMENT_KEY} is {given!r:.40}, must be an integer")
    alignment = int(given)
    low, high = limits.MIN_ALIGNMENT, limits.MAX_ALIGNMENT
    if not low <= alignment <= high or alignment & (alignment - 1):
        raise GGUFError(
            f"{ALIGNMENT_KEY} is {alignment}, must be a power of two from {low} to {high} bytes"
        )
    return alignment


def _entry(name: str, tensor: npt.NDArray[Any] | RawTensor) -> Entry:
    if not 0 < len(name.encode()) <= limits.MAX_NAME_BYTES:
        raise GGUFError(f"tensor name {name!r}: {len(name.encode())} bytes, 1 to 63 are legal")
    if isinstance(tensor, np.ndarray):
        found = from_numpy_dtype(tensor.dtype)
        if found is None:
            raise TypeMismatch(f"tensor {name!r}: ggml has no type for NumPy's {tensor.dtype}")
        type, ne = found, tensor.shape[::-1]
    else:
        type, ne = tensor[1], tuple(int(n) for n in tensor[2])
    if len(ne) > limits.MAX_DIMS:
        raise GGUFError(f"tensor {name!r} has {len(ne)} dimensions, at most 4 are legal")
    nbytes = row_size(type, ne[0] if ne else 1) * int(np.prod(ne[1:], dtype=object))
    entry = Entry(name, ne, type, nbytes)
    if not isinstance(tensor, np.ndarray) and isinstance(tensor[0], bytes | np.ndarray):
        _check_size(entry, _flat(tensor[0]).nbytes)  # before anything is written
    return entry


def _write_tensor(
    file: BinaryIO, entry: Entry, tensor: npt.NDArray[Any] | RawTensor
) -> Iterable[int]:
    """Write the data of a tensor, and yield the size of each piece."""
    data = tensor if isinstance(tensor, np.ndarray) else tensor[0]
    written = 0
    for piece in [data] if isinstance(data, bytes | np.ndarray) else data:
        n = file.write(_flat(piece))
        written += n
        yield n
    _check_size(entry, written)


def _flat(data: bytes | npt.NDArray[Any]) -> memoryview:
    """Return the bytes of an array in C order; a view if it is contiguous."""
    if isinstance(data, bytes):
        return memoryview(data)
    return np.ascontiguousarray(data).reshape(-1).view(np.uint8).data


def _check_size(entry: Entry, got: int) -> None:
    if got != entry.nbytes:
        raise GGUFError(
            f"tensor {entry.name!r}: {got} bytes, {entry.type.name} of ne {entry.ne} takes "
            f"{entry.nbytes}"
        )
