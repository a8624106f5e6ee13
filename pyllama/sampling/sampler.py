"""The protocol of one link in the sampling chain.

    class TopTwo(Sampler):
        label = "top-two"

        @classmethod
        def create(cls, setup):
            return cls()

        def apply(self, candidates):
            candidates.keep_top(2)

A sampler narrows or re-weighs candidates in place. A new one is such a class, its parameters in
`SamplingParams` and a line in `chain.SAMPLERS`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from pyllama.sampling.candidates import Candidates
from pyllama.sampling.params import SamplingParams


@dataclass(frozen=True, slots=True)
class ChainSetup:
    """What samplers are made from.

    Args:
        params: the user's parameters.
        n_vocab: number of logits.
        eog_ids: token ids that end a generation.
    """

    params: SamplingParams
    n_vocab: int
    eog_ids: tuple[int, ...] = ()


class Sampler(ABC):
    """One link of the chain; it keeps whatever state it needs, and no reference to candidates.

    Attributes:
        label: the name that `Chain.describe` prints.
        keeps_best: Whether the best candidate before is always the best one after, which lets a
            greedy chain leave this sampler out.
        keeps_all: Whether all candidates stay, by ascending id.
        numbers: What `fused` has to know of one that it can fuse.
    """

    label: ClassVar[str]
    keeps_best: ClassVar[bool] = False
    keeps_all: ClassVar[bool] = False
    numbers: tuple[float, float] = (0, 0)

    @classmethod
    @abstractmethod
    def create(cls, setup: ChainSetup) -> Sampler | None:
        """The sampler for these parameters, or None where they switch it off."""

    @abstractmethod
    def apply(self, candidates: Candidates) -> None:
        """Narrow or re-weigh the candidates; at least one must remain."""

    def accept(self, token: int) -> None:  # noqa: B027  (most samplers have no history)
        """Take note of a token of the prompt or of the generation."""

    def mark(self) -> object:
        """What `rollback` needs to undo all that is accepted or drawn from here on."""
        return None

    def rollback(self, mark: object) -> None:  # noqa: B027
        """Go back to a mark, which stays valid; later marks do not."""

    def reset(self) -> None:  # noqa: B027
        """Forget everything accepted or drawn."""
