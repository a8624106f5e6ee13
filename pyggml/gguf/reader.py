"""Open a GGUF file: checked metadata, tensor table and the bytes of the tensors.

    with GGUFFile("x.gguf") as f:
        f.get_str("general.architecture")          # 'llama'
        f.tensors["output_norm.weight"].ne         # (576, 1, 1, 1)
        f.tensor_bytes("output_norm.weight")       # uint8 view into the mapped file, zero copy

Opening maps the file and parses its header (about 20 ms for 100,000 vocabulary strings); a file
that is not legal ends in a GGUFError of one line. Metadata owns its memory; ``data`` and
``tensor_bytes`` are views of the mapping, which lives as long as any of them. Read-only, so safe
between threads. If another process truncates a mapped file, touching the lost pages kills the
process (SIGBUS); ``mmap=False`` reads the file into memory instead.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from mmap import ACCESS_READ
from mmap import mmap as MemoryMap
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, TypeVar, overload

import numpy as np
import numpy.typing as npt

from ..errors import AllocError, GGUFError
from .cursor import INCOMPLETE
from .header import parse_header
from .types import GGUFStrings, NumberArray, Value, ValueType

T = TypeVar("T")


class _Required:
    """The default of a getter whose key must be there."""


_REQUIRED = _Required()


class GGUFFile:
    """A GGUF file (version 2 or 3, little endian) that passed every check.

    Args:
        path: the file.
        mmap: map the file (False: read all of it into memory).

    Attributes:
        path: as given.
        version: 2 or 3.
        alignment: of the tensors' data, in bytes.
        metadata: key -> int, float, bool, str, NumPy array (read-only) or ``GGUFStrings``.
        value_types: key -> the type in the file.
        tensors: name -> ``TensorInfo``, in the file's order.
        data_offset: where tensor data begins, in bytes.

    Raises:
        GGUFError: it cannot be opened, is not a GGUF file, is damaged or incomplete.
        AllocError: ``mmap=False`` and the file does not fit into memory.
    """

    def __init__(self, path: str | os.PathLike[str], *, mmap: bool = True) -> None:
        self.path = Path(path)
        self._data: npt.NDArray[np.uint8] | None = _read(self.path, mmap)
        header = parse_header(self._data, str(self.path))
        self.version = header.version
        self.alignment = header.alignment
        self.metadata: Mapping[str, Value] = MappingProxyType(header.metadata)
        self.value_types: Mapping[str, ValueType] = MappingProxyType(header.value_types)
        self.tensors = header.tensors
        self.data_offset = header.data_offset

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, mmap: bool = True) -> Self:
        """The same as the constructor."""
        return cls(path, mmap=mmap)

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """The whole file, read-only.

        Raises:
            GGUFError: the file is closed.
        """
        if self._data is None:
            raise GGUFError(f"{self.path}: the file is closed; open it again to read tensors")
        return self._data

    def tensor_bytes(self, name: str) -> npt.NDArray[np.uint8]:
        """The bytes of a tensor: a read-only view, aligned to ``alignment`` within the file.

        Raises:
            GGUFError: there is no such tensor, or the file is closed.
        """
        info = self.tensors.get(name)
        if info is None:
            raise GGUFError(f"{self.path}: no tensor {name!r} among its {len(self.tensors)}")
        return self.data[info.offset : info.offset + info.nbytes]

    def close(self) -> None:
        """Let go of the data; it is unmapped as soon as no view of it is left."""
        self._data = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"<GGUFFile {str(self.path)!r} v{self.version}: {len(self.metadata)} metadata entries, "
            f"{len(self.tensors)} tensors>"
        )

    # --- metadata with the type that the caller needs: without a default the key must be there ----

    @overload
    def get_str(self, key: str) -> str: ...
    @overload
    def get_str(self, key: str, default: T) -> str | T: ...
    def get_str(self, key: str, default: Any = _REQUIRED) -> Any:
        """A string.

        Raises:
            GGUFError: the key is missing and has no default, or the value is of another type.
        """
        return self._get(key, default, str, "a string")

    @overload
    def get_int(self, key: str) -> int: ...
    @overload
    def get_int(self, key: str, default: T) -> int | T: ...
    def get_int(self, key: str, default: Any = _REQUIRED) -> Any:
        """An integer of any width. Raises as ``get_str``."""
        return self._get(key, default, int, "an integer")

    @overload
    def get_float(self, key: str) -> float: ...
    @overload
    def get_float(self, key: str, default: T) -> float | T: ...
    def get_float(self, key: str, default: Any = _REQUIRED) -> Any:
        """A float; an integer counts as one. Raises as ``get_str``."""
        value = self._get(key, default, (float, int), "a float")
        return float(value) if key in self.metadata else value

    @overload
    def get_bool(self, key: str) -> bool: ...
    @overload
    def get_bool(self, key: str, default: T) -> bool | T: ...
    def get_bool(self, key: str, default: Any = _REQUIRED) -> Any:
        """A bool. Raises as ``get_str``."""
        return self._get(key, default, bool, "a bool")

    @overload
    def get_array(self, key: str) -> NumberArray | GGUFStrings: ...
    @overload
    def get_array(self, key: str, default: T) -> NumberArray | GGUFStrings | T: ...
    def get_array(self, key: str, default: Any = _REQUIRED) -> Any:
        """An array of anything. Raises as ``get_str``."""
        return self._get(key, default, (np.ndarray, GGUFStrings), "an array")

    @overload
    def get_numbers(self, key: str) -> NumberArray: ...
    @overload
    def get_numbers(self, key: str, default: T) -> NumberArray | T: ...
    def get_numbers(self, key: str, default: Any = _REQUIRED) -> Any:
        """An array of numbers or bools (NumPy, one dimension). Raises as ``get_str``."""
        return self._get(key, default, np.ndarray, "an array of numbers")

    @overload
    def get_strings(self, key: str) -> GGUFStrings: ...
    @overload
    def get_strings(self, key: str, default: T) -> GGUFStrings | T: ...
    def get_strings(self, key: str, default: Any = _REQUIRED) -> Any:
        """An array of strings. Raises as ``get_str``."""
        return self._get(key, default, GGUFStrings, "an array of strings")

    def _get(self, key: str, default: Any, wanted: type | tuple[type, ...], name: str) -> Any:
        if key not in self.metadata:
            if default is _REQUIRED:
                raise GGUFError(
                    f"{self.path}: metadata key {key!r} is missing ({name} was expected); "
                    f"the file is incomplete for this use: convert the model again"
                )
            return default
        value = self.metadata[key]
        if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
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
        """The metadata as ``write_gguf`` takes it to write the same types again.

        Numbers are NumPy scalars of the width in the file.
        """
        return {
            key: kind.dtype.type(self.metadata[key]) if kind.code else self.metadata[key]
            for key, kind in self.value_types.items()
        }


def _read(path: Path, map_it: bool) -> npt.NDArray[np.uint8]:
    """The file's bytes, read-only; errors of the operating system become one line."""
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise GGUFError(f"{path}: is a directory; name a .gguf file in it")
        if not stat.S_ISREG(mode):  # opening a pipe would block for ever
            raise GGUFError(f"{path}: is not a regular file; name a .gguf file")
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if map_it and size:
                return np.frombuffer(MemoryMap(file.fileno(), size, access=ACCESS_READ), np.uint8)
            data = np.empty(size, np.uint8)
            got = file.readinto(data.data)
    except FileNotFoundError:
        raise GGUFError(f"{path}: no such file; check the path") from None
    except PermissionError:
        raise GGUFError(
            f"{path}: no permission to read the file; check its owner and mode"
        ) from None
    except MemoryError:
        raise AllocError(f"{path}: no memory for the file's {size} bytes; map it instead") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        if isinstance(error, GGUFError):
            raise
        hint = "read it instead of mapping it (mmap=False)" if map_it else "check the disk"
        raise GGUFError(f"{str(path)!r}: cannot be opened: {error}; {hint}") from error
    if got != size:
        raise GGUFError(f"{path}: read {got} of {size} bytes; {INCOMPLETE}")
    data.flags.writeable = False
    return data
