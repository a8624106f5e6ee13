"""The module ``llama_cpp.llama_speculative``: draft models."""

from ...llama.draft import LlamaDraftModel, LlamaPromptLookupDecoding

__all__ = ["LlamaDraftModel", "LlamaPromptLookupDecoding"]
