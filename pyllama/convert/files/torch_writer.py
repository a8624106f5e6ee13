"""Writes a PyTorch file (.pt) without PyTorch: one tensor, or a dictionary of tensors.

    write_torch("activation_0.pt", np.zeros(11008, np.int64))
    write_torch("model_0.pt", {"fc1.weight": fc1, "fc2.weight": fc2})

``torch.load`` (also with ``weights_only=True``) and ``read_torch`` can read it. The same values
give the same bytes. The file is written atomically.
Source: PyTorch, ``torch.serialization`` and ``torch._utils``; Python's ``pickletools``.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pyggml.errors import TypeMismatch
from pyggml.files import replacing

Array = npt.NDArray[Any]
_STORAGES = {
    "float64": "Double", "float32": "Float", "float16": "Half", "int64": "Long", "int32": "Int",
    "int16": "Short", "int8": "Char", "uint8": "Byte", "bool": "Bool",
}  # fmt: skip
_ROOT = "archive"
_DATE = (1980, 1, 1, 0, 0, 0)  # the earliest date in a zip archive


def write_torch(path: str | os.PathLike[str], tensors: Array | Mapping[str, Array]) -> None:
    """Write a tensor, or tensors by name.

    Raises:
        TypeMismatch: PyTorch has no storage for a NumPy dtype.
        OSError: the file cannot be written.
    """
    named = tensors if isinstance(tensors, Mapping) else {"": tensors}
    arrays = [np.asarray(x, order="C") for x in named.values()]
    pickled = [_tensor(str(i), x) for i, x in enumerate(arrays)]
    if isinstance(tensors, Mapping):
        items = (_text(name) + value for name, value in zip(named, pickled, strict=True))
        root = b"}(" + b"".join(items) + b"u"
    else:
        (root,) = pickled
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        _add(archive, "data.pkl", b"\x80\x02" + root + b".")
        _add(archive, "byteorder", b"little")
        for i, x in enumerate(arrays):
            _add(archive, f"data/{i}", x.astype(x.dtype.newbyteorder("<"), copy=False).tobytes())
        _add(archive, "version", b"3\n")


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    info = zipfile.ZipInfo(f"{_ROOT}/{name}", _DATE)
    info.create_system = 3  # Unix, on every system
    archive.writestr(info, data)


# Pickle opcodes: c global, ( mark, t tuple since the mark, Q persistent id, R call, ) empty tuple,
# X string, \x8a integer of 8 bytes, \x89 False, } empty dictionary, u set items since the mark


def _tensor(key: str, x: Array) -> bytes:
    """Pickle ``_rebuild_tensor_v2(storage, offset, shape, strides, requires_grad, hooks)``."""
    strides = tuple(n // x.itemsize for n in x.strides)
    places = _number(0) + _numbers(x.shape) + _numbers(strides)
    inside = _storage(key, x) + places + b"\x89" + b"ccollections\nOrderedDict\n)R"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + inside + b"tR"


def _storage(key: str, x: Array) -> bytes:
    kind = _STORAGES.get(x.dtype.name)
    if kind is None:
        raise TypeMismatch(
            f"PyTorch has no storage for NumPy's {x.dtype}; supported are {', '.join(_STORAGES)}"
        )
    name = f"ctorch\n{kind}Storage\n".encode()
    return b"(" + _text("storage") + name + _text(key) + _text("cpu") + _number(x.size) + b"tQ"


def _text(value: str) -> bytes:
    return b"X" + len(value.encode()).to_bytes(4, "little") + value.encode()


def _number(value: int) -> bytes:
    return b"\x8a\x08" + value.to_bytes(8, "little", signed=True)


def _numbers(values: tuple[int, ...]) -> bytes:
    return b"(" + b"".join(map(_number, values)) + b"t"
