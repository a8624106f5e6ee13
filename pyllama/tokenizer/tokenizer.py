"""The tokenizer of a model: encode, decode, and ids of special tokens.

    tokenizer = load_tokenizer(gguf_file.metadata, gguf_file.path)
    tokenizer.decode(tokenizer.encode("Hello"))     # "Hello"

Thread-safe, see the package's docstring.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import TokenizerError
from .bpe import BPE
from .cut import SpecialCutter
from .detokenize import Texts, clean, token_bytes
from .metadata import Metadata
from .plamo2 import Plamo2
from .rwkv import RWKV
from .special import CONTROL, UNKNOWN
from .spm import SPM
from .ugm import UGM
from .vocab import NO_VOCABULARY, Vocab, read_vocab
from .wordpiece import WordPiece
from .words import NoEncoder, WordEncoder

log = logging.getLogger(__name__)

_ENCODERS: dict[str, Callable[[Vocab], WordEncoder]] = {
    "llama": SPM,
    "gpt2": BPE,
    "gemma4": BPE,
    "whitespace": BPE,
    "bert": WordPiece,
    "t5": UGM,
    "rwkv": RWKV,
    "plamo2": Plamo2,
    NO_VOCABULARY: NoEncoder,
}


def load_tokenizer(metadata: Mapping[str, Any], source: Path | None = None) -> Tokenizer:
    """Build the tokenizer that a GGUF file's metadata describes.

    Args:
        metadata: metadata by full key, such as ``tokenizer.ggml.tokens``.
        source: path of the file, for error messages.

    Raises:
        TokenizerError: the vocabulary is missing, damaged or not supported.
    """
    try:
        vocab = read_vocab(metadata)
        template = Metadata(metadata).full_text("tokenizer.chat_template")
    except TokenizerError as error:
        if source is None:
            raise
        raise TokenizerError(f"{source}: {error}") from None
    return Tokenizer(vocab, template)


class Tokenizer:
    """Converts text to token ids and back.

    Attributes:
        vocab: the vocabulary.
        chat_template: Jinja source of the model's chat template, or None.
    """

    def __init__(self, vocab: Vocab, chat_template: str | None = None) -> None:
        self.vocab = vocab
        self.chat_template = chat_template
        self._bytes: dict[int, bytes] = {}
        self._texts = Texts(self, False), Texts(self, True)

    @property
    def n_vocab(self) -> int:
        """Number of tokens."""
        return len(self.vocab.tokens)

    @property
    def bos(self) -> int | None:
        """Beginning-of-text token."""
        return self.vocab.roles.get("bos")

    @property
    def eos(self) -> int | None:
        """End-of-text token."""
        return self.vocab.roles.get("eos")

    @property
    def eot(self) -> int | None:
        """End-of-turn token."""
        return self.vocab.roles.get("eot")

    @property
    def eog(self) -> frozenset[int]:
        """All tokens that end a generation."""
        return self.vocab.eog

    @property
    def add_bos(self) -> bool:
        """Whether `encode` begins a text with BOS."""
        return self.vocab.add_bos

    @property
    def add_eos(self) -> bool:
        """Whether `encode` ends a text with EOS."""
        return self.vocab.add_eos

    def is_eog(self, token: int) -> bool:
        """Whether this token ends a generation."""
        return token in self.vocab.eog

    def text_to_id(self, text: str) -> int | None:
        """Id of the token with this text in the vocabulary, or None."""
        return self.vocab.ids.get(text)

    def encode(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids of a text.

        Args:
            text: the text; lone surrogates are replaced by U+FFFD.
            add_special: add BOS and EOS if the model uses them.
            parse_special: parse special tokens in the text, such as ``<|im_end|>``. BOS is not
                added if the text begins with one.

        Raises:
            TokenizerError: the vocabulary has no token for a character and no unknown token, or
                the model has no vocabulary.
        """
        ids: list[int] = []
        begins = True
        for piece in self._cutter.cut(_without_surrogates(text), parse_special):
            if isinstance(piece, str):
                ids += self._encoder.encode(piece, begins)
            else:
                ids.append(piece)
            begins = not isinstance(piece, str)
        return self._with_ends(ids, parse_special) if add_special else ids

    def _with_ends(self, ids: list[int], parse_special: bool) -> list[int]:
        """The ids with BOS and EOS added if the model uses them and the text has none."""
        begin, end = self.vocab.begin, self.vocab.end
        begun = begin is not None and parse_special and ids[:1] == [begin]
        ended = end is not None and parse_special and ids[begun:][-1:] == [end]
        if begun:
            log.warning("the text already begins with the BOS token: no second one is added")
        elif begin is not None:
            ids.insert(0, begin)
        if ended:
            log.warning("the text already ends with the EOS token: no second one is added")
        elif end is not None:
            ids.append(end)
        return ids

    def decode(
        self, tokens: Iterable[int], *, special: bool = False, clean_spaces: bool | None = None
    ) -> str:
        """Text of tokens: the inverse of `encode`.

        Removes the space that the encoder adds before a text, with or without BOS.

        Args:
            tokens: token ids.
            special: include the text of special tokens.
            clean_spaces: remove spaces before punctuation and "'s". The default is only for
                WordPiece, whose tokens do not record spaces. (llama.cpp does so whenever
                `Vocab.clean_spaces` is set, which also removes spaces of the original text.)

        Raises:
            TokenizerError: the vocabulary has no such token.
        """
        is_wordpiece = self.vocab.model == "bert"
        tokens = list(tokens)
        n_head = int(tokens[:1] == [self.bos])
        head, text = (
            b"".join(self.token_to_piece(token, special) for token in part).decode(
                "utf-8", "replace"
            )
            for part in (tokens[:n_head], tokens[n_head:])
        )
        if clean_spaces or (clean_spaces is None and is_wordpiece):
            text = clean(text)
        prefixed = self.vocab.add_space_prefix or is_wordpiece
        return head + (text.removeprefix(" ") if prefixed else text)

    def token_to_piece(self, token: int, special: bool = False) -> bytes:
        """Bytes of one token, possibly with incomplete characters, see `TokenStream`.

        Args:
            token: token id.
            special: return the text of special tokens instead of nothing.

        Raises:
            TokenizerError: the vocabulary has no such token.
        """
        if not 0 <= token < self.n_vocab:
            raise TokenizerError(f"token {token} is not in the vocabulary of {self.n_vocab} tokens")
        if not special and self.vocab.types[token] in (CONTROL, UNKNOWN):
            return b""
        piece = self._bytes.get(token)
        if piece is None:
            piece = self._bytes[token] = token_bytes(self.vocab, token)
        return piece

    def texts(self, special: bool | frozenset[int] = False) -> Texts:
        """See `Texts`; streams share them."""
        return self._texts[special] if isinstance(special, bool) else Texts(self, special)

    @cached_property
    def _encoder(self) -> WordEncoder:
        return _ENCODERS[self.vocab.model](self.vocab)

    @cached_property
    def _cutter(self) -> SpecialCutter:
        return SpecialCutter(self.vocab)


def _without_surrogates(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        # joins surrogate pairs (as from JSON escapes), and replaces lone surrogates
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
