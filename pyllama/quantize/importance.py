"""Importance matrices: mean squared inputs of each matrix by column, over a text.

    importance = read_importance("imatrix.gguf")   # or llama.cpp's older .dat
    importance.weights("blk.0.ffn_up.weight")      # float32 [n_experts * n_cols]: mean squares
    write_importance("imatrix.gguf", importance)

GGUF files are llama.cpp's: for each matrix a tensor of sums of squares and a tensor of counts, with
a row per expert. llama.cpp's means and statistics are neither read nor written.
Source: llama.cpp, ``imatrix.cpp`` and ``imatrix-loader.cpp``.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pyggml.dtype import GGMLType
from pyggml.gguf import GGUFFile, GGUFStrings, write_gguf
from pyggml.gguf.mapped import read_bytes

from ..errors import ModelError

Floats = npt.NDArray[np.float32]
_SUMS, _COUNTS = ".in_sum2", ".counts"
_MAGIC = b"GGUF"
# Limits far above any real text, so that sums of merged files stay in the range of float32.
_MAX_SUM, _MAX_COUNT, _MAX_CHUNKS = 1e30, 1e15, 1 << 24


@dataclass
class ImportanceEntry:
    """The sums of one matrix, or of a stack of experts.

    Attributes:
        sums: float32 [n_mat, n], squared inputs, summed over rows.
        counts: float64 [n_mat], number of rows.
    """

    sums: Floats
    counts: npt.NDArray[np.float64]

    def means(self) -> Floats:
        """Return the mean squares, float32 [n_mat, n]; 1 if the count is 0."""
        seen = self.counts > 0
        counts = np.where(seen, self.counts, 1).astype(np.float32)[:, None]
        return np.where(seen[:, None], self.sums / counts, np.float32(1))


@dataclass
class Importance:
    """An importance matrix.

    Attributes:
        entries: by the name of the matrix.
        datasets: names of the texts.
        n_chunks: number of evaluated chunks.
        chunk_size: tokens per chunk; 0 if unknown (then counts are in chunks).
    """

    entries: dict[str, ImportanceEntry] = field(default_factory=dict)
    datasets: list[str] = field(default_factory=list)
    n_chunks: int = 0
    chunk_size: int = 0

    def weights(self, name: str) -> Floats | None:
        """Return the mean squares of a matrix, flattened; None if there are none."""
        entry = self.entries.get(name)
        return None if entry is None else entry.means().reshape(-1)

    def keep(self, predicate: Callable[[str], bool]) -> None:
        """Remove the matrices for whose name ``predicate`` is false."""
        self.entries = {name: e for name, e in self.entries.items() if predicate(name)}

    def add(self, other: Importance) -> None:
        """Add the sums of another importance matrix. Raises: ModelError: sizes differ."""
        self.chunk_size = self.chunk_size or other.chunk_size
        scale = 1 if other.chunk_size else max(self.chunk_size, 1)
        for name, theirs in other.entries.items():
            entry = self.entries.get(name)
            sums, counts = theirs.sums * np.float32(scale), theirs.counts * scale
            if entry is None:
                self.entries[name] = ImportanceEntry(sums, counts)
                continue
            if entry.sums.size != sums.size:
                raise ModelError(
                    f"the importance matrices are of different models: {name!r} has "
                    f"{entry.sums.size} columns in one and {sums.size} in the other"
                )
            n_mat = max(len(entry.counts), len(counts))
            if {len(entry.counts), len(counts)} - {1, n_mat}:
                raise ModelError(
                    f"the importance matrices are of different models: {name!r} has "
                    f"{len(entry.counts)} experts in one and {len(counts)} in the other"
                )
            entry.sums = entry.sums.reshape(n_mat, -1) + sums.reshape(n_mat, -1)
            entry.counts = entry.counts + counts  # one count is broadcast to all experts
        self.datasets += other.datasets
        self.count_chunks()

    def count_chunks(self) -> None:
        """Set ``n_chunks`` from the maximum count of all matrices."""
        rows = max((float(e.counts.max()) for e in self.entries.values()), default=0.0)
        self.n_chunks = round(rows / (self.chunk_size or 1))


def write_importance(path: str | os.PathLike[str], importance: Importance) -> None:
    """Write an importance matrix as a GGUF file. Raises: GGUFError: it cannot be written."""
    tensors = {}
    for name, entry in sorted(importance.entries.items()):
        tensors[name + _SUMS] = np.ascontiguousarray(entry.sums, np.float32)
        tensors[name + _COUNTS] = entry.counts.astype(np.float32)[:, None]
    metadata = {
        "general.type": "imatrix",
        "imatrix.datasets": importance.datasets or GGUFStrings(b"", array("Q", [0])),
        "imatrix.chunk_count": np.uint32(importance.n_chunks),
        "imatrix.chunk_size": np.uint32(importance.chunk_size),
    }
    write_gguf(path, metadata, tensors, arch=None)


def read_importance(path: str | os.PathLike[str]) -> Importance:
    """Return the importance matrix in a GGUF or .dat file.

    Raises:
        ModelError: it is not an importance matrix, or its values are invalid.
        GGUFError: it cannot be read, or is a damaged GGUF file.
    """
    path = Path(path)
    data = read_bytes(path, mmap=True).data.data
    found = _read_gguf(path) if data[: len(_MAGIC)] == _MAGIC else _read_dat(path, data)
    if not found.entries:
        raise ModelError(f"{path}: contains no importance matrix")
    for name, entry in found.entries.items():
        if not (np.isfinite(entry.sums).all() and np.isfinite(entry.counts).all()):
            raise ModelError(f"{path}: {name!r} has NaN or infinity; compute the matrix again")
        if entry.sums.min() < 0 or entry.counts.min() < 0:
            raise ModelError(f"{path}: {name!r} has negative sums; compute the matrix again")
        if entry.sums.max() > _MAX_SUM or entry.counts.max() > _MAX_COUNT:
            raise ModelError(f"{path}: {name!r} has implausibly large sums; compute it again")
    if not (0 <= found.n_chunks <= _MAX_CHUNKS and 0 <= found.chunk_size <= _MAX_CHUNKS):
        raise ModelError(
            f"{path}: {found.n_chunks} chunks of {found.chunk_size} tokens, the limit is "
            f"{_MAX_CHUNKS} each"
        )
    return found


def _read_gguf(path: Path) -> Importance:
    with GGUFFile(path) as file:
        kind = file.get_str("general.type", None)
        if kind != "imatrix":
            raise ModelError(
                f"{path}: is not an importance matrix: general.type is {kind!r}, must be 'imatrix'"
            )
        found = Importance(
            datasets=file.get_strings("imatrix.datasets").tolist(),
            n_chunks=file.get_int("imatrix.chunk_count"),
            chunk_size=file.get_int("imatrix.chunk_size"),
        )
        for name in file.tensors:
            if name.endswith(_SUMS):
                matrix = name.removesuffix(_SUMS)
                sums, counts = _numbers(file, name), _numbers(file, matrix + _COUNTS)
                if not counts.size or not sums.size or sums.size % counts.size:
                    raise ModelError(
                        f"{path}: {matrix!r} has {sums.size} sums and {counts.size} counts"
                    )
                shaped = sums.reshape(counts.size, -1)
                found.entries[matrix] = ImportanceEntry(shaped, np.rint(counts).astype(np.float64))
    return found


def _numbers(file: GGUFFile, name: str) -> Floats:
    info = file.tensors.get(name)
    if info is None or info.type is not GGMLType.F32:
        problem = "is missing" if info is None else f"is {info.type.name}, must be F32"
        raise ModelError(f"{file.path}: tensor {name!r} {problem}")
    values = file.tensor_bytes(name).view(np.float32).copy()
    if not np.isfinite(values).all():  # before arithmetic, which warns for a signalling NaN
        raise ModelError(f"{file.path}: {name!r} has NaN or infinity; compute the matrix again")
    return values


def _read_dat(path: Path, data: memoryview) -> Importance:
    """Read llama.cpp's older format: values are mean * n_calls, a call is a chunk."""
    read = _Cursor(path, data)
    found = Importance()
    for i in range(read.number("the number of entries")):
        name = read.bytes(read.number(), f"the name of entry {i}").decode("utf-8", "replace")
        calls = read.number()
        n = read.number()
        values = np.frombuffer(read.bytes(4 * n, f"the {n} values of {name!r}"), "<f4")
        if not n:
            raise ModelError(f"{path}: {name!r} has no values")
        found.entries[name] = ImportanceEntry(
            values.reshape(1, n).copy(), np.array([float(max(calls, 1))])
        )
    if read.left:
        found.n_chunks = read.number()
    if read.left:
        found.datasets = [read.bytes(read.number(), "the dataset").decode("utf-8", "replace")]
    return found


class _Cursor:
    """Reads numbers and bytes of a file sequentially."""

    def __init__(self, path: Path, data: memoryview) -> None:
        self.path, self.data, self.at = path, data, 0

    @property
    def left(self) -> int:
        """The number of remaining bytes."""
        return len(self.data) - self.at

    def bytes(self, n: int, what: str) -> bytes:
        """Return the next ``n`` bytes; ``what`` is for the message. Raises: ModelError."""
        if not 0 <= n <= self.left:
            raise ModelError(
                f"{self.path}: is not an importance matrix or is truncated: {what} needs {n} "
                f"bytes, {self.left} are left"
            )
        self.at += n
        return bytes(self.data[self.at - n : self.at])

    def number(self, what: str = "a number") -> int:
        """Return the next 32-bit integer. Raises: ModelError."""
        value: int = struct.unpack("<i", self.bytes(4, what))[0]
        return value
