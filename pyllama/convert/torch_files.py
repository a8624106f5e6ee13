"""Read the table of a PyTorch file (.bin, .pt): a zip archive of a pickle and of flat arrays.

    tensors = read_torch(Path("pytorch_model.bin"))
    tensors["model.norm.weight"].shape

Promises, for any bytes whatever: no code in the file is run (see ``torch_pickle``), and each tensor
lies within its array in the file, or ModelError.
Source: PyTorch, ``torch.serialization``; the zip format.
"""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

from ..errors import ModelError
from .safetensors import INCOMPLETE, LFS_POINTER, lfs_error
from .stored import DTYPES, Stored
from .torch_pickle import View, read_pickle

_MAX_PICKLE_BYTES = 64 << 20  # a table of 10,000 tensors has 2 MB
_LOCAL = struct.Struct("<4s22xHH")  # a zip entry's own header: signature, lengths of name and extra
_DAMAGED = (
    zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, EOFError, struct.error,
)  # fmt: skip


def read_torch(path: Path) -> dict[str, Stored]:
    """The tensors of a file, by name; one on its own has the empty name.

    Raises:
        ModelError: it cannot be read, is damaged, or holds anything but tensors.
    """
    try:
        with open(path, "rb") as file:
            if file.read(len(LFS_POINTER)) == LFS_POINTER:
                raise lfs_error(path)
        with zipfile.ZipFile(path) as archive:
            return _read_archive(path, archive)
    except ModelError:
        raise
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from None
    except _DAMAGED as error:
        raise ModelError(
            f"{path}: not PyTorch's zip format ({error}); {INCOMPLETE}, or, if it is of before "
            "PyTorch 1.6, load and save it there once"
        ) from None


def _read_archive(path: Path, archive: zipfile.ZipFile) -> dict[str, Stored]:
    entries = {info.filename: info for info in archive.infolist()}
    roots = [name.removesuffix("data.pkl") for name in entries if name.endswith("/data.pkl")]
    if len(roots) != 1:
        raise ModelError(f"{path}: a zip archive, but not of PyTorch: no data.pkl in it")
    (root,) = roots
    for info in entries.values():
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            raise ModelError(f"{path}: {info.filename!r:.80} is compressed, PyTorch's never are")
    if entries[f"{root}data.pkl"].file_size > _MAX_PICKLE_BYTES:
        raise ModelError(f"{path}: the table of tensors takes more than {_MAX_PICKLE_BYTES} bytes")
    if f"{root}byteorder" in entries and archive.read(f"{root}byteorder") != b"little":
        raise ModelError(f"{path}: was written on a big-endian machine: save it on another")
    views = read_pickle(path, archive.read(f"{root}data.pkl"))
    places: dict[str, tuple[int, int]] = {}
    with open(path, "rb") as file:
        size = file.seek(0, 2)
        for key in {view.storage.key for view in views.values()}:
            if f"{root}data/{key}" not in entries:
                raise ModelError(f"{path}: the array {key!r:.40} is missing in it; {INCOMPLETE}")
            info = entries[f"{root}data/{key}"]
            file.seek(info.header_offset)
            signature, n_name, n_extra = _LOCAL.unpack(file.read(_LOCAL.size))
            start = info.header_offset + _LOCAL.size + n_name + n_extra
            if signature != b"PK\3\4" or start + info.file_size > size:
                raise ModelError(f"{path}: the array {key!r:.40} is not whole; {INCOMPLETE}")
            places[key] = start, info.file_size
    return {
        name: _stored(path, name, view, *places[view.storage.key]) for name, view in views.items()
    }


def _stored(path: Path, name: str, view: View, start: int, nbytes: int) -> Stored:
    itemsize = DTYPES[view.storage.dtype].itemsize
    if view.storage.size * itemsize > nbytes:
        raise ModelError(
            f"{path}: tensor {name!r:.80}: an array of {view.storage.size} {view.storage.dtype} "
            f"has only {nbytes} bytes"
        )
    offset = start + view.offset * itemsize
    strides = None if _is_contiguous(view) else view.strides
    return Stored(path, offset, view.storage.dtype, view.shape, strides)


def _is_contiguous(view: View) -> bool:
    wanted = 1
    for n, stride in zip(reversed(view.shape), reversed(view.strides), strict=True):
        if n != 1 and stride != wanted:
            return False
        wanted *= n
    return True
