"""A tensor in a file of a checkpoint: position, type, and methods to read its values.

    stored = StoredTensor(Path("model.safetensors"), offset=1024, dtype="BF16", shape=(512, 64))
    stored.read()                                  # float32 [512, 64]
    stored.raw()                                   # uint16 [512, 64]

Files are read, not mapped: a file truncated meanwhile gives an error instead of SIGBUS, and pages
of the file do not count as memory of the process.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pyggml.files import open_regular

from ...errors import ModelError

Floats = npt.NDArray[np.float32]

# safetensors' names -> NumPy type of the raw data
DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(dtype)
    for name, dtype in {
        "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2",
        "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
        "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "u1",
        "F8_E4M3": "u1", "F8_E5M2": "u1", "F8_E8M0": "u1",
    }.items()
}  # fmt: skip
_CHUNK = 1 << 20  # elements converted at a time
_BYTES = np.arange(256, dtype=np.uint8)


def _e4m3() -> Floats:
    """The 256 values of F8_E4M3: a sign, 4 bits of exponent, 3 of mantissa; no infinity."""
    exponent, mantissa = (_BYTES >> 3 & 15).astype(np.int32), (_BYTES & 7).astype(np.float32)
    x = np.where(exponent, np.ldexp(1 + mantissa / 8, exponent - 7), np.ldexp(mantissa / 8, -6))
    x[_BYTES & 127 == 127] = np.nan
    return np.where(_BYTES & 128, -x, x).astype(np.float32)


def _e8m0() -> Floats:
    """The 256 values of F8_E8M0, powers of two without a sign."""
    exponent = np.minimum(_BYTES, 254).astype(np.int32) - 127
    return np.where(_BYTES == 255, np.float32(np.nan), np.ldexp(np.float32(1), exponent))


_E5M2 = (_BYTES.astype(np.uint16) << 8).view(np.float16).astype(np.float32)  # half a float16
# Source: OCP 8-bit Floating Point Specification 1.0; OCP Microscaling Formats 1.0
_EIGHT_BITS = {"F8_E4M3": _e4m3(), "F8_E5M2": _E5M2, "F8_E8M0": _e8m0()}


def _floats(raw: npt.NDArray[Any], dtype: str) -> Any:
    """Return values, or codes of values, in a NumPy type that casts to float32."""
    if dtype in _EIGHT_BITS:
        return _EIGHT_BITS[dtype][raw]
    if dtype == "BF16":
        return (raw.astype(np.uint32) << 16).view(np.float32)
    return raw


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file.

    Attributes:
        path: the file.
        offset: byte offset of its first element.
        dtype: a key of ``DTYPES``.
        shape: NumPy order.
        strides: in elements; None if contiguous.
    """

    path: Path
    offset: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def dtypes(self) -> frozenset[str]:
        """The types of all that the values are made of."""
        return frozenset({self.dtype})

    def read(self) -> Floats:
        """Return the values as float32. Raises: ModelError: the file cannot be read."""
        return self._shaped(np.float32)

    def raw(self) -> npt.NDArray[Any]:
        """Return the values in the type of the file. Raises: ModelError: it cannot be read."""
        return self._shaped(DTYPES[self.dtype])

    def equals(self, other: StoredTensor) -> bool:
        """Return whether the other has the same type, shape and bytes. Raises: ModelError."""
        if (self.path, self.offset) == (other.path, other.offset):
            return self == other
        alike = (self.dtype, self.shape, self.strides) == (other.dtype, other.shape, other.strides)
        parts = zip(self._parts(self._span), other._parts(self._span), strict=True)
        return alike and all(np.array_equal(a.view("u1"), b.view("u1")) for a, b in parts)

    @property
    def _span(self) -> int:
        """The number of elements in the file from the first to the last."""
        if self.strides is None or not self.size:
            return self.size
        return 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))

    def _shaped(self, type: npt.DTypeLike) -> npt.NDArray[Any]:
        values = self._read_flat(self._span, type)
        if self.strides is None or not self.size:
            return values.reshape(self.shape)
        # the stride of a dimension of size 1 is arbitrary
        size = values.itemsize
        strides = [size * s if n > 1 else 0 for n, s in zip(self.shape, self.strides, strict=True)]
        return np.ascontiguousarray(np.lib.stride_tricks.as_strided(values, self.shape, strides))

    def _read_flat(self, n: int, type: npt.DTypeLike) -> npt.NDArray[Any]:
        out, start = np.empty(n, type), 0
        for raw in self._parts(n):
            part = out[start : start + raw.size]
            with np.errstate(over="ignore"):  # float64 beyond float32 becomes infinite
                part[...] = raw if out.dtype == raw.dtype else _floats(raw, self.dtype)
            start += raw.size
        return out

    def _parts(self, n: int) -> Iterator[npt.NDArray[Any]]:
        """Yield the first ``n`` elements, in the type of the file."""
        try:
            with open_regular(self.path) as file:
                file.seek(self.offset)
                for i in range(0, n, _CHUNK):
                    wanted = min(_CHUNK, n - i)
                    raw = np.fromfile(file, DTYPES[self.dtype], wanted)
                    if raw.size != wanted:
                        raise ModelError(f"{self.path}: the file was truncated while reading")
                    yield raw
        except OSError as error:
            raise ModelError(
                f"{self.path}: cannot be read: {error.strerror or error}; check the disk"
            ) from error
