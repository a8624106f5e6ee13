"""Reads a SentencePiece model (tokenizer.model) with the ``sentencepiece`` package.

vocabulary = read_sentencepiece(Folder(Path("folder")))
vocabulary = read_sentencepiece(Folder(Path("mt5-small")), "spiece.model")    # may be Unigram

Source: llama.cpp, ``T5Model.set_vocab``, ``BertModel._xlmroberta_set_vocab``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import TokenizerError
from ...inputs.budget import MAX_SENTENCEPIECE_BYTES
from ...tokenizer.special import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED
from ..files.folder import Folder
from .tokens import MAX_TOKENS, FileToken, FileVocabulary

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor

log = logging.getLogger(__name__)

_NAME = "tokenizer.model"
FAIRSEQ = "sentencepiece.bpe.model"  # of XLM-RoBERTa, whose ids are fairseq's
_PIECE = b"\n"  # protobuf tag at the start of each piece
_UNIGRAM = 1  # trainer_spec.model_type


def is_sentencepiece(folder: Folder, name: str = _NAME) -> bool:
    """Return whether a file is a SentencePiece model (tokenizer.model may be tiktoken's list)."""
    return folder.has(name) and folder.head(name, 1) == _PIECE


def read_sentencepiece(folder: Folder, name: str = _NAME) -> FileVocabulary:
    """Return the vocabulary of a SentencePiece model.

    A Unigram model keeps its tokenizer unless the file is tokenizer.model, which is always read
    with LLaMA's.

    Raises:
        TokenizerError: the file is damaged.
        ModelError: it cannot be read.
    """
    from sentencepiece import SentencePieceProcessor  # slow to import

    path = folder.path / name
    data = folder.read(name, MAX_SENTENCEPIECE_BYTES)
    max_pieces = data.count(_PIECE)  # upper bound: the byte may also be in texts and scores
    if max_pieces > 4 * MAX_TOKENS:
        raise TokenizerError(f"{path}: up to {max_pieces} pieces, the limit is {MAX_TOKENS}")
    folder.budget.take("values", max_pieces, path)
    model = SentencePieceProcessor()
    try:
        model.LoadFromSerializedProto(data)
        tokens = _pieces(path, model)
        begins = "".join(model.EncodeAsPieces("a")).startswith("\u2581")
    except (RuntimeError, UnicodeDecodeError):  # texts or error messages may not be UTF-8
        raise TokenizerError(f"{path}: is damaged: download the file again") from None
    if name != _NAME and _messages(data, 2).get(3, _UNIGRAM) == _UNIGRAM:
        return _unigram(tokens, model, _messages(data, 3), fairseq=name == FAIRSEQ)
    if any(token.type == NORMAL and token.score % 1 for token in tokens.values()):
        log.warning("%s: a Unigram model: texts may be tokenized differently here", path)
    ids = {
        "bos": model.bos_id(), "eos": model.eos_id(), "unk": model.unk_id(), "pad": model.pad_id(),
    }  # fmt: skip
    return FileVocabulary(
        model="llama",
        tokens=tokens,
        roles={role: i for role, i in ids.items() if i >= 0},
        add_space_prefix=begins,
    )


def _pieces(path: Path, model: SentencePieceProcessor) -> dict[int, FileToken]:
    """Return the tokens by id."""
    if model.GetPieceSize() > MAX_TOKENS:
        raise TokenizerError(f"{path}: {model.GetPieceSize()} pieces, the limit is {MAX_TOKENS}")
    kinds = (
        (model.IsUnknown, UNKNOWN),
        (model.IsControl, CONTROL),
        (model.IsUnused, UNUSED),
        (model.IsByte, BYTE),
    )
    return {
        i: FileToken(
            model.IdToPiece(i),
            next((kind for test, kind in kinds if test(i)), NORMAL),
            model.GetScore(i),
        )
        for i in range(model.GetPieceSize())
    }


def _unigram(
    tokens: dict[int, FileToken], model: SentencePieceProcessor, normalizer: dict[int, Any],
    *, fairseq: bool,
) -> FileVocabulary:  # fmt: skip
    """Return the vocabulary of a Unigram model, of T5 or, with fairseq's ids, XLM-RoBERTa."""
    roles = {"eos": model.eos_id(), "unk": model.unk_id(), "pad": model.pad_id()}
    if fairseq:
        names = ("<s>", "<pad>", "</s>", "<unk>")
        first = {i: FileToken(text, CONTROL) for i, text in enumerate(names)}
        first[3] = FileToken("<unk>", UNKNOWN)
        n = len(tokens) + 1
        tokens = {**first, **{i + 1: tokens[i] for i in range(3, len(tokens))}}
        tokens[n] = FileToken("<mask>", CONTROL)
        roles = {"bos": 0, "pad": 1, "eos": 2, "sep": 2, "unk": 3, "mask": n}
    more: dict[str, Any] = {
        "remove_extra_whitespaces": bool(normalizer.get(4, True)),
        "add_eos_token": True,
    }
    charsmap = normalizer.get(2)
    if isinstance(charsmap, bytes) and charsmap:
        more["precompiled_charsmap"] = np.frombuffer(charsmap, np.uint8)
    return FileVocabulary(
        model="t5",
        tokens=tokens,
        pre="default",
        roles={role: i for role, i in roles.items() if i >= 0},
        add_space_prefix=bool(normalizer.get(3, True)),
        add_bos=fairseq or None,
        more=more,
    )


def _messages(data: bytes, number: int) -> dict[int, Any]:
    """Return the fields of a message inside a protobuf message, by number; {} without it."""
    found = [x for field, x in _fields(data) if field == number and isinstance(x, bytes)]
    return dict(_fields(found[-1])) if found else {}


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield number and value of the fields of a valid protobuf message: integers and bytes.

    The fields of a group (an obsolete type, unknown to SentencePiece) count as the message's own.

    Source: Protocol Buffers, "Encoding".
    """
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
            if byte < 128:
                return value

    while at < len(data):
        tag = varint()
        if tag & 7 == 0:
            yield tag >> 3, varint()
        else:
            n = varint() if tag & 7 == 2 else {1: 8, 5: 4}.get(tag & 7, 0)  # 3, 4: of a group
            yield tag >> 3, data[at : at + n]
            at += n
