"""Compares two GGUF files: metadata, tensors, and values of tensors.

    found = diff(GGUFFile("a.gguf"), GGUFFile("b.gguf"))
    found.same, found.metadata_changed, found.values["output.weight"].nmse

Values are compared after dequantization, so a file can be compared with its quantized version. The
measures are the maximum difference and NMSE (mean squared error / mean square of the first file).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pyggml.dtype import GGMLType, numpy_dtype
from pyggml.errors import TypeMismatch
from pyggml.gguf import GGUFFile, TensorInfo
from pyggml.gguf.encode import encode_value
from pyggml.gguf.split import whole_metadata
from pyggml.quants import dequantize

from ..runtime.loader import Progress
from .describe import type_name

_STEP = 1 << 20  # elements at a time, a multiple of every block size
Pair = tuple[Any, Any]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class ValueChange:
    """Differences of the values of a tensor.

    Attributes:
        n_changed: number of elements that differ, -1 if a type cannot be dequantized.
        max_abs: the maximum absolute difference.
        nmse: mean squared difference over the mean square of the first file's values.
    """

    n_changed: int
    max_abs: float
    nmse: float


@dataclass
class Diff:
    """The differences of two files; values of ``*_changed`` are pairs (first, second).

    Attributes:
        magic: the magic bytes, if they differ.
        metadata_types: type names of changed values whose types differ.
        n_equal: number of tensors with equal type, shape and bytes.
    """

    magic: tuple[str, str] | None = None
    metadata_added: dict[str, Any] = field(default_factory=dict)
    metadata_removed: dict[str, Any] = field(default_factory=dict)
    metadata_changed: dict[str, Pair] = field(default_factory=dict)
    metadata_types: dict[str, tuple[str, str]] = field(default_factory=dict)
    tensors_added: list[TensorInfo] = field(default_factory=list)
    tensors_removed: list[TensorInfo] = field(default_factory=list)
    tensors_changed: dict[str, tuple[TensorInfo, TensorInfo]] = field(default_factory=dict)
    values: dict[str, ValueChange] = field(default_factory=dict)
    n_equal: int = 0

    @property
    def same(self) -> bool:
        """Whether there are no differences."""
        metadata = self.metadata_added or self.metadata_removed or self.metadata_changed
        tensors = self.tensors_added or self.tensors_removed or self.tensors_changed
        return not (self.magic or metadata or tensors or self.values)


def diff(
    a: GGUFFile, b: GGUFFile, *, values: bool = True, progress: Progress | None = None
) -> Diff:
    """Return the differences of two files; the split into parts is ignored.

    Args:
        values: also compare the values of tensors, which reads both files.
        progress: called with the completed fraction.
    """
    found = Diff()
    if a.magic != b.magic:
        found.magic = a.magic.decode(), b.magic.decode()
    _diff_metadata(a, b, found)
    found.tensors_added = [info for name, info in b.tensors.items() if name not in a.tensors]
    found.tensors_removed = [info for name, info in a.tensors.items() if name not in b.tensors]
    both = [(info, b.tensors[name]) for name, info in a.tensors.items() if name in b.tensors]
    found.tensors_changed = {x.name: (x, y) for x, y in both if (x.ne, x.type) != (y.ne, y.type)}
    comparable = [(x, y) for x, y in both if values and x.ne == y.ne]
    total, done = sum(x.nbytes for x, _ in comparable) or 1, 0
    for x, y in comparable:
        change = _diff_values(a, b, x, y)
        if change is not None:
            found.values[x.name] = change
        elif x.type is y.type:
            found.n_equal += 1
        done += x.nbytes
        if progress is not None:
            progress(done / total)
    return found


def _diff_metadata(a: GGUFFile, b: GGUFFile, found: Diff) -> None:
    ours, theirs = whole_metadata(a), whole_metadata(b)
    found.metadata_added = {k: b.metadata[k] for k in theirs if k not in ours}
    found.metadata_removed = {k: a.metadata[k] for k in ours if k not in theirs}
    found.metadata_changed = {
        k: (a.metadata[k], b.metadata[k])
        for k in ours
        if k in theirs and encode_value(k, ours[k]) != encode_value(k, theirs[k])
    }
    types = {k: (type_name(a, k), type_name(b, k)) for k in found.metadata_changed}
    found.metadata_types = {k: pair for k, pair in types.items() if pair[0] != pair[1]}


def _diff_values(a: GGUFFile, b: GGUFFile, x: TensorInfo, y: TensorInfo) -> ValueChange | None:
    """Return the differences of a tensor's values, None if they are equal."""
    if x.type is y.type and all(np.array_equal(left, other) for left, other in _pieces(a, b, x, y)):
        return None
    n_changed, max_abs, error, power = 0, 0.0, 0.0, 0.0
    try:
        for left, other in _pieces(a, b, x, y):
            with np.errstate(invalid="ignore", over="ignore"):  # infinity minus infinity
                first, second = _numbers(left, x.type), _numbers(other, y.type)
                delta = np.abs(first - second)
                n_changed += int(np.count_nonzero(first != second))
                max_abs = float(np.maximum(max_abs, delta.max(initial=0)))
                error += float(delta @ delta)
                power += float(first @ first)
    except TypeMismatch:
        return ValueChange(-1, np.nan, np.nan)
    if not n_changed and x.type is not y.type:
        return None
    return ValueChange(n_changed, max_abs, error / power if power else np.inf if error else 0.0)


def _pieces(
    a: GGUFFile, b: GGUFFile, x: TensorInfo, y: TensorInfo
) -> Iterator[tuple[Bytes, Bytes]]:
    """Yield the corresponding bytes of both files, ``_STEP`` elements at a time."""
    return zip(a.chunks(x.name, _bytes(x)), b.chunks(y.name, _bytes(y)), strict=True)


def _bytes(info: TensorInfo) -> int:
    """Return the size of ``_STEP`` elements."""
    return _STEP // info.type.block_size * info.type.type_size


def _numbers(data: Bytes, type: GGMLType) -> npt.NDArray[np.float64]:
    """Return dequantized values. Raises: TypeMismatch: the type cannot be dequantized."""
    dtype = numpy_dtype(type)
    if dtype is not None and type is not GGMLType.BF16:
        return np.ascontiguousarray(data).view(dtype).astype(np.float64)
    return dequantize(data, type).astype(np.float64)
