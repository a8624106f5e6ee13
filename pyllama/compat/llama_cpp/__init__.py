"""The module ``llama_cpp`` of llama-cpp-python 0.3.36: its class, types, caches and constants.

pyllama.compat.install()
import llama_cpp
llama_cpp.Llama, llama_cpp.LlamaGrammar, llama_cpp.LLAMA_POOLING_TYPE_NONE
"""

from __future__ import annotations

from typing import Any

from . import llama, llama_cpp, llama_types
from .llama import *  # noqa: F403
from .llama_types import *  # noqa: F403

__version__ = "0.3.36"
__all__ = [*llama.__all__, *llama_types.__all__]


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module 'llama_cpp' has no attribute {name!r}")
    return getattr(llama_cpp, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(llama_cpp)})
