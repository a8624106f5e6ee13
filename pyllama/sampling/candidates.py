"""The tokens that may still be chosen, with their logits: what samplers pass on to each other.

    candidates = Candidates(logits)     # the whole vocabulary; nothing is copied
    candidates.keep_top(40)
    candidates.probs()                  # float32[40], sums to 1

Candidates stand either by ascending id (``sorted`` is False) or by descending logit with equal
logits by ascending id (``sorted`` is True), so ties always go to the lowest id. The caller's logits
are never written. NaN counts as -inf; where every logit is -inf the first candidate has it all.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from pyggml.jit import inline_strict
from pyllama.sampling.top import Floats, Positions, top_positions


class Candidates:
    """Token ids and logits, one pair per candidate.

    Args:
        logits: float32[n], one per token id from 0.
        best: where the largest one is, or the first NaN, if that is known.

    Attributes:
        logits: float32[n_candidates]; read-only by convention, see `edit`.
        sorted: Whether candidates stand by descending logit.
    """

    __slots__ = ("_ids", "_n_vocab", "_owned", "logits", "sorted")

    def __init__(self, logits: Floats, best: int | None = None) -> None:
        best = int(logits.argmax()) if best is None else best
        self._owned = math.isnan(logits[best])
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

    def best(self) -> int:
        """The position of the largest logit; the lowest id where several are equal."""
        return 0 if self.sorted else int(self.logits.argmax())

    def keep(self, which: Positions | NDArray[np.bool_] | slice) -> None:
        """Drop all candidates but these; positions must be in an order of `Candidates`."""
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
        """Make the logits writable, by ascending id, and find tokens among them.

        Args:
            tokens: distinct token ids.

        Returns:
            The logits to write to; the positions of those tokens that are still candidates;
            and where each of these stands in `tokens`.
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
        """float32[n_candidates]: probabilities relative to that of the likeliest."""
        top = self.logits[self.best()]
        if np.isfinite(top):
            with np.errstate(over="ignore"):  # masks near float32's lowest value end as -inf
                weights: Floats = np.exp(self.logits - top)
        elif top > 0:  # forced tokens share all there is
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
def weight(logits, i):  # type: ignore[no-untyped-def]
    """One of `Candidates.weights` where logits descend, for `fused`."""
    top = logits[0]
    if np.isfinite(top):
        return np.exp(logits[i] - top)
    return np.float32(logits[i] == top if top > 0 else i == 0)
