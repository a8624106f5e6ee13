"""The module ``llama_cpp._internals``: views of a model and a context; the rest is refused."""

from __future__ import annotations

from typing import Any

from ...llama.internals import LlamaContext, LlamaModel
from .llama_cpp import refused

__all__ = ["LlamaContext", "LlamaModel"]


def __getattr__(name: str) -> Any:
    if name[0].isupper():
        return refused(f"_internals.{name}")
    raise AttributeError(f"module 'llama_cpp._internals' has no attribute {name!r}")
