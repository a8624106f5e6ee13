"""Pools the rows that a model computes for a text's tokens into one embedding.

    pooled = PooledRows("mean", n_tokens=40, causal=True)
    pooled.add(0, context.embeddings)              # as parts of the text are evaluated
    pooled.result()                                # float32[n_embd]

Rows are pooled on the host: a text may be evaluated in several parts, among other texts, and its
embedding has the same bits. Source: llama.cpp, ``llm_graph_context::build_pooling``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .request import Floats


class PooledRows:
    """Collects the rows of a text while it is evaluated.

    Args:
        pooling: one of ``POOLINGS``: ``none`` keeps all rows, ``mean`` averages them, ``cls`` takes
            the first and ``last`` the last one; ``rank`` takes the scores of the last one, of the
            first one if the model attends to later tokens.
        n_tokens: tokens of the text.
        causal: whether rows depend on earlier tokens only, so that the text may be cut.
        averages_scores: whether ``rank`` averages the scores of all rows.

    Attributes:
        pooling: as given.
    """

    def __init__(
        self, pooling: str, n_tokens: int, causal: bool, averages_scores: bool = False
    ) -> None:
        self.pooling, self._n_tokens, self._causal = pooling, n_tokens, causal
        self._takes_all = pooling in ("none", "mean") or (pooling == "rank" and averages_scores)
        self._kept: list[Floats] = []  # the result's rows
        self._sum: npt.NDArray[np.float64] | None = None
        self._is_last = pooling == "last" or (pooling == "rank" and causal)
        self._at = n_tokens - 1 if self._is_last else 0  # token of the only row, with a single one
        self._n_done = self._at  # leading tokens whose rows were taken, or are not needed

    @property
    def n_reusable(self) -> int:
        """Number of leading tokens that need not be evaluated if the cache has them."""
        return self._n_done if self._causal else 0

    @property
    def rows(self) -> str:
        """The tokens of a whole text whose rows are needed, for ``Context.encode``."""
        return "all" if self._takes_all else "last" if self._is_last else "first"

    def wanted(self, first: int, n: int) -> str | Sequence[bool]:
        """The tokens ``first`` to ``first + n`` whose rows are needed, for ``Batch``."""
        if self._takes_all:
            return "all"
        if self._kept or not first <= self._at < first + n:
            return "none"
        return [i == self._at for i in range(first, first + n)]

    def add(self, first: int, rows: Floats) -> None:
        """Take the ``wanted`` rows of tokens from index ``first`` on.

        Those of tokens evaluated before are ignored.
        """
        if not self._takes_all:
            if len(rows):
                self._kept, self._n_done = [rows[0].copy()], self._n_tokens
            return
        new = rows[max(0, self._n_done - first) :]
        self._n_done += len(new)
        if self.pooling == "none":
            self._kept.append(new.copy())
            return
        total = np.zeros((1, rows.shape[1])) if self._sum is None else self._sum
        # row by row: the order of additions does not depend on how texts are cut
        self._sum = np.concatenate((total, new)).sum(axis=0, keepdims=True)

    def add_text(self, rows: Floats) -> None:
        """Take the rows of all tokens of the text, or the only one that is needed."""
        only = not self._takes_all and len(rows) > 1
        self.add(0, rows[self._at : self._at + 1] if only else rows)

    def result(self) -> Floats:
        """The pooled rows: float32[n_embd], [n_tokens, n_embd] or, of scores, [n_cls_out]."""
        if self.pooling == "none":
            return np.concatenate(self._kept)
        if self._sum is not None:
            mean: Floats = (self._sum[0] / self._n_tokens).astype(np.float32)
            return mean
        return self._kept[0]
