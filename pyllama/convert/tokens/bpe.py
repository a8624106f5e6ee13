"""Reads BPE vocabularies: tokenizer.json, or vocab.json with merges.txt.

    vocabulary = read_tokenizer_json(Folder(Path("folder")))

A tokenizer.json that marks spaces by U+2581 is an exported SentencePiece model. It is converted
back to one, with scores from the order of the merges.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...errors import TokenizerError
from ...inputs.budget import shown
from ...inputs.text import decode_text
from ...tokenizer.special import BYTE, NORMAL, UNKNOWN
from ..files.folder import Folder, objects
from .recognise import recognise
from .tokens import MAX_TOKENS, FileToken, FileVocabulary

log = logging.getLogger(__name__)

_SPACE = "\u2581"
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")


def read_vocab_json(folder: Folder) -> FileVocabulary:
    """Return the vocabulary of GPT-2's two files. Raises: TokenizerError, ModelError."""
    vocab, merges = folder.path / "vocab.json", folder.path / "merges.txt"
    data = folder.read("merges.txt")
    folder.budget.take("values", 2 * data.count(b"\n"), merges)
    try:
        lines = decode_text(data, "strict").split("\n")
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{merges}: not UTF-8 ({error}): download the file again") from None
    lines = [line.removesuffix("\r") for line in lines]
    pairs = [line for line in lines if line and not line.startswith("#version")]
    return FileVocabulary(
        model="gpt2",
        tokens=_tokens(vocab, folder.json("vocab.json")),
        pre="gpt-2",
        merges=[_merge(merges, pair) for pair in pairs],
    )


def read_tokenizer_json(folder: Folder) -> FileVocabulary:
    """Return the vocabulary of tokenizer.json. Raises: TokenizerError, ModelError."""
    path, root = folder.path / "tokenizer.json", folder.json("tokenizer.json")
    model = root.get("model")
    if not isinstance(model, dict) or model.get("type", "BPE") != "BPE":
        kind = model.get("type") if isinstance(model, dict) else None
        raise TokenizerError(
            f"{path}: the tokenizer's type is {shown(kind)}; supported are BPE, SentencePiece, "
            "Unigram and WordPiece"
        )
    tokens = _tokens(path, model.get("vocab"))
    pairs = model.get("merges")
    merges = [_merge(path, pair) for pair in (pairs if isinstance(pairs, list) else [])]
    parts = list(_parts(root))
    if any(part.get("type") == "ByteLevel" for part in parts):
        found = recognise(
            root.get("pre_tokenizer"),
            root.get("normalizer"),
            ignore_merges=model.get("ignore_merges") is True,
            budget=folder.budget,
        )
        if found.warning is not None:
            log.warning("%s: %s", path, found.warning)
        return FileVocabulary(model="gpt2", tokens=tokens, pre=found.name, merges=merges)
    if not any(_SPACE in map(part.get, ("content", "replacement")) for part in parts):
        raise TokenizerError(f"{path}: this BPE is neither byte-level nor SentencePiece")
    return _as_sentencepiece(model, tokens, merges, parts)


def _as_sentencepiece(
    model: dict[str, Any],
    tokens: dict[int, FileToken],
    merges: list[str],
    parts: list[dict[str, Any]],
) -> FileVocabulary:
    rank: dict[str, int] = {}
    for i, merge in enumerate(merges):
        rank.setdefault(merge.replace(" ", ""), i)

    def as_piece(token: FileToken) -> FileToken:
        kind = NORMAL
        if model.get("byte_fallback") and _BYTE.fullmatch(token.text):
            kind = BYTE
        elif token.text == model.get("unk_token"):
            kind = UNKNOWN
        return FileToken(token.text, kind, -float(rank.get(token.text, len(merges))))

    begins = any(
        part.get("prepend") == _SPACE
        or part.get("prepend_scheme", "never") != "never"
        or (part.get("type") == "Metaspace" and part.get("add_prefix_space", False))
        for part in parts
    )
    return FileVocabulary(
        model="llama",
        tokens={i: as_piece(token) for i, token in tokens.items()},
        add_space_prefix=begins,
    )


def _parts(root: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the normalizers, pre-tokenizers and decoders, with sequences flattened."""
    for key in ("normalizer", "pre_tokenizer", "decoder"):
        for part in objects(root.get(key)):
            yield part
            yield from objects(part.get(f"{key.replace('_', '')}s"))


def read_ids(path: Path, vocab: Any) -> dict[str, int]:
    """Return the ids of texts in a file, once they are checked. Raises: TokenizerError."""
    if not isinstance(vocab, dict) or not vocab:
        raise TokenizerError(f"{path}: it has no vocabulary: download the file again")
    texts: dict[int, str] = {}
    for text, i in vocab.items():
        if type(i) is not int or not 0 <= i < MAX_TOKENS:
            raise TokenizerError(f"{path}: token {shown(text)} has the id {shown(i)}")
        if i in texts:
            raise TokenizerError(f"{path}: {shown(texts[i])} and {shown(text)} have the id {i}")
        texts[i] = text
    return vocab


def _tokens(path: Path, vocab: Any) -> dict[int, FileToken]:
    return {i: FileToken(text, NORMAL) for text, i in read_ids(path, vocab).items()}


def _merge(path: Path, pair: Any) -> str:
    """Return a merge as "a b"; spaces within a symbol become U+0120, GPT-2's code of a space."""
    symbols = pair.split(" ") if isinstance(pair, str) else pair
    if (
        not isinstance(symbols, list)
        or len(symbols) != 2
        or not all(isinstance(symbol, str) and symbol for symbol in symbols)
    ):
        raise TokenizerError(f"{path}: the merge {shown(pair)} is not two symbols")
    return " ".join(symbol.replace(" ", "\u0120") for symbol in symbols)
