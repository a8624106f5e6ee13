"""One text of a request, as the engine keeps it while it waits and runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ..sampling import Chain
from .request import Event, Request, Usage
from .sequence import Sequence
from .text import TextAssembler


@dataclass(slots=True, eq=False)
class Job:
    """One text of a request.

    Invariant while it runs: its sequence's memory holds ``tokens[:sequence.n_tokens]``. A prompt, a
    preemption and a context shift only differ in how many tokens are left to evaluate.

    Attributes:
        tokens: prompt and chosen tokens, without those that a context shift took out.
        lease: the sequence that it must run in, None for any.
        sequence: the one that it runs in, None while it waits; key: what this calls its owner.
        sink: called with its events, None for the results of ``Engine.step``.
        is_run: whether a ``run`` makes its steps; paused: not now, so it does not go on.
        n_cached: tokens of the prompt that were in memory already, -1 before it ran.
        n_borrowed: tokens at the beginning that share the cells of another sequence.
        saved: its memory, where evaluating the tokens again would not give the same bits.
        arrival: of two with one priority, the lower one goes first.
    """

    request: Request
    number: int
    choice: int
    tokens: list[int]
    chain: Chain
    text: TextAssembler | None
    is_eog: Callable[[int], bool]
    n_left: int
    arrival: int
    lease: Sequence | None = None
    sink: Callable[[Event], None] | None = None
    deadline: float | None = None
    sequence: Sequence | None = None
    key: object = field(default_factory=object)
    is_run: bool = False
    paused: bool = False
    n_prompt: int = 0
    n_cached: int = -1
    n_borrowed: int = 0
    n_made: int = 0
    last_step: int = 0
    saved: bytes = b""
    n_saved: int = 0
    n_exact: int = 0

    def is_steady(self, sequence: Sequence, n: int) -> bool:
        """Whether it goes on by one token, after the ``n`` of its sequence."""
        return (
            len(self.tokens) == n + 1
            and sequence.owner is self.key
            and not self.paused
            and sequence.on_logits is None
        )

    @property
    def rank(self) -> tuple[int, int]:
        """Low ones go first."""
        return -self.request.priority, self.arrival

    @property
    def usage(self) -> Usage:
        """Its numbers of tokens so far."""
        held = self.sequence.n_tokens if self.sequence is not None else 0
        return Usage(self.n_prompt, max(self.n_cached, 0), held, self.n_made)
