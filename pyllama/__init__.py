"""An LLM runtime in pure Python + Numba: GGUF in, text out.

    from pyllama import Llama

    llama = Llama("x.gguf", verbose=False)
    print(llama("The capital of France is", max_tokens=8)["choices"][0]["text"])

`Llama` has the interface of llama-cpp-python's class; `Model`, `Context` and `Batch` are the lower
level, as in llama.h. They are imported at first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .grammar import Grammar
    from .llama.draft import LlamaDraftModel, LlamaPromptLookupDecoding
    from .llama.grammar import LlamaGrammar
    from .llama.llama import Llama
    from .llama.state import LlamaState
    from .runtime.batch import Batch
    from .runtime.context import Context
    from .runtime.model import Model

__version__ = "0.1.0"
__all__ = [
    "Batch",
    "Context",
    "Grammar",
    "Llama",
    "LlamaDraftModel",
    "LlamaGrammar",
    "LlamaPromptLookupDecoding",
    "LlamaState",
    "Model",
    "__version__",
]

_HOMES = {
    "Batch": "runtime.batch",
    "Context": "runtime.context",
    "Grammar": "grammar",
    "Llama": "llama.llama",
    "LlamaDraftModel": "llama.draft",
    "LlamaGrammar": "llama.grammar",
    "LlamaPromptLookupDecoding": "llama.draft",
    "LlamaState": "llama.state",
    "Model": "runtime.model",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
