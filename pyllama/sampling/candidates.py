"""The candidate tokens and their logits, which samplers narrow and change.

    candidates = Candidates(logits)     # the whole vocabulary; nothing is copied
    candidates.keep_top(40)
    candidates.probs()                  # float32[40], sums to 1

Candidates start in the order of their ids. `keep_top` orders them by descending logit and sets
``sorted``; equal logits stay in order, so ties go to the lowest id. Of a whole vocabulary only the
logits are sorted, which is twice as fast, and an id is found by its logit when it is needed. As in
llama.cpp, the final draw depends on the order. The caller's logits are not written to. NaN is taken
as -inf; if every logit is -inf, the first candidate has probability 1.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyggml.compiler.jit import inline_strict
from pyllama.sampling.float_math import exp32, exp_differences, sum_of
from pyllama.sampling.top import Floats, Positions, top_pairs, top_positions


class Candidates:
    """Token ids and logits, one pair per candidate.

    Args:
        logits: float32[n], one per token id from 0.
        argmax: index of the largest logit, or of the first NaN, if known.

    Attributes:
        logits: float32[n_candidates]; may be replaced, but not written to, see `writable`.
        sorted: whether candidates are ordered by descending logit.
    """

    __slots__ = ("_ids", "_n_vocab", "_owned", "_ranked", "logits", "sorted")

    def __init__(self, logits: Floats, argmax: int | None = None) -> None:
        argmax = int(logits.argmax()) if argmax is None else argmax
        self._owned = math.isnan(logits[argmax])
        if self._owned:
            logits = np.where(np.isnan(logits), np.float32(-np.inf), logits)
        self.logits = logits
        self._n_vocab = logits.size
        self._ids: NDArray[np.int32] | None = None  # None: that of position i is i
        # the logits by id and in descending order; then ``_ids`` are places in that order
        self._ranked: tuple[Floats, Floats] | None = None
        self.sorted = False

    def __len__(self) -> int:
        return self.logits.size

    @property
    def ids(self) -> NDArray[np.int32]:
        """int32[n_candidates]: the token id of each candidate."""
        self._ids = self._places()
        if self._ranked is not None:
            self._ids = top_positions(self._ranked[0], self._n_vocab)[self._ids]
            self._ranked = None
        return self._ids

    def token(self, position: int) -> int:
        """The token id of one candidate."""
        place = position if self._ids is None else int(self._ids[position])
        if self._ranked is None:
            return place
        logits, descending = self._ranked
        logit = descending[place]
        equal = (logits == logit).nonzero()[0]
        return int(equal[place - np.count_nonzero(descending > logit)])

    def argmax(self) -> int:
        """The position of the largest logit; the lowest id of equal ones."""
        return 0 if self.sorted else int(self.logits.argmax())

    def keep(self, which: Positions | NDArray[np.bool_] | slice) -> None:
        """Keep only these candidates, in this order; ``sorted`` does not change."""
        if isinstance(which, slice):
            self._ids = self._places()[which]
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
        elif self._has_all() and k >= len(self) and not np.isnan(self.logits).any():
            self._ranked = self.logits, -np.sort(-self.logits)
            self.logits, self._owned, self.sorted = self._ranked[1], False, True
        else:
            positions, self.logits = top_pairs(self.logits, k)
            self._ids = positions if self._ids is None else self._ids[positions]
            self._owned = self.sorted = True

    def replace(self, token: int) -> None:
        """Keep one token only, which need not be a candidate."""
        self.logits, self._ids = np.ones(1, np.float32), np.array([token], np.int32)
        self._ranked, self._owned, self.sorted = None, True, True

    def writable(self) -> Floats:
        """The logits, copied if they are the caller's, to be written to."""
        if not self._owned:
            self.logits, self._owned = self.logits.copy(), True
        return self.logits

    def edit(self, tokens: NDArray[np.intp]) -> tuple[Floats, Positions, NDArray[np.intp]]:
        """Make the logits writable and find tokens; the candidates are then no longer ``sorted``.

        Args:
            tokens: distinct token ids.

        Returns:
            The writable logits; the positions of those ``tokens`` that are candidates; the
            indices of these in ``tokens``.
        """
        logits, self.sorted = self.writable(), False
        if self._has_all():
            return logits, tokens, np.arange(tokens.size)
        positions = np.full(self._n_vocab, -1, np.intp)
        positions[self.ids] = np.arange(len(self))
        positions = positions[tokens]
        found = (positions >= 0).nonzero()[0]
        return logits, positions[found], found

    def _has_all(self) -> bool:
        """Whether position i is token i."""
        return self._ids is None and self._ranked is None

    def _places(self) -> NDArray[np.int32]:
        return np.arange(self._n_vocab, dtype=np.int32) if self._ids is None else self._ids

    def weights(self) -> Floats:
        """float32[n_candidates]: probabilities relative to the largest one."""
        top = self.logits[self.argmax()]
        if np.isfinite(top):
            weights = exp_differences(self.logits, top)
        elif top > 0:  # +inf: forced tokens share the probability
            weights = (self.logits == top).astype(np.float32)
        else:
            weights = np.zeros(len(self), np.float32)
            weights[0] = 1.0
        return weights

    def probs(self) -> Floats:
        """float32[n_candidates]: the softmax of the logits."""
        weights = self.weights()
        weights /= sum_of(weights)
        return weights


@inline_strict
def weight(logits: Any, i: Any, top: Any) -> Any:
    """`Candidates.weights` of one logit, for `fused`; the largest is ``top``."""
    if np.isfinite(top):
        return exp32(logits[i] - top)
    return np.float32(logits[i] == top if top > 0 else i == 0)
