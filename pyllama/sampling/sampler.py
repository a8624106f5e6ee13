"""The base class of samplers, also of the user's own.

    class TopTwo(Sampler):
        label = "top-two"

        def apply(self, candidates):
            candidates.keep_top(2)

    SamplingParams(samplers=("penalties", TopTwo(), "temperature"))

A sampler removes candidates or changes their logits in place. A sampler of this package has its
rows in `pyllama.parameters.sampling`; a user's sampler is an object (or a
function of the candidates) in ``SamplingParams.samplers``, see `custom`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pyllama.parameters.sampling import SamplingParams
from pyllama.sampling.candidates import Candidates

if TYPE_CHECKING:
    from pyllama.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ChainSetup:
    """The arguments of `Sampler.create`.

    Args:
        params: the user's parameters.
        n_vocab: number of logits.
        eog_ids: token ids that end a generation.
        stop_ids: further token ids that end this generation.
        tokenizer: for the samplers that need the text of tokens.
        seed: seed of the random streams; not a random one.
    """

    params: SamplingParams
    n_vocab: int
    eog_ids: tuple[int, ...] = ()
    stop_ids: tuple[int, ...] = ()
    tokenizer: Tokenizer | None = None
    seed: int = 0


class Sampler(ABC):
    """A sampler of the chain; may have state, but keeps no reference to candidates.

    Attributes:
        label: the name that `Chain.describe` prints.
        keeps_argmax: whether it never changes the argmax, so that a greedy chain may skip it.
        keeps_all: whether it keeps all candidates and their order.
        is_stateless: whether it never changes, so that `mark` and `rollback` may be skipped.
        fused_args: its parameters in `fused`.
    """

    label: ClassVar[str] = ""
    keeps_argmax: ClassVar[bool] = False
    keeps_all: ClassVar[bool] = False
    is_stateless: ClassVar[bool] = False
    fused_args: tuple[float, float, float] = (0, 0, 0)

    @classmethod
    def create(cls, setup: ChainSetup) -> Self | None:
        """The sampler for these parameters, or None if they disable it."""
        return cls()

    @abstractmethod
    def apply(self, candidates: Candidates) -> None:
        """Remove candidates or change their logits; at least one must remain."""

    def keeps_argmax_of(self, token: int) -> bool:
        """Whether ``token``, if it is the argmax, is now certain to be it afterwards as well."""
        return False

    def accept(self, token: int) -> None:  # noqa: B027  (most samplers have no history)
        """Add a generated token to the history."""

    def accept_prompt(self, tokens: Sequence[int]) -> None:
        """Add the prompt to the history; override it if only generated tokens count."""
        for token in tokens:
            self.accept(token)

    def mark(self) -> Any:
        """The current state, for `rollback`; by default a copy of all attributes."""
        return deepcopy(self.__dict__)

    def rollback(self, mark: Any) -> None:
        """Restore the state at a mark, which may be used again; later marks become invalid."""
        self.__dict__ = deepcopy(mark)
