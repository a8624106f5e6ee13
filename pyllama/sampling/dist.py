"""The end of the chain: one draw from the candidates' softmax.

Dist(seed=42).pick(candidates)      # a token id
"""

from __future__ import annotations

import numpy as np

from pyllama.sampling.candidates import Candidates
from pyllama.sampling.params import RANDOM_SEED
from pyllama.sampling.rng import Mt19937

SMALLEST_DOUBLE = 5e-324


class Dist:
    """Draws a candidate by its probability; takes one double per token, whatever is left to choose.

    Source: llama.cpp llama-sampler.cpp, `llama_sampler_dist_apply`.
    """

    label = "dist"

    def __init__(self, seed: int = RANDOM_SEED) -> None:
        self._rng = Mt19937(seed)

    @property
    def seed(self) -> int:
        """The seed in use, also where it was drawn from the system."""
        return self._rng.seed

    def pick(self, candidates: Candidates) -> int:
        """A token id; never one of probability 0."""
        running = candidates.weights().astype(np.float64)
        np.cumsum(running, out=running)
        target = self._rng.uniform_double() * running[-1]
        # at 0 the search would stop at a leading token that is impossible
        position = running.searchsorted(max(target, SMALLEST_DOUBLE))
        return candidates.token(int(position))

    def skip(self) -> None:
        """Use up the random numbers of one pick, which keeps step with llama.cpp."""
        self._rng.skip(2)  # words of a double

    def reset(self) -> None:
        """Start the random stream again, with a new seed where it is random."""
        self._rng.reset()
