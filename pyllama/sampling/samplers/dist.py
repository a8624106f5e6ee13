"""The end of the chain: a draw from the softmax of the candidates.

Dist(seed=42).pick(candidates)      # a token id
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from pyggml.compiler.jit import inline_strict, jitted
from pyggml.compiler.pointers import f32_ptr
from pyllama.parameters.sampling import RANDOM_SEED
from pyllama.sampling.candidates import Candidates, weight
from pyllama.sampling.rng import Mt19937
from pyllama.sampling.top import Floats

SMALLEST_DOUBLE = 5e-324
PICK_WORDS = 2  # random words of 32 bits that a pick takes: one double


class Distribution(NamedTuple):
    """Tokens and their probabilities; other tokens have probability 0.

    Attributes:
        ids: int32[n], distinct.
        probs: float64[n], sum to 1.
    """

    ids: NDArray[np.int32]
    probs: NDArray[np.float64]


@inline_strict
def draw(logits: Any, n: Any, top: Any, uniform: Any) -> Any:
    """The position that `Dist.pick` returns for n logits, for `fused`; the largest is ``top``."""
    total = 0.0
    for i in range(n):
        total += weight(logits, i, top)
    target, running, i = max(uniform * total, SMALLEST_DOUBLE), weight(logits, 0, top), 0
    while running < target and i < n - 1:
        i += 1
        running += weight(logits, i, top)
    return i


@jitted(types.int64(types.int64, types.int64, types.float64), nogil=False)
def _position(weights: Any, n: Any, uniform: Any) -> Any:
    """The first position at which the running sum of n weights reaches its part of the total."""
    weights, total, running = f32_ptr(weights), 0.0, 0.0
    for i in range(n):
        total += weights[i]
    # a target of 0 would match a leading token of probability 0
    target = max(uniform * total, SMALLEST_DOUBLE)
    for i in range(n):
        running += weights[i]
        if running >= target:
            return i
    return n - 1


class FinalDraw(ABC):
    """The last link of a chain, which chooses the token.

    Attributes:
        label: the name that `Chain.describe` prints.
        rng: the random stream.
    """

    label: ClassVar[str]

    def __init__(self, seed: int = RANDOM_SEED) -> None:
        self.rng = Mt19937(seed)

    @property
    def seed(self) -> int:
        """The seed in use, including a random one."""
        return self.rng.seed

    @abstractmethod
    def pick(self, candidates: Candidates) -> int:
        """A token id of positive probability."""

    def accept(self, token: int) -> None:  # noqa: B027  (most have no history)
        """Add a generated token to the history."""

    def mark(self) -> Any:
        """The state, for `rollback`."""
        return self.rng.mark()

    def rollback(self, mark: Any) -> None:
        """Restore a marked state."""
        self.rng.rollback(mark)

    def _pick_of(self, probs: Floats) -> int:
        """A position drawn as by std::discrete_distribution; of one there is no random number.

        Source: libstdc++ random.tcc, `discrete_distribution`.
        """
        if probs.size < 2:
            return 0
        running = probs.astype(np.float64).cumsum()
        running = (probs / running[-1]).cumsum()
        running[-1] = 1.0
        return int(running.searchsorted(max(self.rng.uniform_double(), SMALLEST_DOUBLE)))


class Dist(FinalDraw):
    """Draws a candidate by its probability; consumes one double per token in any case.

    Source: llama.cpp llama-sampler.cpp, `llama_sampler_dist_apply`.
    """

    label = "dist"

    def uniform(self) -> float:
        """The random number for one `pick`, in [0, 1)."""
        return self.rng.uniform_double()

    def pick(self, candidates: Candidates, uniform: float | None = None) -> int:
        """A token id of positive probability.

        Args:
            uniform: random number in [0, 1); None to draw one.
        """
        weights = candidates.weights()
        uniform = self.uniform() if uniform is None else uniform
        return candidates.token(_position(weights.ctypes.data, weights.size, uniform))

    def skip(self) -> None:
        """Consume the random numbers of one pick, to stay in step with llama.cpp."""
        self.rng.n_skip += PICK_WORDS
