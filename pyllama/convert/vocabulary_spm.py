"""A SentencePiece model (tokenizer.model), read by the ``sentencepiece`` package.

vocabulary = read_sentencepiece(Folder(Path("folder")))
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import TokenizerError
from ..files.budget import MAX_SENTENCEPIECE_BYTES
from ..tokenizer.special import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED
from .folder import Folder
from .vocabulary_tokens import MAX_TOKENS, Token, Vocabulary

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor

log = logging.getLogger(__name__)

_NAME = "tokenizer.model"
_PIECE = b"\n"  # with which each piece begins: the first field of the protobuf


def is_sentencepiece(folder: Folder) -> bool:
    """Whether there is such a file; others call a list of tiktoken's tokens by its name."""
    return folder.has(_NAME) and folder.head(_NAME, 1) == _PIECE


def read_sentencepiece(folder: Folder) -> Vocabulary:
    """The vocabulary of a SentencePiece model.

    Raises:
        TokenizerError: the file is damaged.
        ModelError: it cannot be read.
    """
    from sentencepiece import SentencePieceProcessor  # loads a library: only where it is needed

    path = folder.path / _NAME
    data = folder.read(_NAME, MAX_SENTENCEPIECE_BYTES)
    most = data.count(_PIECE)  # pieces: the byte may be in texts and scores too
    if most > 4 * MAX_TOKENS:
        raise TokenizerError(f"{path}: up to {most} pieces, a vocabulary has at most {MAX_TOKENS}")
    folder.budget.take("values", most, path)
    model = SentencePieceProcessor()
    try:
        model.LoadFromSerializedProto(data)
        tokens = _pieces(path, model)
        begins = "".join(model.EncodeAsPieces("a")).startswith("\u2581")
    except (RuntimeError, UnicodeDecodeError):  # texts and messages with bytes that are no UTF-8
        raise TokenizerError(f"{path}: is damaged: fetch the file again") from None
    if any(token.type == NORMAL and token.score % 1 for token in tokens.values()):
        log.warning("%s: a Unigram model: texts may be cut into other tokens than there", path)
    ids = {
        "bos": model.bos_id(), "eos": model.eos_id(), "unk": model.unk_id(), "pad": model.pad_id(),
    }  # fmt: skip
    return Vocabulary(
        model="llama",
        tokens=tokens,
        roles={role: i for role, i in ids.items() if i >= 0},
        add_space_prefix=begins,
    )


def _pieces(path: Path, model: SentencePieceProcessor) -> dict[int, Token]:
    """The tokens by id."""
    if model.GetPieceSize() > MAX_TOKENS:
        raise TokenizerError(
            f"{path}: {model.GetPieceSize()} pieces, a vocabulary has at most {MAX_TOKENS}"
        )
    kinds = (
        (model.IsUnknown, UNKNOWN),
        (model.IsControl, CONTROL),
        (model.IsUnused, UNUSED),
        (model.IsByte, BYTE),
    )
    return {
        i: Token(
            model.IdToPiece(i),
            next((kind for test, kind in kinds if test(i)), NORMAL),
            model.GetScore(i),
        )
        for i in range(model.GetPieceSize())
    }
