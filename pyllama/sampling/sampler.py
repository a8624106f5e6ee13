"""The base class of samplers.

    class TopTwo(Sampler):
        label = "top-two"

        @classmethod
        def create(cls, setup):
            return cls()

        def apply(self, candidates):
            candidates.keep_top(2)

A sampler removes candidates or changes their logits in place. To add one, write such a class, add
its parameters to `SamplingParams` and its name to `chain.SAMPLERS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from pyllama.sampling.candidates import Candidates
from pyllama.sampling.params import SamplingParams


@dataclass(frozen=True, slots=True)
class ChainSetup:
    """The arguments of `Sampler.create`.

    Args:
        params: the user's parameters.
        n_vocab: number of logits.
        eog_ids: token ids that end a generation.
    """

    params: SamplingParams
    n_vocab: int
    eog_ids: tuple[int, ...] = ()


class Sampler(ABC):
    """A sampler of the chain; may have state, but keeps no reference to candidates.

    Attributes:
        label: the name that `Chain.describe` prints.
        keeps_argmax: whether it never changes the argmax, so that a greedy chain may skip it.
        keeps_all: whether it keeps all candidates, ordered by ascending id.
        fused_args: its parameters in `fused`.
    """

    label: ClassVar[str]
    keeps_argmax: ClassVar[bool] = False
    keeps_all: ClassVar[bool] = False
    fused_args: tuple[float, float] = (0, 0)

    @classmethod
    @abstractmethod
    def create(cls, setup: ChainSetup) -> Sampler | None:
        """The sampler for these parameters, or None if they disable it."""

    @abstractmethod
    def apply(self, candidates: Candidates) -> None:
        """Remove candidates or change their logits; at least one must remain."""

    def accept(self, token: int) -> None:  # noqa: B027  (most samplers have no history)
        """Add a token of the prompt or of the generation to the history."""

    def mark(self) -> object:
        """The current state, for `rollback`."""
        return None

    def rollback(self, mark: object) -> None:  # noqa: B027
        """Restore the state at a mark; later marks become invalid."""

    def reset(self) -> None:  # noqa: B027
        """Restore the initial state."""
