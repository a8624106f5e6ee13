"""The end of the chain: a draw from the softmax of the candidates.

Dist(seed=42).pick(candidates)      # a token id
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyggml.jit import inline_strict
from pyllama.sampling.candidates import Candidates, weight
from pyllama.sampling.params import RANDOM_SEED
from pyllama.sampling.rng import Mark, Mt19937

SMALLEST_DOUBLE = 5e-324


class Distribution(NamedTuple):
    """Tokens and their probabilities; other tokens have probability 0.

    Attributes:
        ids: int32[n], distinct.
        probs: float64[n], sum to 1.
    """

    ids: NDArray[np.int32]
    probs: NDArray[np.float64]


@inline_strict
def draw(logits: Any, n: Any, uniform: Any) -> Any:
    """The position that `Dist.pick` returns for n descending logits, for `fused`."""
    total = 0.0
    for i in range(n):
        total += weight(logits, i)
    target, running, i = max(uniform * total, SMALLEST_DOUBLE), weight(logits, 0), 0
    while running < target and i < n - 1:
        i += 1
        running += weight(logits, i)
    return i


class Dist:
    """Draws a candidate by its probability; consumes one double per token in any case.

    Source: llama.cpp llama-sampler.cpp, `llama_sampler_dist_apply`.
    """

    label = "dist"

    def __init__(self, seed: int = RANDOM_SEED) -> None:
        self._rng = Mt19937(seed)

    @property
    def seed(self) -> int:
        """The seed in use, including a random one."""
        return self._rng.seed

    def uniform(self) -> float:
        """The random number for one `pick`, in [0, 1)."""
        return self._rng.uniform_double()

    def pick(self, candidates: Candidates, uniform: float | None = None) -> int:
        """A token id of positive probability.

        Args:
            uniform: random number in [0, 1); None to draw one.
        """
        running = candidates.weights().astype(np.float64)
        np.cumsum(running, out=running)
        target = (self.uniform() if uniform is None else uniform) * running[-1]
        # a target of 0 would match a leading token of probability 0
        position = running.searchsorted(max(target, SMALLEST_DOUBLE))
        return candidates.token(int(position))

    def skip(self) -> None:
        """Consume the random numbers of one pick, to stay in step with llama.cpp."""
        self._rng.n_skip += 2  # words of a double

    def mark(self) -> Mark:
        """The position in the random stream, for `rollback`."""
        return self._rng.mark()

    def rollback(self, mark: Mark) -> None:
        """Go back to a marked position."""
        self._rng.rollback(mark)

    def reset(self) -> None:
        """Restart the random stream, with a new seed if it is random."""
        self._rng.reset()
