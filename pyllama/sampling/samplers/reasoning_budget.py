"""A limit of the tokens that a model spends on reasoning, for example between <think> tags.

    budget = ReasoningBudget(200, starts=[(151667,)], ends=[(151668,)], forced=(151668,))

                 start sequence            budget is spent            all forced
        idle ------------------> counting ------------------> forcing -----------> done
         ^                          |  (waiting_utf8: first to the end of a character) |
         |                          +---------- end sequence ------------------------> |
         +---------------------------- as idle: a start sequence counts again <--------+

While forcing, only the next token of ``forced`` is possible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import numpy as np

from pyllama.sampling.candidates import Candidates
from pyllama.sampling.sampler import ChainSetup, Sampler

Ids = tuple[int, ...]
State = Literal["idle", "counting", "forcing", "waiting_utf8", "done"]


class ReasoningBudget(Sampler):
    """Forces the end of the reasoning after some tokens.

    Args:
        budget: maximum number of tokens of a block of reasoning, before the forced ones.
        starts: sequences of which each begins a block.
        ends: sequences of which each ends a block.
        forced: generated when the budget is spent: a message and an end sequence.
        state: the state to begin with.
        piece: bytes of a token, to finish a character first; None: each is complete.

    Attributes:
        forced: the argument.
        state: the state.
        end_match: the sequence of ``ends`` that ended the last block, if one did.

    Source: llama.cpp common/reasoning-budget.cpp.
    """

    label = "reasoning-budget"
    keeps_all = True

    def __init__(
        self,
        budget: int,
        starts: Iterable[Ids],
        ends: Iterable[Ids],
        forced: Ids,
        *,
        state: State = "idle",
        piece: Callable[[int], bytes] | None = None,
    ) -> None:
        self._budget, self.forced, self._piece = budget, forced, piece
        self._starts, self._ends = _longest_first(starts), _longest_first(ends)
        self._n_recent = max(map(len, (*self._starts, *self._ends)), default=1)
        self._recent: Ids = ()  # tokens since the last match, as many as a sequence may have
        self._n_left, self._position = budget, 0
        self.state: State = state
        self.end_match: Ids | None = None
        if state == "counting" and budget <= 0:
            self.state = "forcing"

    @classmethod
    def create(cls, setup: ChainSetup) -> ReasoningBudget | None:
        p = setup.params
        has_tags = p.reasoning_budget_start and p.reasoning_budget_end
        if p.reasoning_budget_tokens < 0 or not has_tags:
            return None
        piece = None if setup.tokenizer is None else setup.tokenizer.token_to_piece
        forced = p.reasoning_budget_forced or p.reasoning_budget_end[0]
        starts, ends = [p.reasoning_budget_start], p.reasoning_budget_end
        budget = cls(p.reasoning_budget_tokens, starts, ends, forced, piece=piece)
        for token in p.generation_prompt:
            budget.accept(token)
        return budget

    def force(self) -> bool:
        """End the reasoning now; False unless it is counting."""
        if self.state != "counting":
            return False
        self._begin_to_force()
        return True

    def keeps_argmax_of(self, token: int) -> bool:
        return self._next_forced in (None, token)

    @property
    def _next_forced(self) -> int | None:
        forcing = self.state == "forcing" and self._position < len(self.forced)
        return self.forced[self._position] if forcing else None

    def apply(self, candidates: Candidates) -> None:
        token = self._next_forced
        if token is None:
            return
        logits, positions, _ = candidates.edit(np.array([token], np.intp))
        kept = logits[positions]
        logits.fill(-np.inf)
        logits[positions] = kept

    def accept(self, token: int) -> None:
        if self.state in ("idle", "done"):
            if self._match(self._starts, token) is not None:
                self._count()
        elif self.state == "forcing":
            match = self._match(self._ends, token)
            self._position += 1
            if self._position >= len(self.forced):
                self.state, self.end_match, self._recent = "done", match, ()
        else:
            match = self._match(self._ends, token)
            if match is not None:
                self.state, self.end_match, self._recent = "done", match, ()
                return
            self._n_left -= self.state == "counting"
            if self._n_left <= 0:
                if self._piece is None or _is_complete(self._piece(token)):
                    self._begin_to_force()
                elif self.state == "counting":
                    self.state, self._recent = "waiting_utf8", ()

    def accept_prompt(self, tokens: Sequence[int]) -> None:
        pass  # see SamplingParams.generation_prompt

    def _count(self) -> None:
        self.state, self._n_left, self._recent = "counting", self._budget, ()
        self.end_match = None
        if self._budget <= 0:
            self._begin_to_force()

    def _begin_to_force(self) -> None:
        self.state, self._position, self._recent = "forcing", 0, ()

    def _match(self, sequences: Sequence[Ids], token: int) -> Ids | None:
        """The longest sequence that ends with this token."""
        self._recent = (*self._recent, token)[-self._n_recent :]
        for sequence in sequences:
            if self._recent[-len(sequence) :] == sequence:
                self._recent = ()
                return sequence
        return None

    def mark(self) -> Any:
        return self.state, self.end_match, self._recent, self._n_left, self._position

    def rollback(self, mark: Any) -> None:
        self.state, self.end_match, self._recent, self._n_left, self._position = mark


def _longest_first(sequences: Iterable[Ids]) -> list[Ids]:
    return sorted({tuple(s) for s in sequences if s}, key=len, reverse=True)


def _is_complete(piece: bytes) -> bool:
    """Whether the bytes end with a whole character of UTF-8, or there are none.

    Source: llama.cpp common/unicode.cpp, `common_utf8_is_complete`.
    """
    for i, byte in enumerate(reversed(piece[-4:]), 1):
        if byte & 0xC0 != 0x80:
            return i >= (4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1)
    return not piece
