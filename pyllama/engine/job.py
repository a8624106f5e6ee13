"""The engine's state of one text of a request, while it waits and runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ..grammar import Matcher
from ..sampling import Chain
from ..speculative.verify import Mark, Verifier
from .logprobs import PromptLogprobs
from .pooling import PooledRows
from .request import EndReason, Event, Request, TokenLogprob, Usage
from .sequence import Sequence
from .text import TextAssembler


@dataclass(slots=True)
class Verified:
    """A token that was sampled from a row of a step with drafts.

    Attributes:
        token: the token; None if a criterion ended the text before it.
        logprob: if the request needs it.
        mark: the verifier's state after the token, if it may be rolled back.
        drafted: whether it was drafted.
    """

    token: int | None
    logprob: TokenLogprob | None = None
    mark: Mark | None = None
    drafted: bool = False


@dataclass(slots=True, eq=False)
class Job:
    """One text of a request, and the `View` of it that drafters see.

    Invariant while it runs: the cache of its sequence holds ``tokens[:sequence.n_tokens]``. After
    a prompt, a preemption or a context shift, the remaining tokens are evaluated.

    Attributes:
        tokens: prompt and generated tokens, without those removed by a context shift.
        ends: tokens that end it.
        lease: the sequence that it must run in, None for any.
        sequence: the sequence that it runs in, None while it waits.
        key: identifies the job as the ``owner`` of its sequence.
        sink: called with its events; None to return them from ``Engine.step``.
        is_run: whether a ``run`` generator makes its steps.
        paused: whether that generator is suspended.
        n_cached: prompt tokens found in the cache, -1 before it ran.
        n_shared_cells: leading tokens whose cells belong to another sequence too.
        n_logprobs: number of likeliest tokens to find at each step; None if no log-probabilities
            are needed.
        logprob: sum of the log-probabilities of the generated tokens.
        prompt_logprobs: collects those of the prompt; None if not requested, or complete.
        pooled: collects the rows of an embedding; None for a text.
        max_draft: maximum number of drafted tokens.
        n_drafted: number of tokens drafted so far.
        verifier: verifies its drafts; None before the first one.
        verified: tokens that are not in ``tokens`` yet, because the generator of its `run` has not
            yielded those before them.
        mark: the verifier's state after ``tokens``, if ``verified`` has others.
        saved: its cache, if evaluating the tokens again would give other bits.
        arrival: order of submission.
    """

    request: Request
    number: int
    choice: int
    tokens: list[int]
    chain: Chain
    text: TextAssembler | None
    ends: Mapping[int, EndReason]
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
    n_shared_cells: int = 0
    n_generated: int = 0
    n_logprobs: int | None = None
    logprob: float = 0.0
    prompt_logprobs: PromptLogprobs | None = None
    pooled: PooledRows | None = None
    last_step: int = 0
    max_draft: int = 0
    n_drafted: int = 0
    verifier: Verifier | None = None
    verified: deque[Verified] = field(default_factory=deque)
    mark: Mark | None = None
    saved: bytes = b""
    n_saved: int = 0
    n_exact: int = 0

    @property
    def id(self) -> int:
        """Number of the text for drafters."""
        return self.arrival

    @property
    def matcher(self) -> Matcher | None:
        """See `View.matcher`."""
        return self.chain.matcher

    def is_steady(self, sequence: Sequence, n: int) -> bool:
        """Whether one token is left to evaluate after the ``n`` of its sequence, and to sample."""
        if self.paused or self.pooled is not None:
            return False
        return len(self.tokens) == n + 1 and sequence.owner is self.key

    @property
    def reusable(self) -> list[int]:
        """The tokens whose common prefix with a cache need not be evaluated."""
        if not self.request.reuse and self.n_cached < 0:
            return []
        if self.prompt_logprobs is not None:
            return self.tokens[: self.prompt_logprobs.n_evaluated + 1]
        if self.pooled is not None:
            return self.tokens[: self.pooled.n_reusable + 1]
        return self.tokens

    @property
    def rank(self) -> tuple[int, int]:
        """Sort key: higher priorities first, then earlier submissions."""
        return -self.request.priority, self.arrival

    @property
    def usage(self) -> Usage:
        """Token counts so far."""
        sequence, n_cached = self.sequence, max(self.n_cached, 0)
        if sequence is None:
            return Usage(self.n_prompt, n_cached, 0, self.n_generated)
        n_held, seq_id = sequence.n_tokens, sequence.seq_id
        return Usage(self.n_prompt, n_cached, n_held, self.n_generated, seq_id)

    @property
    def seq_id(self) -> int | None:
        """The sequence that it must run in; None for any."""
        return self.request.seq_id if self.choice == 0 else None
