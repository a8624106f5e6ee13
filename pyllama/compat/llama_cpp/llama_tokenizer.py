"""The module ``llama_cpp.llama_tokenizer``: tokenizers."""

from ...llama.tokenizer import BaseLlamaTokenizer, LlamaHFTokenizer, LlamaTokenizer

__all__ = ["BaseLlamaTokenizer", "LlamaHFTokenizer", "LlamaTokenizer"]
