"""Text to token ids and back, exactly as llama.cpp does it, from a GGUF file's metadata.

    tokenizer = load_tokenizer(gguf_file.metadata, gguf_file.path)
    ids = tokenizer.encode("Hello world")
    stream = TokenStream(tokenizer)
    for token in ids:
        print(stream.push(token), end="")
    print(stream.flush())

Building reads the tokens once; what only encoding needs is built at the first encode.
A tokenizer is immutable apart from a bounded cache, so threads may share it.
"""

from .detokenize import TokenStream
from .tokenizer import Tokenizer, load_tokenizer

__all__ = ["TokenStream", "Tokenizer", "load_tokenizer"]
