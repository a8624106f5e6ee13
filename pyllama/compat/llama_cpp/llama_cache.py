"""The module ``llama_cpp.llama_cache``: caches of states."""

from ...llama.cache import BaseLlamaCache, LlamaCache, LlamaDiskCache, LlamaRAMCache

__all__ = ["BaseLlamaCache", "LlamaCache", "LlamaDiskCache", "LlamaRAMCache"]
