"""Reads the pickle in a PyTorch file; it can build tensors and nothing else.

    views = read_pickle(Path("pytorch_model.bin"), data)
    views["model.norm.weight"].shape

This is not Python's unpickler: it interprets only the two dozen opcodes that a state dict needs, on
dictionaries, lists, tuples, strings and numbers. Global names are looked up in a table and never
imported; all others are refused. Time and memory are linear in ``data`` and limited by a budget:
nested tuples, whose expansion may be exponential, are never traversed.
Source: Python's ``pickletools``; PyTorch, ``torch._utils`` and ``torch.serialization``.
"""

from __future__ import annotations

import math
import pickletools
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import ModelError
from ...inputs.budget import OPCODE_VALUES, ReadBudget, shown

_STORAGES = {
    "DoubleStorage": "F64",
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "LongStorage": "I64",
    "IntStorage": "I32",
    "ShortStorage": "I16",
    "CharStorage": "I8",
    "ByteStorage": "U8",
    "BoolStorage": "BOOL",
}
_NUMBERS = ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT")
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_OPCODES = {
    "PROTO", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "MARK", "TUPLE", "BINUNICODE", "BINPUT",
    "LONG_BINPUT", "BINGET", "LONG_BINGET", "SETITEM", "SETITEMS", "APPEND", "APPENDS", "GLOBAL",
    "BINPERSID", "REDUCE", "BUILD", "STOP", *_NUMBERS, *_CONSTANTS, *_TUPLES,
}  # fmt: skip
_CODES = {opcode.code: opcode for opcode in pickletools.opcodes}
_MAX_DIMS = 8
_COUNTED = 256  # opcodes charged to the budget at a time, in advance


class Storage(NamedTuple):
    """A flat array: type (safetensors' name), file in the archive, number of elements."""

    dtype: str
    key: str
    size: int


class StorageView(NamedTuple):
    """A tensor: part of a storage; offset and strides in elements."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _GlobalName(NamedTuple):
    """A global name in a pickle, in place of the Python object."""

    text: str


_DICT = _GlobalName("collections OrderedDict")
_TENSOR = _GlobalName("torch._utils _rebuild_tensor_v2")
_PARAMETER = _GlobalName("torch._utils _rebuild_parameter")
_NAMES = {_DICT, _TENSOR, _PARAMETER} | {_GlobalName(f"torch {name}") for name in _STORAGES}


def read_pickle(path: Path, data: bytes, budget: ReadBudget) -> dict[str, StorageView]:
    """Return the tensors of a state dict by name, without other entries.

    A single tensor, as ``torch.save(tensor)`` writes it, has the empty name.

    Args:
        path: for messages.
        budget: limits the number of opcodes.

    Raises:
        ModelError: the pickle is damaged, or builds anything but tensors.
    """
    try:
        root = _Machine().run(path, data, budget)
    except ModelError as error:
        text = str(error).removeprefix(f"{path}: ")
        raise ModelError(f"{path}: {text}") from None
    except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError) as error:
        problem = f"{type(error).__name__}: {error!s:.80}"
        raise ModelError(f"{path}: its pickle is damaged ({problem})") from None
    if isinstance(root, StorageView):
        return {"": root}
    if not isinstance(root, dict):
        raise ModelError(f"{path}: contains {_kind(root)}, must be a dictionary of tensors")
    return {k: v for k, v in root.items() if isinstance(k, str) and isinstance(v, StorageView)}


class _Machine:
    """The pickle machine: a stack, its marks, and a memo."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self, path: Path, data: bytes, budget: ReadBudget) -> Any:
        """Return the object that the pickle builds.

        Raises:
            ModelError: the pickle uses something that is not allowed.
            ValueError, LookupError, TypeError: the pickle is damaged.
        """
        push = self.stack.append
        left = _COUNTED
        budget.take("values", _COUNTED * OPCODE_VALUES, path)
        for name, arg in _steps(data):
            left -= 1
            if not left:
                budget.take("values", _COUNTED * OPCODE_VALUES, path)
                left = _COUNTED
            match name:
                case "PROTO":
                    pass
                case "EMPTY_DICT":
                    push({})
                case "EMPTY_LIST":
                    push([])
                case "EMPTY_TUPLE":
                    push(())
                case "MARK":
                    self.marks.append(len(self.stack))
                case "TUPLE":
                    push(tuple(self._to_mark()))
                case "TUPLE1" | "TUPLE2" | "TUPLE3":
                    push(tuple(self._pop(_TUPLES[name])))
                case "BINUNICODE":
                    push(arg)
                case _ if name in _NUMBERS:
                    push(arg)
                case _ if name in _CONSTANTS:
                    push(_CONSTANTS[name])
                case "BINPUT" | "LONG_BINPUT":
                    self.memo[arg] = self.stack[-1]
                case "BINGET" | "LONG_BINGET":
                    push(self.memo[arg])
                case "SETITEM":
                    _set_items(self.stack[-3], self._pop(2))
                case "SETITEMS":
                    items = self._to_mark()
                    _set_items(self.stack[-1], items)
                case "APPEND":
                    _extend(self.stack[-2], self._pop(1))
                case "APPENDS":
                    items = self._to_mark()
                    _extend(self.stack[-1], items)
                case "GLOBAL":
                    push(_known(arg))
                case "BINPERSID":
                    push(_storage(self._pop(1)[0]))
                case "REDUCE":
                    push(_call(*self._pop(2)))
                case "BUILD":  # attributes of a dictionary, such as PyTorch's _metadata
                    self._pop(1)
                case "STOP":
                    return self._pop(1)[0]
        raise ValueError("it has no STOP")

    def _pop(self, n: int) -> list[Any]:
        if len(self.stack) - (self.marks[-1] if self.marks else 0) < n:
            raise IndexError("nothing left on the stack")
        items = self.stack[-n:]
        del self.stack[-n:]
        return items

    def _to_mark(self) -> list[Any]:
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items


def _steps(data: bytes) -> Iterator[tuple[str, Any]]:
    """Yield the names of opcodes and their arguments.

    Raises:
        ModelError: an opcode is not allowed; its argument is not parsed.
    """
    stream = BytesIO(data)
    while code := stream.read(1):
        opcode = _CODES.get(code.decode("latin-1"))
        name = "unknown" if opcode is None else opcode.name
        if opcode is None or name not in _OPCODES:
            raise ModelError(f"its pickle has the opcode {name}, which tensors do not need")
        if name == "GLOBAL":  # pickletools' reader would warn of backslashes
            yield name, " ".join((_line(stream), _line(stream)))
        else:
            yield name, None if opcode.arg is None else opcode.arg.reader(stream)


def _line(stream: BytesIO) -> str:
    line = stream.readline()
    if not line.endswith(b"\n"):
        raise ValueError("a name has no end")
    return line[:-1].decode("ascii")


def _known(name: str) -> _GlobalName:
    if _GlobalName(name) not in _NAMES:
        raise ModelError(
            f"refers to {name.replace(' ', '.')!r:.80}, which is not part of a tensor: refused, "
            "since loading it could run arbitrary code"
        )
    return _GlobalName(name)


def _set_items(target: Any, items: list[Any]) -> None:
    if not isinstance(target, dict) or len(items) % 2:
        raise TypeError(f"items for {_kind(target)}")
    for key, value in zip(items[::2], items[1::2], strict=True):
        if isinstance(key, str):
            target[key] = value
        elif not isinstance(key, int):
            raise TypeError(f"{_kind(key)} as a key")
        # integer keys (of optimizer states) are skipped: they could be chosen to collide


def _extend(target: Any, items: list[Any]) -> None:
    if not isinstance(target, list):
        raise TypeError(f"items for {_kind(target)}")
    target += items


def _storage(name: Any) -> Storage:
    """Return the storage named by a persistent id."""
    match name:
        case ("storage", _GlobalName(text), str(key), _, int(size)) if size >= 0:
            dtype = _STORAGES.get(text.removeprefix("torch "))
            if dtype is not None:
                return Storage(dtype, key, size)
    raise ModelError(f"has a persistent id that is not a storage: {_kind(name)}")


def _call(function: Any, args: Any) -> Any:
    if function == _DICT and args == ():
        return {}
    if function == _PARAMETER and isinstance(args, tuple) and isinstance(args[0], StorageView):
        return args[0]
    if function == _TENSOR and isinstance(args, tuple):
        return _view(*args[:4])
    raise ModelError(f"calls {_kind(function)} with {_kind(args)}, which is not allowed")


def _view(storage: Any, offset: Any, shape: Any, strides: Any) -> StorageView:
    """Return a view of a storage. Raises: ModelError: it does not lie within the storage."""
    if not isinstance(storage, Storage):
        raise ModelError(f"makes a tensor of {_kind(storage)}, must be a storage")
    if not _are_sizes(shape) or not _are_sizes(strides) or not _are_sizes((offset,)):
        raise ModelError(
            f"a tensor has the shape {shown(shape)} and strides {shown(strides)}, must be "
            f"at most {_MAX_DIMS} sizes each"
        )
    span = offset
    if len(shape) == len(strides) and math.prod(shape):
        span += 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    if len(shape) != len(strides) or max(span, math.prod(shape)) > storage.size:
        raise ModelError(
            f"a tensor of shape {shape}, strides {strides} at {offset} is not within its storage "
            f"of {shown(storage.size)}"
        )
    return StorageView(storage, offset, shape, strides)


def _are_sizes(value: Any) -> bool:
    return (
        isinstance(value, tuple)
        and len(value) <= _MAX_DIMS
        and all(type(n) is int and 0 <= n < 2**63 for n in value)
    )


def _kind(value: Any) -> str:
    return f"'{value.text}'" if isinstance(value, _GlobalName) else type(value).__name__
