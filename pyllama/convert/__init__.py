"""Converts Hugging Face checkpoints to GGUF files.

    from pyllama.convert import convert

    path = convert("Llama-3.2-1B", "llama.gguf", outtype="bf16")

The package imports nothing until it is used, since architectures import ``convert.mapping``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .conversion import ConvertOptions, convert

__all__ = ["ConvertOptions", "convert"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from . import conversion

        return getattr(conversion, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
