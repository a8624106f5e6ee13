"""The candidate tokens and their logits, which samplers narrow and change.

    candidates = Candidates(logits)     # the whole vocabulary; nothing is copied
    candidates.keep_top(40)
    candidates.probs()                  # float32[40], sums to 1

Candidates are ordered by ascending id (``sorted`` is False), or by descending logit and then by id
(``sorted`` is True), so ties go to the lowest id. The caller's logits are not written to. NaN is
taken as -inf; if every logit is -inf, the first candidate has probability 1.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyggml.jit import inline_strict
from pyllama.sampling.top import Floats, Positions, top_positions


class Candidates:
    """Token ids and logits, one pair per candidate.

    Args:
        logits: float32[n], one per token id from 0.
        argmax: index of the largest logit, or of the first NaN, if known.

    Attributes:
        logits: float32[n_candidates]; read-only by convention, see `edit`.
        sorted: whether candidates are ordered by descending logit.
    """

    __slots__ = ("_ids", "_n_vocab", "_owned", "logits", "sorted")

    def __init__(self, logits: Floats, argmax: int | None = None) -> None:
        argmax = int(logits.argmax()) if argmax is None else argmax
        self._owned = math.isnan(logits[argmax])
        if self._owned:
            logits = np.where(np.isnan(logits), np.float32(-np.inf), logits)
        self.logits = logits
        self._n_vocab = logits.size
        self._ids: NDArray[np.int32] | None = None  # None: position i is token i
        self.sorted = False

    def __len__(self) -> int:
        return self.logits.size

    @property
    def ids(self) -> NDArray[np.int32]:
        """int32[n_candidates]: the token id of each candidate."""
        if self._ids is None:
            self._ids = np.arange(self.logits.size, dtype=np.int32)
        return self._ids

    def token(self, position: int) -> int:
        """The token id of one candidate."""
        return position if self._ids is None else int(self._ids[position])

    def argmax(self) -> int:
        """The position of the largest logit; the lowest id of equal ones."""
        return 0 if self.sorted else int(self.logits.argmax())

    def keep(self, which: Positions | NDArray[np.bool_] | slice) -> None:
        """Keep only these candidates; the positions must be ordered as `Candidates` are."""
        if isinstance(which, slice):
            self._ids = self.ids[which]
        else:
            positions = which.nonzero()[0] if which.dtype == np.bool_ else which
            self._ids = positions.astype(np.int32) if self._ids is None else self._ids[positions]
            self._owned = True
        self.logits = self.logits[which]

    def keep_top(self, k: int) -> None:
        """Keep the k largest logits, in descending order."""
        if self.sorted:
            if k < len(self):
                self.keep(slice(k))
        else:
            self.keep(top_positions(self.logits, k))
            self.sorted = True

    def edit(self, tokens: NDArray[np.intp]) -> tuple[Floats, Positions, NDArray[np.intp]]:
        """Order by ascending id, make the logits writable, and find tokens among them.

        Args:
            tokens: distinct token ids.

        Returns:
            The writable logits; the positions of those ``tokens`` that are candidates; the
            indices of these in ``tokens``.
        """
        if self.sorted:
            order = self.ids.argsort()
            self._ids, self.logits, self.sorted = self.ids[order], self.logits[order], False
        elif not self._owned:
            self.logits = self.logits.copy()
        self._owned = True
        if len(self) == self._n_vocab:
            return self.logits, tokens, np.arange(tokens.size)
        _, positions, found = np.intersect1d(
            self.ids, tokens, assume_unique=True, return_indices=True
        )
        return self.logits, positions, found

    def weights(self) -> Floats:
        """float32[n_candidates]: probabilities relative to the largest one."""
        top = self.logits[self.argmax()]
        if np.isfinite(top):
            with np.errstate(over="ignore"):  # logits near float32's minimum may overflow to -inf
                weights: Floats = np.exp(self.logits - top)
        elif top > 0:  # +inf: forced tokens share the probability
            weights = (self.logits == top).astype(np.float32)
        else:
            weights = np.zeros(len(self), np.float32)
            weights[0] = 1.0
        return weights

    def probs(self) -> Floats:
        """float32[n_candidates]: the softmax of the logits."""
        weights = self.weights()
        weights /= weights.sum()
        return weights


@inline_strict
def weight(logits: Any, i: Any) -> Any:
    """`Candidates.weights` of one of the descending ``logits``, for `fused`."""
    top = logits[0]
    if np.isfinite(top):
        return np.exp(logits[i] - top)
    return np.float32(logits[i] == top if top > 0 else i == 0)
