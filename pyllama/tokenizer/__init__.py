"""Text to token ids and back, exactly as llama.cpp does it, from a GGUF file's metadata.

    tokenizer = load_tokenizer(gguf_file.metadata, gguf_file.path)
    ids = tokenizer.encode("Hello world")
    stream = TokenStream(tokenizer)
    for token in ids:
        print(stream.push(token), end="")
    print(stream.flush())

Construction reads the tokens; the encoder is built at the first encode.
A tokenizer is immutable apart from bounded caches, so threads may share it.
"""

from .detokenize import TokenStream
from .tokenizer import Tokenizer, load_tokenizer

__all__ = ["TokenStream", "Tokenizer", "load_tokenizer"]
