"""A model's probabilities over a text, saved to be compared with another's: llama.cpp's file.

    with saving(path, tokens, n_vocab) as save:    # tokens int32 [n_chunks, n_ctx]
        save(logits)                               # float32 [n, n_vocab], of positions in order
    saved = SavedLogits(path)
    saved.log_probs(0)                             # float32 [n_ctx - 1 - n_ctx // 2, n_vocab]

Of each chunk the second half is saved, log probabilities in 16 bits: a scale and a minimum for each
row, which is at most 16 below the row's maximum.
Source: llama.cpp, ``perplexity.cpp``, ``log_softmax`` and ``kl_divergence``.
"""

from __future__ import annotations

import contextlib
import math
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pyggml.files import replacing
from pyggml.gguf.mapped import read_bytes

from ..errors import PyllamaError

Floats = npt.NDArray[np.float32]

_MAGIC = b"_logits_"
_HEAD = struct.Struct("<8siii")  # magic, n_ctx, n_vocab, n_chunks
_ROW_HEAD = 4  # codes that the scale and the minimum take
_MOST_CODE = np.float32(65535)
_RANGE = np.float32(16)
# Log probabilities are at most 0, and at least -16 - ln(2^31) = -37.5; with room for rounding.
_LEAST, _MOST = -40.0, 1.0
_BLOCK_ROWS = 4  # of logits at a time: their copies stay in the cache of the core


class SavedLogitsError(PyllamaError, ValueError):
    """A file of logits that is none, is cut off, or is of another model."""


def n_scored(n_ctx: int) -> int:
    """Positions of a chunk whose predictions count: from the middle to the last but one."""
    return n_ctx - 1 - n_ctx // 2


def _row_codes(n_vocab: int) -> int:
    return 2 * ((n_vocab + 1) // 2) + _ROW_HEAD


@contextlib.contextmanager
def saving(
    path: str | os.PathLike[str], tokens: npt.NDArray[np.int32], n_vocab: int
) -> Iterator[Callable[[Floats], None]]:
    """A function that takes logits, row by row as they come; the file is there at the end.

    Raises:
        OSError: it cannot be written.
    """
    n_chunks, n_ctx = tokens.shape
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(_HEAD.pack(_MAGIC, n_ctx, n_vocab, n_chunks))
        file.write(np.ascontiguousarray(tokens, "<i4").data)

        def save(logits: Floats) -> None:
            for i in range(0, len(logits), _BLOCK_ROWS):
                file.write(encode(logits[i : i + _BLOCK_ROWS]).data)

        yield save


def encode(logits: Floats) -> npt.NDArray[np.uint16]:
    """Rows of logits as rows of the file, uint16 [n, codes]."""
    most = logits.max(axis=1, keepdims=True)
    least = np.maximum(logits.min(axis=1, keepdims=True), most - _RANGE)
    total = np.exp(logits - most).sum(axis=1, keepdims=True, dtype=np.float64)
    scale = (most - least) / _MOST_CODE
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)
    rows = np.zeros((len(logits), _row_codes(logits.shape[1])), np.uint16)
    head = np.concatenate([scale, least - most - np.log(total).astype(np.float32)], axis=1)
    rows[:, :_ROW_HEAD] = np.ascontiguousarray(head, "<f4").view("<u2")
    codes = np.rint(inverse * (np.maximum(logits, least) - least))
    rows[:, _ROW_HEAD : _ROW_HEAD + logits.shape[1]] = codes
    return rows


class SavedLogits:
    """A file that ``saving`` or llama-perplexity wrote.

    Attributes:
        tokens: int32 [n_chunks, n_ctx], the text.
        n_vocab: columns of a row.

    Raises:
        SavedLogitsError: it is no such file, or is cut off. GGUFError: it cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        data = read_bytes(self.path, mmap=True).data
        head = data[: _HEAD.size].tobytes()
        if len(head) < _HEAD.size or not head.startswith(_MAGIC):
            raise SavedLogitsError(
                f"{self.path}: is no file of logits: it starts with {head[:8]!r}, want {_MAGIC!r}; "
                "`save_logits` writes one"
            )
        _, n_ctx, self.n_vocab, n_chunks = _HEAD.unpack(head)
        if n_ctx < 4 or self.n_vocab < 1 or n_chunks < 1:
            raise SavedLogitsError(
                f"{self.path}: {n_chunks} chunks of {n_ctx} tokens and {self.n_vocab} logits; the "
                "file is damaged"
            )
        wanted = _HEAD.size + 4 * n_ctx * n_chunks
        shape = n_chunks, n_scored(n_ctx), _row_codes(self.n_vocab)
        start, wanted = wanted, wanted + 2 * math.prod(shape)
        if data.size < wanted:
            raise SavedLogitsError(
                f"{self.path}: has {data.size} bytes, {n_chunks} chunks take {wanted}; it is cut "
                "off: save it again"
            )
        self.tokens = data[_HEAD.size : start].view("<i4").reshape(n_chunks, n_ctx)
        self._rows = data[start:wanted].view("<u2").reshape(shape)

    @property
    def n_chunks(self) -> int:
        """Chunks of the text."""
        return len(self.tokens)

    @property
    def n_ctx(self) -> int:
        """Tokens of a chunk."""
        return int(self.tokens.shape[1])

    def log_probs(self, chunk: int, rows: slice = slice(None)) -> Floats:
        """Log probabilities of a chunk's scored positions, or of some of them.

        Raises:
            SavedLogitsError: a row's scale or minimum is not finite, or of no probabilities.
        """
        found = self._rows[chunk, rows]
        head = found[:, :_ROW_HEAD].copy().view("<f4")  # [n, 2]
        with np.errstate(invalid="ignore"):  # NaN, infinity
            scale, least = head.astype(np.float64).T
            ok = (scale >= 0) & (least >= _LEAST) & (least + scale * float(_MOST_CODE) <= _MOST)
        if not ok.all():
            row = int(ok.argmin())
            raise SavedLogitsError(
                f"{self.path}: chunk {chunk + 1} has a row with the scale {scale[row]:g} and the "
                f"minimum {least[row]:g}, which are no log probabilities; save it again"
            )
        values = found[:, _ROW_HEAD : _ROW_HEAD + self.n_vocab].astype(np.float32)
        values *= head[:, :1]
        values += head[:, 1:]
        return values
