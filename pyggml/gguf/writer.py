"""Write a GGUF file through the ``gguf`` package, whole or not at all.

    write_gguf("x.gguf", {"llama.block_count": 2, "general.name": "tiny"},
               {"token_embd.weight": np.zeros((32, 8), np.float32),        # ne = (8, 32)
                "blk.0.ffn_up.weight": (blocks, GGMLType.Q8_0, (32, 4))},  # bytes, type, ne
               arch="llama")

The file is written beside its place under a temporary name and renamed, so nobody sees half of one.
``gguf`` is imported on the first call (0.2 s).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..dtype import GGMLType, from_numpy_dtype, row_size
from ..errors import GGUFError, TypeMismatch
from ..files import replacing
from . import limits
from .header import ALIGNMENT_KEY
from .types import GGUFStrings, ValueType

if TYPE_CHECKING:
    import gguf

RawTensor = tuple[bytes | npt.NDArray[Any], GGMLType, Sequence[int]]
_F32_MAX = float(np.finfo(np.float32).max)
_BY_DTYPE = {t.dtype: t for t in ValueType if t.code}


def write_gguf(
    path: str | os.PathLike[str],
    metadata: Mapping[str, Any],
    tensors: Mapping[str, npt.NDArray[Any] | RawTensor],
    *,
    arch: str = "llama",
) -> None:
    """Write ``metadata`` and ``tensors`` to ``path``.

    Args:
        metadata: values by key. A NumPy scalar or array keeps its type; a Python int becomes
            UINT32, else INT32, UINT64 or INT64, the first that holds it (in a sequence INT32, else
            INT64, UINT64), a float FLOAT32, else FLOAT64; a sequence of bool, int, float, str or
            bytes (a string as it is) becomes an array. ``general.alignment`` is obeyed.
        tensors: NumPy arrays (shape is ne reversed), or (bytes, type, ne) for any ggml type.
        arch: ``general.architecture``, unless ``metadata`` has it.

    Raises:
        GGUFError: a name, value or size that GGUF cannot hold, or the file cannot be written.
        TypeMismatch: a NumPy dtype that ggml has no type for.
    """
    import gguf  # slow to import

    path = Path(path)
    rest = dict(metadata)
    writer = gguf.GGUFWriter(None, rest.pop("general.architecture", arch))
    if ALIGNMENT_KEY in rest:
        writer.add_custom_alignment(int(rest.pop(ALIGNMENT_KEY)))
    for key, value in rest.items():
        _add_value(writer, key, value)
    for name, tensor in tensors.items():
        _add_tensor(writer, name, tensor)
    _write_and_rename(writer, path)


def _write_and_rename(writer: gguf.GGUFWriter, path: Path) -> None:
    try:
        with replacing(path) as temporary:
            try:
                writer.write_header_to_file(temporary)
                writer.write_kv_data_to_file()
                writer.write_tensors_to_file()
            finally:
                writer.close()
    except OSError as error:
        raise GGUFError(f"{path}: cannot be written: {error.strerror or error}") from error


def _add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    from gguf import GGUFValueType

    if not 0 < len(key.encode()) <= limits.MAX_KEY_BYTES:
        raise GGUFError(f"a metadata key of {len(key.encode())} bytes: 1 to 65535 are legal")
    kind, element, plain = _encode(key, value)
    sub_type = None if element is None else GGUFValueType(int(element))
    writer.add_key_value(key, plain, GGUFValueType(int(kind)), sub_type)


def _encode(key: str, value: Any) -> tuple[ValueType, ValueType | None, Any]:
    """(value type, element type of an array, the value in plain Python)."""
    if isinstance(value, np.ndarray | np.generic):
        element = _BY_DTYPE.get(value.dtype.newbyteorder("<"))
        if element is None or value.ndim > 1:
            raise GGUFError(
                f"metadata {key!r}: GGUF has no type for {value.dtype} with {value.ndim} dimensions"
            )
        if value.ndim == 0:
            return element, None, value.item()
        value = value.tolist()
    elif isinstance(value, str | bytes | bool | int | float):
        return _element_type(key, [value], (ValueType.UINT32, ValueType.INT32)), None, _plain(value)
    elif isinstance(value, GGUFStrings | Sequence):
        value = (
            [value.raw(i) for i in range(len(value))] if isinstance(value, GGUFStrings) else value
        )
        element = _element_type(key, value, (ValueType.INT32,)) if len(value) else None
    else:
        raise GGUFError(f"metadata {key!r}: GGUF has no type for {type(value).__name__}")
    if not len(value):
        raise GGUFError(
            f"metadata {key!r} is an empty array, which cannot be written: leave it out"
        )
    return ValueType.ARRAY, element, [_plain(item) for item in value]


def _plain(value: Any) -> Any:
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value


def _element_type(key: str, values: Sequence[Any], ints: tuple[ValueType, ...]) -> ValueType:
    """The type that holds all ``values``, which are of one Python type."""
    kinds = {str if isinstance(v, bytes) else type(v) for v in values}
    if kinds == {str}:
        return ValueType.STRING
    if kinds == {bool}:
        return ValueType.BOOL
    if kinds == {float}:
        fits = all(abs(v) <= _F32_MAX or not np.isfinite(v) for v in values)
        return ValueType.FLOAT32 if fits else ValueType.FLOAT64
    if kinds == {int}:
        for candidate in (*ints, ValueType.INT64, ValueType.UINT64):
            info = np.iinfo(candidate.dtype)
            if info.min <= min(values) and max(values) <= info.max:
                return candidate
        raise GGUFError(f"metadata {key!r}: an integer does not fit 64 bits")
    names = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise GGUFError(f"metadata {key!r}: GGUF has no array of {names}: use bool, int, float or str")


def _add_tensor(writer: gguf.GGUFWriter, name: str, tensor: npt.NDArray[Any] | RawTensor) -> None:
    if not 0 < len(name.encode()) <= limits.MAX_NAME_BYTES:
        raise GGUFError(f"tensor name {name!r}: {len(name.encode())} bytes, 1 to 63 are legal")
    if isinstance(tensor, np.ndarray):
        type = from_numpy_dtype(tensor.dtype)
        if type is None:
            raise TypeMismatch(f"tensor {name!r}: ggml has no type for NumPy's {tensor.dtype}")
        data, ne = tensor, tensor.shape[::-1]
    else:
        raw, type, sizes = tensor
        data, ne = np.frombuffer(raw, np.int8), tuple(int(n) for n in sizes)
        wanted = row_size(type, ne[0] if ne else 1) * int(np.prod(ne[1:], dtype=object))
        if data.size != wanted:
            raise GGUFError(
                f"tensor {name!r}: {data.size} bytes, {type.name} of ne {ne} takes {wanted}"
            )
    if len(ne) > limits.MAX_DIMS:
        raise GGUFError(f"tensor {name!r} has {len(ne)} dimensions, at most 4 are legal")
    # an int8 view and the plain id: the package then takes types that it does not know itself
    flat = np.ascontiguousarray(data).reshape(-1).view(np.int8)
    writer.add_tensor(name, flat, raw_shape=ne[::-1], raw_dtype=int(type))  # type: ignore[arg-type]
