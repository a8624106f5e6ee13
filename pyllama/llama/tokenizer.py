"""Tokenizers with llama-cpp-python's methods: bytes in, bytes out.

    tokenizer = LlamaTokenizer(model.tokenizer)
    tokenizer.detokenize(tokenizer.tokenize(b"Hello", add_bos=False))     # b"Hello"
    Llama("x.gguf", tokenizer=LlamaHFTokenizer.from_pretrained("user/model"))

A `BaseLlamaTokenizer` of one's own replaces that of a `Llama`; its token ids must be the model's.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any, Self

from ..runtime.model import Model
from ..tokenizer import Tokenizer


class BaseLlamaTokenizer(ABC):
    """A tokenizer, to derive from.

    Source: llama-cpp-python, ``BaseLlamaTokenizer``.
    """

    @abstractmethod
    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = True) -> list[int]:
        """Token ids of UTF-8 text.

        Args:
            add_bos: add BOS and EOS if the model uses them.
            special: parse special tokens in the text.
        """

    @abstractmethod
    def detokenize(
        self, tokens: list[int], prev_tokens: Sequence[int] | None = None, special: bool = False
    ) -> bytes:
        """Bytes of tokens, possibly with incomplete characters at the ends.

        Args:
            prev_tokens: tokens before these.
            special: include the text of special tokens.
        """


class LlamaTokenizer(BaseLlamaTokenizer):
    """The tokenizer of a model. Stateless: threads and callbacks may use it at any time.

    Args:
        tokenizer: the tokenizer, or a `Llama`, of which it is the model's.

    Source: llama-cpp-python, ``LlamaTokenizer``.
    """

    def __init__(self, tokenizer: Tokenizer | Any) -> None:
        self._tokenizer: Tokenizer = (
            tokenizer if isinstance(tokenizer, Tokenizer) else tokenizer.model.tokenizer
        )

    @classmethod
    def from_ggml_file(cls, path: str | os.PathLike[str]) -> Self:
        """The tokenizer of a GGUF file.

        Raises:
            ModelError: there is no such file, or it is not a model.
        """
        with Model.load(path, vocab_only=True) as model:
            return cls(model.tokenizer)

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = True) -> list[int]:
        """See `BaseLlamaTokenizer.tokenize`.

        Raises:
            TokenizerError: the vocabulary cannot encode the text.
        """
        return self._tokenizer.encode(text.decode("utf-8", "replace"), add_bos, special)

    def detokenize(
        self, tokens: Iterable[int], prev_tokens: Sequence[int] | None = None, special: bool = False
    ) -> bytes:
        """See `BaseLlamaTokenizer.detokenize`; ``prev_tokens`` has no effect.

        The space that SPM adds after BOS is removed.

        Raises:
            TokenizerError: the vocabulary has no such token.
        """
        tokens = list(tokens)
        text = b"".join(self._tokenizer.token_to_piece(token, special) for token in tokens)
        begins = tokens[:1] == [self._tokenizer.bos] and not special
        return text.removeprefix(b" ") if begins else text

    def encode(self, text: str, add_bos: bool = True, special: bool = True) -> list[int]:
        """Token ids of text."""
        return self._tokenizer.encode(text, add_bos, special)

    def decode(self, tokens: Iterable[int]) -> str:
        """Text of tokens, without incomplete characters."""
        return self.detokenize(tokens).decode("utf-8", "ignore")

    def token(self, role: str) -> int:
        """Id of the token of a role (``bos``, ``eos``, ...), -1 if there is none."""
        return self._tokenizer.vocab.roles.get(role, -1)

    def token_nl(self) -> int:
        """Id of the newline token, -1 if there is none."""
        ids = self._tokenizer.encode("\n", add_special=False)
        # SPM adds a space before it
        return ids[-1] if ids and self._tokenizer.token_to_piece(ids[-1]) == b"\n" else -1


class LlamaHFTokenizer(BaseLlamaTokenizer):
    """A tokenizer of the package transformers.

    Args:
        hf_tokenizer: its object.

    Source: llama-cpp-python, ``LlamaHFTokenizer``.
    """

    def __init__(self, hf_tokenizer: Any) -> None:
        self.hf_tokenizer = hf_tokenizer

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike[str]) -> Self:
        """The tokenizer of a folder or of a model on the hub.

        Raises:
            ImportError: the package is not installed.
        """
        try:
            transformers = import_module("transformers")
        except ImportError:
            raise ImportError(
                "LlamaHFTokenizer needs the package transformers: pip install transformers"
            ) from None
        return cls(transformers.AutoTokenizer.from_pretrained(pretrained_model_name_or_path))

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = True) -> list[int]:
        """See `BaseLlamaTokenizer.tokenize`; ``special`` decides on BOS too."""
        ids: list[int] = self.hf_tokenizer.encode(
            text.decode("utf-8", "ignore"), add_special_tokens=special
        )
        return ids

    def detokenize(
        self, tokens: list[int], prev_tokens: Sequence[int] | None = None, special: bool = False
    ) -> bytes:
        before = list(prev_tokens or ())
        return self._decode([*before, *tokens], special)[len(self._decode(before, special)) :]

    def _decode(self, tokens: list[int], special: bool) -> bytes:
        text: str = self.hf_tokenizer.decode(tokens, skip_special_tokens=not special)
        return text.encode("utf-8", "ignore")
