"""The vocabulary of a Hugging Face folder as GGUF's ``tokenizer.*`` keys.

    keys = read_vocabulary(Folder(Path("folder")), config)
    keys["tokenizer.ggml.tokens"]

It is read from a SentencePiece model, tokenizer.json, or vocab.json with merges.txt, the first that
is there; tokens that were added since, and special ones, from the JSON files beside it.
Source: llama.cpp, ``convert_hf_to_gguf.py`` and gguf-py's ``SpecialVocab``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from ..errors import TokenizerError
from ..files.budget import shown
from ..tokenizer.special import CONTROL, NORMAL, UNUSED, USER_DEFINED
from .folder import Folder, objects
from .mapping import Config
from .special_tokens import special_keys
from .vocabulary_bpe import read_tokenizer_json, read_vocab_json
from .vocabulary_spm import is_sentencepiece, read_sentencepiece
from .vocabulary_tokens import MAX_TOKENS, Token, Vocabulary

log = logging.getLogger(__name__)

_LOOK_SPECIAL = ("<pad>", "<mask>", "<2mass>", "[@BOS@]")
_BRACKETS = (("<|", "|>"), ("<｜", "｜>"), ("<unused", ">"))


def read_vocabulary(folder: Folder, config: Config, add_bos: bool | None = None) -> dict[str, Any]:
    """The ``tokenizer.*`` keys.

    Args:
        add_bos: whether a text begins with BOS where the files do not say.

    Raises:
        TokenizerError: there is no vocabulary, or it is damaged or of a kind that cannot be used.
        ModelError: a file cannot be read.
    """
    vocabulary = _read_base(folder)
    n_vocab = config.get("vocab_size", max(vocabulary.tokens, default=0) + 1)
    if type(n_vocab) is not int or not 0 < n_vocab <= MAX_TOKENS:
        raise TokenizerError(f"{folder.path / 'config.json'}: vocab_size is {shown(n_vocab)}")
    if max(vocabulary.tokens, default=0) >= n_vocab:
        raise TokenizerError(
            f"{folder.path}: the vocabulary has the token {max(vocabulary.tokens)}, config.json "
            f"has the vocab_size {n_vocab}: they are of two models"
        )
    _add_tokens(folder, vocabulary, n_vocab)
    tokens = [
        vocabulary.tokens.get(i, Token(f"[PAD{i}]", UNUSED, -10000.0)) for i in range(n_vocab)
    ]
    special, roles = special_keys(folder, config, vocabulary, [token.text for token in tokens])
    if not vocabulary.added:  # nobody has said which are special but those who name their roles
        for i in roles:
            if tokens[i].type == NORMAL:
                tokens[i] = tokens[i]._replace(type=CONTROL)
    keys: dict[str, Any] = {"model": vocabulary.model}
    if vocabulary.pre is not None:
        keys["pre"] = vocabulary.pre
    keys["tokens"] = [token.text for token in tokens]
    if vocabulary.model == "llama":
        keys["scores"] = [float(token.score) for token in tokens]
    keys["token_type"] = [token.type for token in tokens]
    if vocabulary.merges:
        keys["merges"] = vocabulary.merges
    if vocabulary.add_space_prefix is not None:
        keys["add_space_prefix"] = vocabulary.add_space_prefix
    if add_bos is not None:
        keys["add_bos_token"] = add_bos
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items()} | special


def _read_base(folder: Folder) -> Vocabulary:
    """The vocabulary without what was added to it."""
    if is_sentencepiece(folder):
        return read_sentencepiece(folder)
    if folder.has("tokenizer.json"):
        return read_tokenizer_json(folder)
    if folder.has("vocab.json") and folder.has("merges.txt"):
        return read_vocab_json(folder)
    raise TokenizerError(
        f"{folder.path}: there is no vocabulary: no tokenizer.model, tokenizer.json, or vocab.json "
        "with merges.txt"
    )


def _add_tokens(folder: Folder, vocabulary: Vocabulary, n_vocab: int) -> None:
    """Put added tokens into the vocabulary."""
    left_out: list[tuple[int, str]] = []
    for i, text, special in _added(folder):
        if not 0 <= i < n_vocab:
            left_out.append((i, text))
            continue
        vocabulary.added.add(i)
        if special or _looks_special(text):
            kind = CONTROL
        else:
            kind, text = USER_DEFINED, text.replace("\u2581", " ")
        vocabulary.tokens[i] = Token(text, kind, -1000.0)
    if left_out:
        (i, text), n = left_out[0], len(left_out) - 1
        log.warning(
            "%s: the added token %s %s has no weights: left out%s",
            folder.path, shown(i), shown(text), f", and {n} more" if n else "",
        )  # fmt: skip


def _added(folder: Folder) -> Iterator[tuple[int, str, bool]]:
    """Id, text and whether it is special, of all added tokens; later ones replace earlier."""
    for text, i in folder.json("added_tokens.json").items():
        if type(i) is int:
            yield i, text, False
    listed = objects(folder.json("tokenizer.json").get("added_tokens"))
    for decoder in objects(folder.json("tokenizer_config.json").get("added_tokens_decoder")):
        listed += [
            {**entry, "id": int(i)}
            for i, value in decoder.items()
            if i.isdecimal() and len(i) < 10
            for entry in objects(value)
        ]
    for entry in listed:
        match entry:
            case {"id": int(i), "content": str(text)}:
                yield i, text, entry.get("special") is True


def _looks_special(text: str) -> bool:
    """Whether a token is a control token, though its file does not say so."""
    return text in _LOOK_SPECIAL or any(
        text.startswith(begin) and text.endswith(end) for begin, end in _BRACKETS
    )
