"""Reads WordPiece vocabularies, those of BERT: tokenizer.json, or vocab.txt.

    vocabulary = read_wordpiece(Folder(Path("folder")))

U+2581 is added before the beginning of a word, and "##" of a continuation is removed.
Source: llama.cpp, ``BertModel.set_vocab``; gguf-py, ``SpecialVocab``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...errors import TokenizerError
from ...inputs.text import decode_text
from ...tokenizer.boundaries import SPACE
from ...tokenizer.special import CONTROL, NORMAL
from ..files.folder import Folder, objects
from .bpe import read_ids
from .tokens import FileToken, FileVocabulary

_CONTINUED = "##"
_SPECIAL = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}


def read_wordpiece(folder: Folder) -> FileVocabulary:
    """Return the vocabulary. Raises: TokenizerError, ModelError."""
    root, settings = folder.json("tokenizer.json"), folder.json("tokenizer_config.json")
    model = root.get("model")
    vocabulary = FileVocabulary(model="bert", tokens={}, pre="default")
    if isinstance(model, dict):
        prefix = model.get("continuing_subword_prefix", _CONTINUED)
        if prefix != _CONTINUED:
            raise TokenizerError(
                f"{folder.path / 'tokenizer.json'}: continuations begin with {prefix!r:.40}; "
                f"supported is {_CONTINUED!r}"
            )
        ids = read_ids(folder.path / "tokenizer.json", model.get("vocab"))
        vocabulary.more |= _normalizer_keys(root.get("normalizer"))
    else:
        ids = _read_lines(folder)
        lowercase, accents = settings.get("do_lower_case", True), settings.get("strip_accents")
        vocabulary.more["normalizer.lowercase"] = bool(lowercase)
        if isinstance(accents, bool):
            vocabulary.more["normalizer.strip_accents"] = accents
    texts = {i: text for text, i in ids.items()}
    special = {
        role: ids[name]
        for role, usual in _SPECIAL.items()
        if (name := _text(settings.get(f"{role}_token")) or usual) in ids
    }
    for i, text in texts.items():
        if i in special.values():
            vocabulary.tokens[i] = FileToken(text, CONTROL)
            vocabulary.added.add(i)
        else:
            plain = text.removeprefix(_CONTINUED)
            vocabulary.tokens[i] = FileToken(plain if plain != text else SPACE + text, NORMAL)
    roles = {"bos": special.get("cls"), "eos": special.get("sep"), **special}
    vocabulary.roles = {role: i for role, i in roles.items() if i is not None and role != "cls"}
    return vocabulary


def _text(token: Any) -> str | None:
    text = token.get("content") if isinstance(token, Mapping) else token
    return text if isinstance(text, str) else None


def _read_lines(folder: Folder) -> dict[str, int]:
    """The ids of vocab.txt: a token a line."""
    path, data = folder.path / "vocab.txt", folder.read("vocab.txt")
    folder.budget.take("values", data.count(b"\n"), path)
    try:
        lines = decode_text(data, "strict").split("\n")
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{path}: not UTF-8 ({error}): download the file again") from None
    if lines and not lines[-1]:
        lines.pop()
    return read_ids(path, {line.removesuffix("\r"): i for i, line in enumerate(lines)})


def _normalizer_keys(normalizer: Any) -> dict[str, bool]:
    """The keys of lower case and accents that a normalizer, or a sequence of them, has."""
    keys: dict[str, bool] = {}
    for part in _parts(normalizer):
        kind = part.get("type")
        values = {
            "lowercase": True if kind == "Lowercase" else part.get("lowercase"),
            "strip_accents": True if kind == "StripAccents" else part.get("strip_accents"),
        }
        if kind in ("Lowercase", "StripAccents", "BertNormalizer"):
            found = {k: v for k, v in values.items() if isinstance(v, bool)}
            keys |= {f"normalizer.{name}": value for name, value in found.items()}
    return keys


def _parts(normalizer: Any) -> Iterator[dict[str, Any]]:
    for part in objects(normalizer):
        yield part
        yield from objects(part.get("normalizers"))
