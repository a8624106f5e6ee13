"""Read the pickle within a PyTorch file, which can build tensors and nothing else.

    views = read_pickle(Path("pytorch_model.bin"), data)
    views["model.norm.weight"].shape

Not Python's unpickler: the two dozen opcodes that a state dict needs are run here, on dictionaries,
lists, tuples, text and numbers. A name of a module is looked up in a table of tensor parts and
never imported; anything else is refused by name. Time and memory are linear in ``data``, and
bounded by a budget: a tuple that holds another twice, and so on, is never looked through.
Source: Python's ``pickletools``; PyTorch, ``torch._utils`` and ``torch.serialization``.
"""

from __future__ import annotations

import math
import pickletools
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import ModelError
from ..files.budget import OPCODE_VALUES, Budget, shown

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
_COUNTED = 256  # opcodes that are counted at a time, before they are run


class Storage(NamedTuple):
    """A flat array: its type (safetensors' name), its file in the archive, elements."""

    dtype: str
    key: str
    size: int


class View(NamedTuple):
    """A tensor: part of a storage; offset and strides in elements."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _Name(NamedTuple):
    """What a pickle refers to by its name, instead of what that is in Python."""

    text: str


_DICT = _Name("collections OrderedDict")
_TENSOR = _Name("torch._utils _rebuild_tensor_v2")
_PARAMETER = _Name("torch._utils _rebuild_parameter")
_NAMES = {_DICT, _TENSOR, _PARAMETER} | {_Name(f"torch {name}") for name in _STORAGES}


def read_pickle(path: Path, data: bytes, budget: Budget) -> dict[str, View]:
    """The tensors of a state dict by name; entries that are none are left out.

    A tensor on its own, as ``torch.save(tensor)`` writes it, has the empty name.

    Args:
        path: for messages.
        budget: what is left of it is how many opcodes are run.

    Raises:
        ModelError: the pickle is damaged, or wants anything but tensors.
    """
    try:
        root = _Machine().run(path, data, budget)
    except ModelError as error:
        text = str(error).removeprefix(f"{path}: ")
        raise ModelError(f"{path}: {text}") from None
    except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError) as error:
        what = f"{type(error).__name__}: {error!s:.80}"
        raise ModelError(f"{path}: the pickle in it is damaged ({what})") from None
    if isinstance(root, View):
        return {"": root}
    if not isinstance(root, dict):
        raise ModelError(f"{path}: holds {_kind(root)}, want tensors by name")
    return {k: v for k, v in root.items() if isinstance(k, str) and isinstance(v, View)}


class _Machine:
    """The pickle machine: a stack, marks in it, and a memo."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self, path: Path, data: bytes, budget: Budget) -> Any:
        """What the pickle builds. Raises: ModelError, and what damage leads to."""
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
        raise ValueError("it has no end")

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
    """Names of opcodes, and their arguments, whose lengths are checked.

    Raises:
        ModelError: an opcode that is not run; its argument is not looked at.
    """
    stream = BytesIO(data)
    while code := stream.read(1):
        opcode = _CODES.get(code.decode("latin-1"))
        name = "unknown" if opcode is None else opcode.name
        if opcode is None or name not in _OPCODES:
            raise ModelError(f"its pickle has the opcode {name}, which no tensor needs")
        if name == "GLOBAL":  # whose reader warns of what looks like escapes
            yield name, " ".join((_line(stream), _line(stream)))
        else:
            yield name, None if opcode.arg is None else opcode.arg.reader(stream)


def _line(stream: BytesIO) -> str:
    line = stream.readline()
    if not line.endswith(b"\n"):
        raise ValueError("a name has no end")
    return line[:-1].decode("ascii")


def _known(name: str) -> _Name:
    if _Name(name) not in _NAMES:
        raise ModelError(
            f"wants {name.replace(' ', '.')!r:.80}, which is no part of a tensor: it is refused, "
            "since loading it could run any code"
        )
    return _Name(name)


def _set_items(target: Any, items: list[Any]) -> None:
    if not isinstance(target, dict) or len(items) % 2:
        raise TypeError(f"items for {_kind(target)}")
    for key, value in zip(items[::2], items[1::2], strict=True):
        if isinstance(key, str):
            target[key] = value
        elif not isinstance(key, int):
            raise TypeError(f"{_kind(key)} as a key")
        # numbers, as of an optimizer's state, name no tensors; chosen well, all hash alike


def _extend(target: Any, items: list[Any]) -> None:
    if not isinstance(target, list):
        raise TypeError(f"items for {_kind(target)}")
    target += items


def _storage(name: Any) -> Storage:
    """The storage that a persistent id names."""
    match name:
        case ("storage", _Name(text), str(key), _, int(size)) if size >= 0:
            dtype = _STORAGES.get(text.removeprefix("torch "))
            if dtype is not None:
                return Storage(dtype, key, size)
    raise ModelError(f"has a persistent id that names no storage: {_kind(name)}")


def _call(function: Any, args: Any) -> Any:
    if function == _DICT and args == ():
        return {}
    if function == _PARAMETER and isinstance(args, tuple) and isinstance(args[0], View):
        return args[0]
    if function == _TENSOR and isinstance(args, tuple):
        return _view(*args[:4])
    raise ModelError(f"calls {_kind(function)} with {_kind(args)}, which makes no tensor")


def _view(storage: Any, offset: Any, shape: Any, strides: Any) -> View:
    """A tensor that lies within its storage. Raises: ModelError."""
    if not isinstance(storage, Storage):
        raise ModelError(f"makes a tensor of {_kind(storage)}, want a storage")
    if not _are_sizes(shape) or not _are_sizes(strides) or not _are_sizes((offset,)):
        raise ModelError(
            f"a tensor has the shape {shown(shape)} and strides {shown(strides)}, want "
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
    return View(storage, offset, shape, strides)


def _are_sizes(value: Any) -> bool:
    return (
        isinstance(value, tuple)
        and len(value) <= _MAX_DIMS
        and all(type(n) is int and 0 <= n < 2**63 for n in value)
    )


def _kind(value: Any) -> str:
    return f"'{value.text}'" if isinstance(value, _Name) else type(value).__name__
