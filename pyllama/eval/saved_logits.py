"""Saves and loads a model's probabilities over a text, in llama.cpp's format.

    with logits_writer(path, tokens, n_vocab) as save:    # tokens int32 [n_chunks, n_ctx]
        save(logits)                               # float32 [n, n_vocab], in order of positions
    saved = SavedLogits(path)
    saved.log_probs(0)                             # float32 [n_ctx - 1 - n_ctx // 2, n_vocab]

The second half of each chunk is saved, as log probabilities in 16 bits with a scale and a minimum
per row. The minimum is at most 16 below the row's maximum.
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

from ..errors import SavedLogitsError

Floats = npt.NDArray[np.float32]

_MAGIC = b"_logits_"
_HEAD = struct.Struct("<8siii")  # magic, n_ctx, n_vocab, n_chunks
_ROW_HEAD = 4  # size of the scale and the minimum, in uint16
_MAX_CODE = np.float32(65535)
_RANGE = np.float32(16)
# Log probabilities are at most 0 and at least -16 - ln(2^31) = -37.5; rounded outwards.
_MIN_LOG_PROB, _MAX_LOG_PROB = -40.0, 1.0
_BLOCK_ROWS = 4  # rows of logits at a time, so that their copies stay in the L2 cache


def n_scored(n_ctx: int) -> int:
    """Return the number of scored positions of a chunk: n_ctx / 2 to n_ctx - 2."""
    return n_ctx - 1 - n_ctx // 2


def _row_codes(n_vocab: int) -> int:
    return 2 * ((n_vocab + 1) // 2) + _ROW_HEAD


@contextlib.contextmanager
def logits_writer(
    path: str | os.PathLike[str], tokens: npt.NDArray[np.int32], n_vocab: int
) -> Iterator[Callable[[Floats], None]]:
    """Yield a function that appends logits; the file is created when the block ends.

    Raises:
        OSError: the file cannot be written.
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
    """Return rows of logits encoded as rows of the file, uint16 [n, codes]."""
    high = logits.max(axis=1, keepdims=True)
    low = np.maximum(logits.min(axis=1, keepdims=True), high - _RANGE)
    total = np.exp(logits - high).sum(axis=1, keepdims=True, dtype=np.float64)
    scale = (high - low) / _MAX_CODE
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)
    rows = np.zeros((len(logits), _row_codes(logits.shape[1])), np.uint16)
    head = np.concatenate([scale, low - high - np.log(total).astype(np.float32)], axis=1)
    rows[:, :_ROW_HEAD] = np.ascontiguousarray(head, "<f4").view("<u2")
    codes = np.rint(inverse * (np.maximum(logits, low) - low))
    rows[:, _ROW_HEAD : _ROW_HEAD + logits.shape[1]] = codes
    return rows


class SavedLogits:
    """A file written by ``logits_writer`` or llama-perplexity.

    Attributes:
        tokens: int32 [n_chunks, n_ctx], the text.
        n_vocab: number of logits per row.

    Raises:
        SavedLogitsError: it is not such a file, or is truncated.
        GGUFError: it cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        data = read_bytes(self.path, mmap=True).data
        head = data[: _HEAD.size].tobytes()
        if len(head) < _HEAD.size or not head.startswith(_MAGIC):
            raise SavedLogitsError(
                f"{self.path}: is not a file of logits: it starts with {head[:8]!r}, must start "
                f"with {_MAGIC!r}; `save_logits` writes such files"
            )
        _, n_ctx, self.n_vocab, n_chunks = _HEAD.unpack(head)
        if n_ctx < 4 or self.n_vocab < 1 or n_chunks < 1:
            raise SavedLogitsError(
                f"{self.path}: {n_chunks} chunks of {n_ctx} tokens and {self.n_vocab} logits; the "
                "file is damaged"
            )
        start = _HEAD.size + 4 * n_ctx * n_chunks
        shape = n_chunks, n_scored(n_ctx), _row_codes(self.n_vocab)
        end = start + 2 * math.prod(shape)
        if data.size < end:
            raise SavedLogitsError(
                f"{self.path}: has {data.size} bytes, {n_chunks} chunks need {end}: it is "
                "truncated, save it again"
            )
        self.tokens = data[_HEAD.size : start].view("<i4").reshape(n_chunks, n_ctx)
        self._rows = data[start:end].view("<u2").reshape(shape)

    @property
    def n_chunks(self) -> int:
        """Number of chunks."""
        return len(self.tokens)

    @property
    def n_ctx(self) -> int:
        """Tokens per chunk."""
        return int(self.tokens.shape[1])

    def log_probs(self, chunk: int, rows: slice = slice(None)) -> Floats:
        """Return log probabilities of a chunk's scored positions, or of some of them.

        Shape:
            NumPy order, float32 [n, n_vocab]

        Raises:
            SavedLogitsError: a row's scale or minimum is invalid.
        """
        found = self._rows[chunk, rows]
        head = found[:, :_ROW_HEAD].copy().view("<f4")  # [n, 2]
        with np.errstate(invalid="ignore"):  # NaN, infinity
            scale, low = head.astype(np.float64).T
            high = low + scale * float(_MAX_CODE)
            ok = (scale >= 0) & (low >= _MIN_LOG_PROB) & (high <= _MAX_LOG_PROB)
        if not ok.all():
            row = int(ok.argmin())
            raise SavedLogitsError(
                f"{self.path}: chunk {chunk + 1} has a row with the scale {scale[row]:g} and the "
                f"minimum {low[row]:g}, which are not log probabilities; save it again"
            )
        values = found[:, _ROW_HEAD : _ROW_HEAD + self.n_vocab].astype(np.float32)
        values *= head[:, :1]
        values += head[:, 1:]
        return values
