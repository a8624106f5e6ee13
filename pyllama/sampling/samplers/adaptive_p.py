"""Adaptive-p: prefers tokens near a target probability, adapted to the recent ones.

    AdaptiveP(target=0.3, decay=0.9, seed=42).pick(candidates)      # a token id

It ends a chain and draws the token, after truncations such as min-p. The logit of a token becomes
``5 - 10 d^2 / (1 + d)`` of its distance ``d = |p - adapted| / 0.3``, where ``adapted`` is
``2 target - average`` of the original probabilities of the generated tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pyllama.parameters.sampling import RANDOM_SEED
from pyllama.sampling.candidates import Candidates
from pyllama.sampling.samplers.dist import FinalDraw

WIDTH, PEAK, SHARPNESS = np.float32(0.3), np.float32(5), np.float32(10)
MAX_DECAY = 0.99


class AdaptiveP(FinalDraw):
    """Draws from logits that peak at the adapted target; a target below 0 draws as `Dist`.

    Args:
        target: probability from 0 to 1.
        decay: of the exponential moving average, from 0 to 0.99.

    Source: llama.cpp llama-sampler.cpp, `llama_sampler_adaptive_p_apply`.
    """

    label = "adaptive-p"

    def __init__(self, target: float, decay: float, seed: int = RANDOM_SEED) -> None:
        super().__init__(seed)
        one = np.float32(1)
        self._target, self._decay = np.float32(target), np.float32(min(max(decay, 0), MAX_DECAY))
        self._sum, self._weight = self._target / (one - self._decay), one / (one - self._decay)
        self._pending: tuple[int, np.float32] | None = None  # the drawn token, its probability

    def pick(self, candidates: Candidates) -> int:
        probs = candidates.probs()
        if self._target < 0:
            return candidates.token(self._pick_of(probs))
        zero, one, two = np.float32(0), np.float32(1), np.float32(2)
        target = min(self._target, one)
        adapted = min(max(two * target - self._sum / self._weight, zero), one)
        distance = np.abs((probs - adapted) * (one / WIDTH))
        logits = PEAK - SHARPNESS * distance * distance / (one + distance)
        candidates.logits = np.where(candidates.logits == -np.inf, candidates.logits, logits)
        candidates.sorted = False
        position = self._pick_of(candidates.probs())
        token = candidates.token(position)
        self._pending = token, probs[position]
        return token

    def accept(self, token: int) -> None:
        if self._pending is not None and self._pending[0] == token:
            self._sum = self._pending[1] + self._decay * self._sum
            self._weight = np.float32(1) + self._decay * self._weight
        self._pending = None

    def mark(self) -> Any:
        return super().mark(), self._sum, self._weight, self._pending

    def rollback(self, mark: Any) -> None:
        stream, self._sum, self._weight, self._pending = mark
        super().rollback(stream)
