"""Write checkpoint files by hand: safetensors, and PyTorch's archives without PyTorch.

write_safetensors(path, {"w": np.zeros((2, 3), np.float32)})
write_torch(path, {"w": np.zeros((2, 3), np.float32)})
write_archive(path, pickle, {"0": data})
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

_DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "uint16": "BF16", "int64": "I64",
    "int32": "I32", "int8": "I8", "uint8": "U8",
}  # fmt: skip
_STORAGES = {"F64": "Double", "F32": "Float", "F16": "Half", "BF16": "BFloat16", "I64": "Long"}
TENSOR = b"ctorch._utils\n_rebuild_tensor_v2\n"
ORDERED_DICT = b"ccollections\nOrderedDict\n"


def header(entries: Mapping[str, Any] | bytes, data: bytes = b"") -> bytes:
    """The bytes of a safetensors file with this header."""
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text + data


class Bytes(NamedTuple):
    """Codes that are written as another type."""

    dtype: str
    codes: np.ndarray


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray | Bytes]) -> Path:
    """Write a file of these tensors; uint16 stands for BF16."""
    entries, data = {}, b""
    for name, tensor in tensors.items():
        x = tensor.codes if isinstance(tensor, Bytes) else tensor
        places = [len(data), len(data) + x.nbytes]
        dtype = tensor.dtype if isinstance(tensor, Bytes) else _DTYPES[x.dtype.name]
        entries[name] = {"dtype": dtype, "shape": list(x.shape), "data_offsets": places}
        data += x.tobytes()
    path.write_bytes(header({"__metadata__": {"format": "pt"}, **entries}, data))
    return path


# --- pickles, opcode by opcode --------------------------------------------------------------------


def text(value: str) -> bytes:
    return b"X" + len(value.encode()).to_bytes(4, "little") + value.encode()


def number(value: int) -> bytes:
    return b"\x8a\x08" + value.to_bytes(8, "little", signed=True)


def numbers(values: tuple[int, ...]) -> bytes:
    return b"(" + b"".join(map(number, values)) + b"t"


def storage(key: str, size: int, dtype: str = "F32") -> bytes:
    kind = f"ctorch\n{_STORAGES[dtype]}Storage\n".encode()
    return b"(" + text("storage") + kind + text(key) + text("cpu") + number(size) + b"tQ"


def tensor(
    key: str, size: int, offset: int, shape: tuple[int, ...], strides: tuple[int, ...],
    dtype: str = "F32",
) -> bytes:  # fmt: skip
    inside = storage(key, size, dtype) + number(offset) + numbers(shape) + numbers(strides)
    return TENSOR + b"(" + inside + b"\x89" + ORDERED_DICT + b")RtR"


def state(**values: bytes) -> bytes:
    """Return a pickled dictionary; its values are already pickled."""
    items = b"".join(text(name) + value for name, value in values.items())
    return b"\x80\x02}(" + items + b"u."


def write_archive(
    path: Path, pickle: bytes, arrays: Mapping[str, bytes], compression: int = zipfile.ZIP_STORED
) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("x/data.pkl", pickle)
        for key, data in arrays.items():
            archive.writestr(f"x/data/{key}", data)
        archive.writestr("x/version", "3\n")
    return path


def write_torch(path: Path, tensors: Mapping[str, np.ndarray]) -> Path:
    """Write a file of these tensors, each with its own storage."""
    items, arrays = {}, {}
    for i, (name, x) in enumerate(tensors.items()):
        strides = tuple(n // x.itemsize for n in x.strides)
        dtype = _DTYPES[x.dtype.name]
        items[name] = tensor(str(i), x.size, 0, x.shape, strides, dtype)
        arrays[str(i)] = x.tobytes()
    return write_archive(path, state(**items), arrays)
