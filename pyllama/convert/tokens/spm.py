"""Reads a SentencePiece model (tokenizer.model) with the ``sentencepiece`` package.

vocabulary = read_sentencepiece(Folder(Path("folder")))
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import TokenizerError
from ...inputs.budget import MAX_SENTENCEPIECE_BYTES
from ...tokenizer.special import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED
from ..files.folder import Folder
from .tokens import MAX_TOKENS, FileToken, FileVocabulary

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor

log = logging.getLogger(__name__)

_NAME = "tokenizer.model"
_PIECE = b"\n"  # protobuf tag at the start of each piece


def is_sentencepiece(folder: Folder) -> bool:
    """Return whether tokenizer.model is a SentencePiece model (it may be tiktoken's list)."""
    return folder.has(_NAME) and folder.head(_NAME, 1) == _PIECE


def read_sentencepiece(folder: Folder) -> FileVocabulary:
    """Return the vocabulary of a SentencePiece model.

    Raises:
        TokenizerError: the file is damaged.
        ModelError: it cannot be read.
    """
    from sentencepiece import SentencePieceProcessor  # slow to import

    path = folder.path / _NAME
    data = folder.read(_NAME, MAX_SENTENCEPIECE_BYTES)
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
