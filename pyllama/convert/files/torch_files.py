"""Reads the table of tensors of a PyTorch file (.bin, .pt): a zip archive of a pickle and arrays.

    tensors = read_torch(Path("pytorch_model.bin"))
    tensors["model.norm.weight"].shape

Guarantees for any input: no code in the file is run (see ``torch_pickle``), and each tensor lies
within its array in the file, or ModelError.
Source: PyTorch, ``torch.serialization``; the zip format.
"""

from __future__ import annotations

import struct
import zipfile
from io import FileIO
from pathlib import Path
from typing import IO, cast

from pyggml.files import open_regular

from ...errors import ModelError
from ...inputs.budget import MAX_PICKLE_BYTES, MAX_SHARED, ReadBudget, shown
from .folder import unreadable
from .safetensors import INCOMPLETE, LFS_POINTER, lfs_error
from .stored import DTYPES, StoredTensor
from .torch_pickle import StorageView, read_pickle

_LOCAL = struct.Struct("<4s22xHH")  # local header of a zip entry: signature, name and extra lengths
_BYTE_ORDER = b"little"
_DAMAGED = (
    zipfile.BadZipFile, ArithmeticError, LookupError, NotImplementedError, RuntimeError,
    ValueError, EOFError, struct.error,
)  # fmt: skip


class _Directory:
    """A file wrapper that charges reads to the budget while the zip directory is read."""

    def __init__(self, file: FileIO, path: Path, budget: ReadBudget) -> None:
        self._file, self._path, self._budget = file, path, budget
        self.counts = True
        self.seek, self.tell, self.seekable = file.seek, file.tell, file.seekable

    def read(self, n: int | None = -1) -> bytes:
        if n is None or n < 0:
            at = self._file.tell()
            n = self._file.seek(0, 2) - at
            self._file.seek(at)
        if self.counts:
            self._budget.take_directory(n, self._path)
        return self._file.read(n)


def read_torch(path: Path, budget: ReadBudget | None = None) -> dict[str, StoredTensor]:
    """Return the tensors of a file by name; a single tensor has the empty name.

    Args:
        budget: limits the size of the table.

    Raises:
        ModelError: the file cannot be read, is damaged, or contains anything but tensors.
    """
    budget = budget or ReadBudget()
    try:
        with open_regular(path) as file:
            if file.read(len(LFS_POINTER)) == LFS_POINTER:
                raise lfs_error(path)
            directory = _Directory(file, path, budget)
            with zipfile.ZipFile(cast("IO[bytes]", directory)) as archive:
                directory.counts = False
                return _read_archive(path, file, archive, budget)
    except ModelError:
        raise
    except OSError as error:
        raise unreadable(path, error) from None
    except _DAMAGED as error:
        raise ModelError(
            f"{path}: not PyTorch's zip format ({error!s:.200}); {INCOMPLETE}, or, if it was "
            "written before PyTorch 1.6, load and save it with a newer PyTorch"
        ) from None


def _read_archive(
    path: Path, file: FileIO, archive: zipfile.ZipFile, budget: ReadBudget
) -> dict[str, StoredTensor]:
    entries = {info.filename: info for info in archive.infolist()}
    roots = [name.removesuffix("data.pkl") for name in entries if name.endswith("/data.pkl")]
    if len(roots) != 1:
        raise ModelError(f"{path}: a zip archive without data.pkl, so not a PyTorch file")
    (root,) = roots
    for info in entries.values():
        stored = info.compress_type == zipfile.ZIP_STORED and not info.flag_bits & 1
        if not stored or info.compress_size != info.file_size:
            raise ModelError(
                f"{path}: {shown(info.filename)} is compressed, which PyTorch never does"
            )
    if entries[f"{root}data.pkl"].file_size > MAX_PICKLE_BYTES:
        raise ModelError(f"{path}: the table of tensors has more than {MAX_PICKLE_BYTES} bytes")
    order = entries.get(f"{root}byteorder")
    if order is not None and (order.file_size > 16 or archive.read(order) != _BYTE_ORDER):
        raise ModelError(
            f"{path}: was written on a big-endian machine: save it on a little-endian one"
        )
    budget.take("bytes", entries[f"{root}data.pkl"].file_size, path)
    views = read_pickle(path, archive.read(f"{root}data.pkl"), budget)
    budget.take("tensors", len(views), path)
    places: dict[str, tuple[int, int]] = {}
    size = file.seek(0, 2)
    for key in {view.storage.key for view in views.values()}:
        if f"{root}data/{key}" not in entries:
            raise ModelError(f"{path}: the array {shown(key)} is missing; {INCOMPLETE}")
        info = entries[f"{root}data/{key}"]
        file.seek(min(info.header_offset, size))
        local = file.read(_LOCAL.size).ljust(_LOCAL.size, b"\0")
        signature, n_name, n_extra = _LOCAL.unpack(local)
        start = info.header_offset + _LOCAL.size + n_name + n_extra
        if signature != b"PK\3\4" or start + info.file_size > size:
            raise ModelError(f"{path}: the array {shown(key)} is incomplete; {INCOMPLETE}")
        places[key] = start, info.file_size
    tensors = {
        name: _stored(path, name, view, *places[view.storage.key]) for name, view in views.items()
    }
    _check_shared(path, tensors, size)
    return tensors


def _check_shared(path: Path, tensors: dict[str, StoredTensor], size: int) -> None:
    """Check that tensors sharing arrays do not expand a small file to a large one.

    Raises:
        ModelError: the tensors are more than ``MAX_SHARED`` times as large as the file.
    """
    total = sum(one.size * DTYPES[one.dtype].itemsize for one in tensors.values())
    if total > MAX_SHARED * size:
        raise ModelError(
            f"{path}: its {len(tensors)} tensors take {total} bytes, more than {MAX_SHARED} times "
            f"the {size} bytes of the file: not a checkpoint"
        )


def _stored(path: Path, name: str, view: StorageView, start: int, nbytes: int) -> StoredTensor:
    itemsize = DTYPES[view.storage.dtype].itemsize
    if view.storage.size * itemsize > nbytes:
        raise ModelError(
            f"{path}: tensor {shown(name)}: its array of {shown(view.storage.size)} "
            f"{view.storage.dtype} has only {nbytes} bytes"
        )
    offset = start + view.offset * itemsize
    strides = None if _is_contiguous(view) else view.strides
    return StoredTensor(path, offset, view.storage.dtype, view.shape, strides)


def _is_contiguous(view: StorageView) -> bool:
    expected = 1
    for n, stride in zip(reversed(view.shape), reversed(view.strides), strict=True):
        if n != 1 and stride != expected:
            return False
        expected *= n
    return True
