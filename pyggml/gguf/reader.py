"""Opens a GGUF file: metadata, tensor table and the bytes of the tensors, all checked.

    with GGUFFile("x.gguf") as f:
        f.get_str("general.architecture")          # 'llama'
        f.tensors["output_norm.weight"].ne         # (576, 1, 1, 1)
        f.tensor_bytes("output_norm.weight")       # uint8 view into the mapped file, zero copy

Opening maps the file and parses its header; an invalid file raises GGUFError. The first file of a
split model opens all parts; only ``TensorInfo.part`` shows the difference. Metadata has its own
memory. ``tensor_bytes`` returns views of the mapping, which lives as long as any view. Read-only
and thread-safe. If another process truncates a mapped file, the next access by name raises
GGUFError, but accessing lost pages through an old view kills the process (SIGBUS); ``mmap=False``
reads the file into memory instead.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, TypeVar, overload

import numpy as np
import numpy.typing as npt

from ..errors import GGUFError
from .mapped import Mapped
from .parts import all_tensors, read_parts
from .types import GGUFStrings, NumberArray, Value, ValueType, fits, natural_type

T = TypeVar("T")


class _Required:
    """The default of a getter without a default: the key is required."""


_REQUIRED = _Required()


class GGUFFile:
    """A checked GGUF file (version 2 or 3, little endian), or all parts of a split model.

    Args:
        path: the file, or the first file of a split model (``x-00001-of-00003.gguf``).
        mmap: map the file; False reads it into memory.

    Attributes:
        path: as given.
        magic: the first four bytes, ``GGUF``, or ``PWRI`` as PowerInfer has it.
        version: 2 or 3.
        alignment: alignment of the tensors' data in bytes.
        metadata: key -> int, float, bool, str, NumPy array (read-only) or ``GGUFStrings``.
        value_types: key -> the type in the file.
        value_offsets: key -> byte offset of its value (after the type) in the (first) file.
        tensors: name -> ``TensorInfo``, in the file's order.
        data_offset: byte offset of the tensor data in the (first) file.

    Raises:
        GGUFError: it cannot be opened, is not a GGUF file, is damaged or incomplete.
        AllocError: ``mmap=False`` and the file does not fit into memory.
    """

    def __init__(self, path: str | os.PathLike[str], *, mmap: bool = True) -> None:
        self.path = Path(path)
        parts = read_parts(self.path, mmap=mmap)
        self._parts: tuple[Mapped, ...] = tuple(mapped for mapped, _ in parts)
        header = parts[0][1]
        self.magic = header.magic
        self.version = header.version
        self.alignment = header.alignment
        self.metadata: Mapping[str, Value] = MappingProxyType(header.metadata)
        self.value_types: Mapping[str, ValueType] = MappingProxyType(header.value_types)
        self.value_offsets: Mapping[str, int] = MappingProxyType(header.value_offsets)
        self.tensors = all_tensors(parts)
        self.data_offset = header.data_offset

    @property
    def parts(self) -> tuple[Mapped, ...]:
        """The files, in order: ``path`` and ``data`` (all bytes, read-only) of each.

        Raises:
            GGUFError: the file is closed.
        """
        if not self._parts:
            raise GGUFError(f"{self.path}: the file is closed; open it again to read tensors")
        return self._parts

    def tensor_bytes(self, name: str) -> npt.NDArray[np.uint8]:
        """Return the bytes of a tensor: a read-only view, aligned to ``alignment`` in its file.

        Raises:
            GGUFError: there is no such tensor, the file is closed, or was truncated meanwhile.
        """
        info = self.tensors.get(name)
        if info is None:
            raise GGUFError(f"{self.path}: no tensor {name!r} among its {len(self.tensors)}")
        part = self.parts[info.part]
        part.check()
        return part.data[info.offset : info.offset + info.nbytes]

    def chunks(
        self, name: str, max_bytes: int = 8 << 20, *, unit: int | None = None
    ) -> Iterator[npt.NDArray[np.uint8]]:
        """Yield the bytes of a tensor in pieces, for one pass over a large file.

        The pages of a mapped file are released after each piece, so memory use is small.

        Args:
            max_bytes: maximum size of a piece.
            unit: pieces are multiples of this size in bytes; None: the type's block.

        Raises:
            GGUFError: as ``tensor_bytes``.
        """
        data, info = self.tensor_bytes(name), self.tensors[name]
        part, unit = self.parts[info.part], unit or info.type.type_size
        step = max(max_bytes // unit, 1) * unit
        for start in range(0, info.nbytes, step):
            piece = data[start : start + step]
            part.check()
            yield piece
            part.release(info.offset + start, info.offset + start + piece.size)

    def override(self, values: Mapping[str, bool | int | float | str]) -> None:
        """Change or add metadata in memory (no arrays); the file is not changed.

        Raises:
            GGUFError: a value has another type than in the file.
        """
        for key, value in values.items():
            simple = isinstance(value, bool | int | float | str)
            if not simple or not fits(self.value_types.get(key, natural_type(value)), value):
                new = key not in self.value_types
                has = "can be int (64 bits), float, bool or str" if new else f"is {self._kind(key)}"
                raise GGUFError(
                    f"{self.path}: metadata key {key!r} {has}: it cannot be overridden with "
                    f"{type(value).__name__} {value!r:.80}"
                )
        added = {k: natural_type(v) for k, v in values.items() if k not in self.value_types}
        self.metadata = MappingProxyType({**self.metadata, **values})
        self.value_types = MappingProxyType({**self.value_types, **added})

    def close(self) -> None:
        """Release the data; it is unmapped when no view is left."""
        self._parts = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"<GGUFFile {str(self.path)!r} v{self.version}: {len(self.metadata)} metadata entries, "
            f"{len(self.tensors)} tensors>"
        )

    # --- metadata of a required type; without a default the key must exist ------------------------

    @overload
    def get_str(self, key: str) -> str: ...
    @overload
    def get_str(self, key: str, default: T) -> str | T: ...
    def get_str(self, key: str, default: Any = _REQUIRED) -> Any:
        """Return a string.

        Raises:
            GGUFError: the key is missing and there is no default, or the value has another type.
        """
        return self._get(key, default, str, "a string")

    @overload
    def get_int(self, key: str) -> int: ...
    @overload
    def get_int(self, key: str, default: T) -> int | T: ...
    def get_int(self, key: str, default: Any = _REQUIRED) -> Any:
        """Return an integer of any width. Raises as ``get_str``."""
        return self._get(key, default, int, "an integer")

    @overload
    def get_float(self, key: str) -> float: ...
    @overload
    def get_float(self, key: str, default: T) -> float | T: ...
    def get_float(self, key: str, default: Any = _REQUIRED) -> Any:
        """Return a float, also for an integer value. Raises as ``get_str``."""
        value = self._get(key, default, (float, int), "a float")
        return float(value) if key in self.metadata else value

    @overload
    def get_bool(self, key: str) -> bool: ...
    @overload
    def get_bool(self, key: str, default: T) -> bool | T: ...
    def get_bool(self, key: str, default: Any = _REQUIRED) -> Any:
        """Return a bool. Raises as ``get_str``."""
        return self._get(key, default, bool, "a bool")

    @overload
    def get_numbers(self, key: str) -> NumberArray: ...
    @overload
    def get_numbers(self, key: str, default: T) -> NumberArray | T: ...
    def get_numbers(self, key: str, default: Any = _REQUIRED) -> Any:
        """Return an array of numbers or bools (NumPy, one dimension). Raises as ``get_str``."""
        return self._get(key, default, np.ndarray, "an array of numbers")

    @overload
    def get_strings(self, key: str) -> GGUFStrings: ...
    @overload
    def get_strings(self, key: str, default: T) -> GGUFStrings | T: ...
    def get_strings(self, key: str, default: Any = _REQUIRED) -> Any:
        """Return an array of strings. Raises as ``get_str``."""
        return self._get(key, default, GGUFStrings, "an array of strings")

    def _get(self, key: str, default: Any, types: type | tuple[type, ...], name: str) -> Any:
        if key not in self.metadata:
            if default is _REQUIRED:
                raise GGUFError(
                    f"{self.path}: metadata key {key!r} is missing ({name} was expected); "
                    f"the file is incomplete for this use: convert the model again"
                )
            return default
        value = self.metadata[key]
        if not isinstance(value, types) or (isinstance(value, bool) and types is not bool):
            raise GGUFError(
                f"{self.path}: metadata key {key!r} is {self._kind(key)}, expected {name}; "
                f"the file is damaged or was converted wrongly"
            )
        return value

    def _kind(self, key: str) -> str:
        value = self.metadata[key]
        if isinstance(value, np.ndarray):
            return f"an array of {value.size} {value.dtype.name}"
        if isinstance(value, GGUFStrings):
            return f"an array of {len(value)} strings"
        return f"{self.value_types[key].name} {value!r:.80}"

    def typed_metadata(self) -> dict[str, Any]:
        """Return the metadata for ``write_gguf``, with the types of the file.

        Numbers are NumPy scalars of the width in the file.
        """
        return {
            key: kind.dtype.type(self.metadata[key]) if kind.code else self.metadata[key]
            for key, kind in self.value_types.items()
        }
