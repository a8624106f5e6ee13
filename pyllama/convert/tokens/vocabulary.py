"""Converts the vocabulary of a Hugging Face folder to GGUF's ``tokenizer.*`` keys.

    keys = read_vocabulary(Folder(Path("folder")), config)
    keys["tokenizer.ggml.tokens"]

The vocabulary is read from the first of: RWKV's text file, tekken.json (if there is no
tokenizer.json), tokenizer.model of SentencePiece, tokenizer.json, WordPiece's vocab.txt, vocab.json
with merges.txt, SentencePiece's spiece.model and sentencepiece.bpe.model. Added and special tokens
are read from the other JSON files.
Source: llama.cpp, ``convert_hf_to_gguf.py`` and gguf-py's ``SpecialVocab``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from ...errors import TokenizerError
from ...inputs.budget import shown
from ...mapping.rules import Config
from ...tokenizer.special import CONTROL, NORMAL, UNUSED, USER_DEFINED
from ..files.folder import Folder, objects
from .bpe import read_tokenizer_json, read_vocab_json
from .rwkv import NAME as RWKV
from .rwkv import read_rwkv
from .special_tokens import special_keys
from .spm import FAIRSEQ, is_sentencepiece, read_sentencepiece
from .tekken import NAME as TEKKEN
from .tekken import read_tekken
from .tokens import MAX_TOKENS, FileToken, FileVocabulary
from .unigram import read_unigram
from .wordpiece import read_wordpiece

log = logging.getLogger(__name__)

_LOOK_SPECIAL = ("<pad>", "<mask>", "<2mass>", "[@BOS@]")
_SENTENCEPIECE = ("spiece.model", FAIRSEQ)  # where there is no tokenizer.json
_OTHER_IDS = ("camembert", "mbart", "nllb")  # models whose ids are not those of XLM-RoBERTa
_OTHERS = (*_SENTENCEPIECE, "tokenizer.model", "tiktoken.model", "qwen.tiktoken")
_BRACKETS = (("<|", "|>"), ("<｜", "｜>"), ("<unused", ">"))


def read_vocabulary(folder: Folder, config: Config, add_bos: bool | None = None) -> dict[str, Any]:
    """Return the ``tokenizer.*`` keys.

    Args:
        add_bos: whether to add BOS if tokenizer_config.json does not say; None: as the vocabulary
            says.

    Raises:
        TokenizerError: there is no vocabulary, or it is damaged or of an unsupported kind.
        ModelError: a file cannot be read.
    """
    vocabulary = _read_base(folder, config)
    n_vocab = config.get("vocab_size", max(vocabulary.tokens, default=0) + 1)
    if type(n_vocab) is not int or not 0 < n_vocab <= MAX_TOKENS:
        raise TokenizerError(f"{folder.path / 'config.json'}: vocab_size is {shown(n_vocab)}")
    if max(vocabulary.tokens, default=0) >= n_vocab:
        raise TokenizerError(
            f"{folder.path}: the vocabulary has the token {max(vocabulary.tokens)}, but vocab_size "
            f"in config.json is {n_vocab}: they belong to different models"
        )
    if vocabulary.model != "rwkv":  # its tokens are all in one file
        _add_tokens(folder, vocabulary, n_vocab)
    tokens = [
        vocabulary.tokens.get(i, FileToken(f"[PAD{i}]", UNUSED, -10000.0)) for i in range(n_vocab)
    ]
    special, roles = special_keys(folder, config, vocabulary, [token.text for token in tokens])
    if not vocabulary.added:  # no file marks special tokens: those with a role are
        for i in roles:
            if tokens[i].type == NORMAL:
                tokens[i] = tokens[i]._replace(type=CONTROL)
    keys: dict[str, Any] = {"model": vocabulary.model}
    if vocabulary.pre is not None:
        keys["pre"] = vocabulary.pre
    keys["tokens"] = [token.text for token in tokens]
    if vocabulary.model in ("llama", "t5"):
        keys["scores"] = [float(token.score) for token in tokens]
    keys["token_type"] = [token.type for token in tokens]
    if vocabulary.merges:
        keys["merges"] = vocabulary.merges
    if vocabulary.add_space_prefix is not None:
        keys["add_space_prefix"] = vocabulary.add_space_prefix
    keys |= vocabulary.more
    add_bos = vocabulary.add_bos if add_bos is None else add_bos
    if add_bos is not None:
        keys["add_bos_token"] = add_bos
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items()} | special


def _read_base(folder: Folder, config: Config) -> FileVocabulary:
    """Return the vocabulary without added tokens."""
    if folder.has(RWKV):
        return read_rwkv(folder)
    if folder.has(TEKKEN) and not folder.has("tokenizer.json"):
        return read_tekken(folder)
    if is_sentencepiece(folder):
        return read_sentencepiece(folder)
    model = folder.json("tokenizer.json").get("model")
    kind = model.get("type") if isinstance(model, dict) else None
    if kind == "WordPiece" or (kind is None and folder.has("vocab.txt")):
        return read_wordpiece(folder)
    if kind == "Unigram":
        return read_unigram(folder)
    if folder.has("tokenizer.json"):
        return read_tokenizer_json(folder)
    if folder.has("vocab.json") and folder.has("merges.txt"):
        return read_vocab_json(folder)
    known = _SENTENCEPIECE[:1] if config.get("model_type") in _OTHER_IDS else _SENTENCEPIECE
    for name in known:
        if is_sentencepiece(folder, name):
            return read_sentencepiece(folder, name)
    others = [name for name in _OTHERS if folder.has(name)]
    own = f"; {', '.join(others)} has another form, which cannot be converted" if others else ""
    raise TokenizerError(
        f"{folder.path}: there is no vocabulary: no tokenizer.model (SentencePiece), "
        f"tokenizer.json, vocab.txt (WordPiece), or vocab.json with merges.txt{own}"
    )


def _add_tokens(folder: Folder, vocabulary: FileVocabulary, n_vocab: int) -> None:
    """Insert the added tokens into the vocabulary."""
    skipped: list[tuple[int, str]] = []
    for i, text, special in _added(folder):
        if not 0 <= i < n_vocab:
            skipped.append((i, text))
            continue
        vocabulary.added.add(i)
        looks_special = text in _LOOK_SPECIAL or any(
            text.startswith(begin) and text.endswith(end) for begin, end in _BRACKETS
        )
        if special or looks_special:
            kind = CONTROL
        else:
            kind, text = USER_DEFINED, text.replace("\u2581", " ")
        vocabulary.tokens[i] = FileToken(text, kind, -1000.0)
    if skipped:
        (i, text), n = skipped[0], len(skipped) - 1
        log.warning(
            "%s: the added token %s %s has no weights: skipped%s",
            folder.path, shown(i), shown(text), f", and {n} more" if n else "",
        )  # fmt: skip


def _added(folder: Folder) -> Iterator[tuple[int, str, bool]]:
    """Yield (id, text, is special) of all added tokens; later ones replace earlier ones."""
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
