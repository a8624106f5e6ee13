"""A model's tokenizer with llama-cpp-python's methods: bytes in, bytes out.

tokenizer = LlamaTokenizer(model.tokenizer)
tokenizer.detokenize(tokenizer.tokenize(b"Hello", add_bos=False))     # b"Hello"
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..tokenizer import Tokenizer


class LlamaTokenizer:
    """The tokenizer of a `Llama`. Stateless: threads and callbacks may use it at any time.

    Source: llama-cpp-python, ``LlamaTokenizer``.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = True) -> list[int]:
        """Token ids of UTF-8 text.

        Args:
            add_bos: add BOS and EOS if the model uses them.
            special: parse special tokens in the text.

        Raises:
            TokenizerError: the vocabulary cannot encode the text.
        """
        return self._tokenizer.encode(text.decode("utf-8", "replace"), add_bos, special)

    def detokenize(
        self,
        tokens: Iterable[int],
        prev_tokens: Sequence[int] | None = None,
        special: bool = False,
    ) -> bytes:
        """Bytes of tokens, possibly with incomplete characters at the ends.

        The space that SPM adds after BOS is removed.

        Args:
            prev_tokens: has no effect, as in llama-cpp-python.
            special: include the text of special tokens.

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
