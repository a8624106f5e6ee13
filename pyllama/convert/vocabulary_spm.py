"""A SentencePiece model (tokenizer.model), read by the ``sentencepiece`` package.

vocabulary = read_sentencepiece(Path("tokenizer.model"))
"""

from __future__ import annotations

import logging
from pathlib import Path

from ..errors import TokenizerError
from ..tokenizer.special import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED
from .folder import read_bytes
from .vocabulary_tokens import Token, Vocabulary

log = logging.getLogger(__name__)


def is_sentencepiece(path: Path) -> bool:
    """Whether there is such a file; others call a list of tiktoken's tokens by its name."""
    return path.is_file() and read_bytes(path)[:1] == b"\n"  # the first field of the protobuf


def read_sentencepiece(path: Path) -> Vocabulary:
    """The vocabulary of a SentencePiece model.

    Raises:
        TokenizerError: the file is damaged.
        ModelError: it cannot be read.
    """
    from sentencepiece import SentencePieceProcessor  # loads a library: only where it is needed

    model = SentencePieceProcessor()
    try:
        model.LoadFromSerializedProto(read_bytes(path))
    except RuntimeError:
        raise TokenizerError(f"{path}: is damaged: fetch the file again") from None
    kinds = (
        (model.IsUnknown, UNKNOWN),
        (model.IsControl, CONTROL),
        (model.IsUnused, UNUSED),
        (model.IsByte, BYTE),
    )
    tokens = {
        i: Token(
            model.IdToPiece(i),
            next((kind for test, kind in kinds if test(i)), NORMAL),
            model.GetScore(i),
        )
        for i in range(model.GetPieceSize())
    }
    if any(token.type == NORMAL and token.score % 1 for token in tokens.values()):
        log.warning("%s: a Unigram model: texts may be cut into other tokens than there", path)
    ids = {
        "bos": model.bos_id(), "eos": model.eos_id(), "unk": model.unk_id(), "pad": model.pad_id(),
    }  # fmt: skip
    return Vocabulary(
        model="llama",
        tokens=tokens,
        roles={role: i for role, i in ids.items() if i >= 0},
        add_space_prefix="".join(model.EncodeAsPieces("a")).startswith("\u2581"),
    )
