"""The module ``llama_cpp.llama_cpp``: llama.h's constants; its functions are refused.

    llama_cpp.LLAMA_POOLING_TYPE_MEAN, llama_cpp.GGML_TYPE_Q8_0
    llama_cpp.llama_supports_gpu_offload()         # some questions have answers
    llama_cpp.llama_decode(...)                    # NotSupported

There is no C library and no pointer to a model: what a program does with those, it does with
`Model`, `Context` and `Batch` of pyllama. Only the texts of tokens can be read by the C API's
functions, as outlines does; its pointer to a vocabulary is a `Tokenizer`.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from pyggml.backend.registry import HOST_BACKENDS, available
from pyggml.dtype import GGMLType

from ...errors import NotSupported
from ...file_types import FILE_TYPES
from ...runtime.model import Model
from ...tokenizer import Tokenizer

T = TypeVar("T")

# The first value and the names of each enumeration. Source: llama.cpp, ``llama.h``.
_ENUMS = (
    ("LLAMA_VOCAB_TYPE_", 0, "NONE SPM BPE WPM UGM RWKV PLAMO2"),
    ("LLAMA_TOKEN_TYPE_", 0, "UNDEFINED NORMAL UNKNOWN CONTROL USER_DEFINED UNUSED BYTE"),
    ("LLAMA_ROPE_SCALING_TYPE_", -1, "UNSPECIFIED NONE LINEAR YARN LONGROPE"),
    ("LLAMA_POOLING_TYPE_", -1, "UNSPECIFIED NONE MEAN CLS LAST RANK"),
    ("LLAMA_ATTENTION_TYPE_", -1, "UNSPECIFIED CAUSAL NON_CAUSAL"),
    ("LLAMA_FLASH_ATTN_TYPE_", -1, "AUTO DISABLED ENABLED"),
    ("LLAMA_SPLIT_MODE_", 0, "NONE LAYER ROW TENSOR"),
    ("LLAMA_LOAD_MODE_", -1, "AUTO NONE MMAP MLOCK MMAP_MLOCK DIRECT_IO"),
    ("LLAMA_KV_OVERRIDE_TYPE_", 0, "INT FLOAT BOOL STR"),
    ("GGML_NUMA_STRATEGY_", 0, "DISABLED DISTRIBUTE ISOLATE NUMACTL MIRROR COUNT"),
    ("LLAMA_ROPE_TYPE_", -1, "NONE NORM"),
)
_CONSTANTS: dict[str, int] = {
    **{
        prefix + name: value
        for prefix, first, names in _ENUMS
        for value, name in enumerate(names.split(), first)
    },
    **{f"GGML_TYPE_{kind.name}": int(kind) for kind in GGMLType},
    **{
        f"LLAMA_FTYPE_MOSTLY_{kind.name}": kind.number
        for kind in FILE_TYPES.values()
        if kind.number
    },
    "LLAMA_FTYPE_ALL_F32": 0,
    "LLAMA_FTYPE_MOSTLY_NVFP4": 39,
    "LLAMA_DEFAULT_SEED": 0xFFFFFFFF,
    "LLAMA_TOKEN_NULL": -1,
    "LLAMA_ROPE_TYPE_NEOX": 2,
    "LLAMA_FTYPE_GUESSED": 1024,
    "LLAMA_MAX_DEVICES": 16,
}


_ANSWERS: dict[str, Callable[[], Any]] = {
    "llama_backend_init": lambda: None,  # there is nothing to start
    "llama_backend_free": lambda: None,
    "llama_numa_init": lambda: None,  # numactl(8) does
    "llama_log_set": lambda: None,  # messages are logged, and with ``verbose`` on stderr
    "llama_supports_mmap": lambda: True,
    "llama_supports_mlock": lambda: sys.platform != "win32",
    "llama_supports_gpu_offload": lambda: not {*available()} <= {*HOST_BACKENDS},
    "llama_supports_rpc": lambda: False,
    "llama_max_devices": lambda: _CONSTANTS["LLAMA_MAX_DEVICES"],
}
"""What functions of the C API return, whatever their arguments."""


def llama_print_system_info() -> bytes:
    """The host, in a line."""
    from pyggml.host import default_threads

    return f"pyllama | n_threads = {default_threads()}".encode()


def llama_model_get_vocab(model: Model) -> Tokenizer:
    """The vocabulary of `Llama.model`."""
    return model.tokenizer


def llama_token_to_piece(
    vocab: Tokenizer, token: int, buf: ctypes.Array[ctypes.c_char], length: int,
    lstrip: int, special: bool,
) -> int:  # fmt: skip
    """Write the bytes of a token; lstrip: maximum number of first spaces to leave out.

    Returns:
        Their number; if the buffer is shorter, minus that, and nothing is written.
    """
    piece = vocab.token_to_piece(token, special)
    n_spaces = len(piece) - len(piece.lstrip(b" "))
    piece = piece[min(lstrip, n_spaces) :]
    if len(piece) > length:
        return -len(piece)
    ctypes.memmove(buf, piece, len(piece))
    return len(piece)


def llama_log_callback(function: T) -> T:
    """The function as it is; decorates callbacks of `llama_log_set`."""
    return function


def refused(name: str) -> Callable[..., Any]:
    """A function that raises NotSupported, in place of one of the C API."""

    def refuse(*args: object, **options: object) -> None:
        raise NotSupported(
            f"llama_cpp.{name}: llama.cpp's C API does not exist in pyllama, which has no C "
            "library; use Llama, or Model, Context and Batch of pyllama"
        )

    refuse.__name__ = refuse.__qualname__ = name
    return refuse


def __getattr__(name: str) -> Any:
    if name in _CONSTANTS:
        return _CONSTANTS[name]
    if name in _ANSWERS:
        return lambda *args: _ANSWERS[name]()
    if name.startswith(("llama_", "ggml_", "mtmd_", "gguf_")):
        return refused(name)
    raise AttributeError(
        f"module 'llama_cpp' has no attribute {name!r} in pyllama, see docs/from-llama-cpp.md"
    )


def __dir__() -> list[str]:
    return sorted({*globals(), *_CONSTANTS, *_ANSWERS})
