"""A tensor in a file of a checkpoint: position, type, and a method to read its values.

    stored = StoredTensor(Path("model.safetensors"), offset=1024, dtype="BF16", shape=(512, 64))
    stored.read()                                  # float32 [512, 64]

Files are read, not mapped: a file truncated meanwhile gives an error instead of SIGBUS, and pages
of the file do not count as memory of the process.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pyggml.files import open_regular
from pyggml.quants.reference import bf16_to_float

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

    def read(self) -> Floats:
        """Return the values as float32.

        Raises:
            ModelError: the file cannot be read, or the type needs scales (FP8).
        """
        if self.dtype.startswith("F8"):
            raise ModelError(
                f"{self.path}: a tensor is {self.dtype}, which is not supported: convert a "
                "checkpoint in 16 or 32 bits"
            )
        span = self.size
        if self.strides is not None and span:
            span = 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        values = self._read_flat(span)
        if self.strides is None or not span:
            return values.reshape(self.shape)
        # the stride of a dimension of size 1 is arbitrary
        strides = [4 * s if n > 1 else 0 for n, s in zip(self.shape, self.strides, strict=True)]
        return np.ascontiguousarray(np.lib.stride_tricks.as_strided(values, self.shape, strides))

    def _read_flat(self, n: int) -> Floats:
        out, dtype = np.empty(n, np.float32), DTYPES[self.dtype]
        try:
            with open_regular(self.path) as file:
                file.seek(self.offset)
                for i in range(0, n, _CHUNK):
                    part = out[i : i + _CHUNK]
                    raw = np.fromfile(file, dtype, part.size)
                    if raw.size != part.size:
                        raise ModelError(f"{self.path}: the file was truncated while reading")
                    with np.errstate(over="ignore"):  # float64 beyond float32 becomes infinite
                        part[...] = bf16_to_float(raw) if self.dtype == "BF16" else raw
        except OSError as error:
            raise ModelError(
                f"{self.path}: cannot be read: {error.strerror or error}; check the disk"
            ) from error
        return out
