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

Floats = NDArray[np.float32]
Positions = NDArray[np.intp]

MIN_COLUMNS = 1024  # of the grid whose column maxima bound the top k; fastest at 32k-128k tokens
MIN_ROWS = 4
MIN_SIZE_FOR_KEYS = 512


class Candidates:
    """Token ids and logits, one pair per candidate.

    Args:
        logits: float32[n], one per token id from 0.

    Attributes:
        logits: float32[n_candidates]; read-only by convention, see `edit`.
        sorted: Whether candidates stand by descending logit.
    """

    __slots__ = ("_ids", "_n_vocab", "_owned", "logits", "sorted")

    def __init__(self, logits: Floats) -> None:
        self._owned = math.isnan(logits[logits.argmax()])  # argmax stops at the first NaN
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


def top_positions(logits: Floats, k: int) -> Positions:
    """Positions of the k largest values, as a stable descending sort has them.

    Reads a large vocabulary twice and sorts only a handful: laid out as a grid, the k-th largest of
    the column maxima is a lower bound of the k-th largest value, and few values lie above it.

    Args:
        logits: float32[n] without NaN.
        k: how many, at least 1; all of them when k >= n.
    """
    n = logits.size
    if n <= 4 * k:
        return _descending(logits)[:k]
    bound = _lower_bound(logits, k)
    chosen = logits >= bound
    if np.count_nonzero(chosen) > 4 * k:  # too low, or equal to many
        chosen = logits > bound
        if np.count_nonzero(chosen) >= k:
            bound = np.partition(logits, n - k)[n - k]
            chosen = logits > bound
        n_equal = k - np.count_nonzero(chosen)
        chosen[(logits == bound).nonzero()[0][:n_equal]] = True
    positions = chosen.nonzero()[0]
    return positions[_descending(logits[positions])[:k]]


def _lower_bound(logits: Floats, k: int) -> np.float32:
    """The k-th largest value or, cheaper, one below it that few values exceed."""
    n_columns = max(MIN_COLUMNS, 4 * k)
    n_rows = logits.size // n_columns
    if n_rows >= MIN_ROWS:
        logits = logits[: n_rows * n_columns].reshape(n_rows, n_columns).max(axis=0)
    bound: np.float32 = np.partition(logits, logits.size - k)[logits.size - k]
    return bound


def _descending(logits: Floats) -> Positions:
    """Positions by descending value, equal ones by ascending position."""
    negated = np.subtract(0, logits, dtype=np.float32)  # 0 - x, unlike -x, has no negative zero
    if logits.size < MIN_SIZE_FOR_KEYS:
        return negated.argsort(kind="stable")
    # NumPy sorts integers several times faster than it sorts floats stably: order the bits of a
    # float like a signed integer's and put the position below them.
    bits = negated.view(np.int32)
    keys = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).astype(np.int64) << 32
    keys |= np.arange(keys.size)
    keys.sort()
    order: Positions = (keys & 0xFFFFFFFF).astype(np.intp, copy=False)
    return order
