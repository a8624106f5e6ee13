"""Which tokens each token of some texts attends to, without a cache and without causality.

    rows = text_rows(np.array([3, 5]), window=0, hparams)      # int32[8, 4]

They are the rows of ``flash_attn_ranges``: keys and values are those of the ubatch itself, in which
the texts follow each other. Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..hparams import HParams
from .table import Ints

Ids = npt.NDArray[np.integer[Any]]


def text_positions(lengths: Sequence[int] | Ids) -> Ints:
    """The position of each token in its text, int32[T]."""
    firsts = np.cumsum(lengths) - lengths
    return np.arange(np.sum(lengths), dtype=np.int32) - np.repeat(firsts, lengths).astype(np.int32)


def text_segments(tokens: Ids, lengths: Ids, separator: int) -> Ints:
    """The token type of each token: 0 up to the first separator of its text, then 1; int32[T]."""
    seen = np.cumsum(tokens == separator) - (tokens == separator)  # before each token
    firsts = np.cumsum(lengths) - lengths
    types: Ints = np.minimum(seen - np.repeat(seen[firsts], lengths), 1).astype(np.int32)
    return types


def text_rows(lengths: Sequence[int] | Ids, window: int, hparams: HParams) -> Ints:
    """The rows of the tokens of texts: first token of the text, begin and end in it, position.

    Args:
        lengths: tokens of each text, at least one.
        window: size of the attention window; 0: the whole text.
        hparams: whether a window is symmetric. One of a causal model limits earlier tokens alone.

    Shape:
        NumPy order, int32[T, 4]

    Source: llama.cpp, ``llama_hparams::is_masked_swa``.
    """
    lengths = np.asarray(lengths)
    position = text_positions(lengths)
    rows = np.empty((len(position), 4), np.int32)
    rows[:, 0] = np.repeat(np.cumsum(lengths) - lengths, lengths)
    rows[:, 1], rows[:, 2], rows[:, 3] = 0, np.repeat(lengths, lengths), position
    if window and hparams.swa_symmetric:
        rows[:, 1] = np.maximum(position - window // 2, 0)
        rows[:, 2] = np.minimum(position + window // 2 + 1, rows[:, 2])
    elif window and hparams.swa_chunked:
        rows[:, 1] = position // window * window
    elif window:
        rows[:, 1] = np.maximum(position - window + 1, 0)
    return rows
