"""Mirostat 1 and 2: a truncation that holds the surprise of the text near a target.

    Mirostat2(tau=5.0, eta=0.1, seed=42).pick(candidates)       # a token id

The surprise of a token is ``-log2(p)``. Both keep a limit ``mu``, at first ``2 tau``, and subtract
``eta * (surprise - tau)`` from it after each token. They end a chain and draw the token.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from pyllama.parameters.sampling import RANDOM_SEED
from pyllama.sampling.candidates import Candidates
from pyllama.sampling.float_math import log_of, sum_of
from pyllama.sampling.samplers.dist import FinalDraw

MAX_INT32 = 2**31 - 1


class _Mirostat(FinalDraw):
    def __init__(self, tau: float, eta: float, seed: int = RANDOM_SEED) -> None:
        super().__init__(seed)
        self._tau, self._eta = np.float32(tau), np.float32(eta)
        self._mu = np.float32(2) * self._tau

    @abstractmethod
    def _truncate(self, candidates: Candidates) -> None:
        """Keep the likeliest candidates, sorted."""

    def pick(self, candidates: Candidates) -> int:
        # limits of any size, also infinite ones, are compared and clamped
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            self._truncate(candidates)
            probs = candidates.probs()
            position = self._pick_of(probs)
            surprise = -np.log2(probs[position])
            self._mu = self._mu - self._eta * (surprise - self._tau)
        return candidates.token(position)

    def mark(self) -> Any:
        return super().mark(), self._mu

    def rollback(self, mark: Any) -> None:
        stream, self._mu = mark
        super().rollback(stream)


class Mirostat(_Mirostat):
    """Keeps the likeliest tokens, as many as Zipf's law gives for ``mu``.

    Source: https://arxiv.org/abs/2007.14966; llama.cpp, `llama_sampler_mirostat_apply`.
    """

    label = "mirostat"
    N_ESTIMATED = 100  # likeliest tokens from which the exponent of Zipf's law is estimated

    def __init__(self, n_vocab: int, tau: float, eta: float, seed: int = RANDOM_SEED) -> None:
        super().__init__(tau, eta, seed)
        self._n_vocab = np.float32(n_vocab)

    def _truncate(self, candidates: Candidates) -> None:
        candidates.keep_top(len(candidates))
        probs = candidates.probs()[: self.N_ESTIMATED]
        ranks = np.arange(1, probs.size + 1, dtype=np.float32)
        t, b = log_of(ranks[1:] / ranks[:-1]), log_of(probs[:-1] / probs[1:])
        exponent = sum_of(t * b) / sum_of(t * t)
        epsilon, two = exponent - np.float32(1), np.float32(2)
        share = epsilon * two**self._mu / (np.float32(1) - self._n_vocab**-epsilon)
        k = share ** (np.float32(1) / exponent)
        candidates.keep_top(max(int(k), 1) if k <= MAX_INT32 else 1)  # as int(k) on x86; NaN: 1


class Mirostat2(_Mirostat):
    """Keeps the tokens with a surprise of at most ``mu``, at least one.

    Source: https://arxiv.org/abs/2007.14966; llama.cpp, `llama_sampler_mirostat_v2_apply`.
    """

    label = "mirostat-v2"

    def _truncate(self, candidates: Candidates) -> None:
        candidates.keep_top(len(candidates))
        count = np.count_nonzero(-np.log2(candidates.probs()) <= self._mu)
        candidates.keep_top(max(int(count), 1))
