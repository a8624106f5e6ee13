"""The states of the reasoning budget: the cases of llama.cpp's tests/test-reasoning-budget.cpp."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pyllama.sampling import Candidates, Chain, SamplingParams
from pyllama.sampling.samplers.reasoning_budget import ReasoningBudget, State, _is_complete

START, END = [(100,)], [(101,)]
TWO_ENDS = [(101,), (103, 104)]
FORCED = (102, 101)

# name: tokens, starts, ends, budget, first state, positions at which a token is forced
CASES: dict[str, tuple[list[int], Any, Any, int, State, list[int]]] = {
    "natural end": ([100, 50, 51, 101, 52], START, END, 5, "idle", []),
    "budget spent": ([100, 50, 51, 52, 53], START, END, 2, "idle", [3, 4]),
    "no budget": ([100, 50, 51, 52], START, END, 0, "counting", [0, 1]),
    "no sequences": ([50, 51, 52, 53], [()], [()], 2, "idle", []),
    "counting at first": ([50, 51, 52, 53], START, END, 2, "counting", [2, 3]),
    "second block": ([100, 50, 101, 100, 60, 61, 62, 63], START, END, 2, "idle", [6, 7]),
    "two starts": ([110, 111, 50, 51, 52, 53], [(100,), (110, 111)], END, 2, "idle", [4, 5]),
    "two ends": ([100, 50, 103, 104, 52], START, TWO_ENDS, 5, "idle", []),
}


def forced_by(budget: ReasoningBudget) -> int | None:
    """The only possible token, None if all are possible."""
    candidates = Candidates(np.zeros(128, np.float32))
    budget.apply(candidates)
    possible = np.isfinite(candidates.logits).nonzero()[0]
    assert possible.size in (1, 128)
    return int(possible[0]) if possible.size == 1 else None


@pytest.mark.parametrize("name", CASES)
def test_when_tokens_are_forced(name: str) -> None:
    tokens, starts, ends, n, state, positions = CASES[name]
    budget = ReasoningBudget(n, starts, ends, FORCED, state=state)
    forced = []
    for token in tokens:
        forced.append(forced_by(budget))
        assert budget.keeps_argmax_of(token) == (forced[-1] in (None, token))
        budget.accept(token)
    assert [i for i, token in enumerate(forced) if token is not None] == positions
    assert [token for token in forced if token is not None] == list(FORCED[: len(positions)])


def test_marks_keep_the_budget_and_the_position() -> None:
    budget = ReasoningBudget(2, START, END, FORCED)
    budget.accept(100)
    budget.accept(50)
    counting = budget.mark()
    budget.accept(51)
    assert forced_by(budget) == 102
    budget.accept(102)
    forcing = budget.mark()
    budget.accept(101)
    assert budget.state == "done"
    budget.rollback(forcing)
    assert forced_by(budget) == 101
    budget.rollback(counting)
    assert budget.state == "counting" and forced_by(budget) is None


def test_forcing_by_hand_works_only_while_counting() -> None:
    budget = ReasoningBudget(5, START, END, FORCED)
    assert not budget.force() and budget.state == "idle"
    budget.accept(100)
    assert budget.force() and forced_by(budget) == 102
    budget.accept(102)
    assert not budget.force() and forced_by(budget) == 101  # the position is kept
    budget.accept(101)
    assert not budget.force() and budget.state == "done"


@pytest.mark.parametrize(
    ("ends", "forced", "n", "tokens", "match"),
    [
        (TWO_ENDS, FORCED, 5, [100, 50, 103, 104], (103, 104)),
        (TWO_ENDS, FORCED, 5, [100, 50, 103, 104, 100], None),
        ([(104,), (103, 104)], FORCED, 5, [100, 103, 104], (103, 104)),
        (TWO_ENDS, (102, 103, 104), 0, [100, 102, 103], None),
        (TWO_ENDS, (102, 103, 104), 0, [100, 102, 103, 104], (103, 104)),
        (TWO_ENDS, (102,), 0, [100, 102], None),
    ],
)
def test_which_sequence_ended_it(
    ends: Any, forced: Any, n: int, tokens: list[int], match: tuple[int, ...] | None
) -> None:
    budget = ReasoningBudget(n, START, ends, forced)
    assert budget.end_match is None
    for token in tokens:
        budget.accept(token)
    assert budget.end_match == match


def test_a_character_is_finished_first() -> None:
    pieces = {50: b"a", 51: b"\xe2", 52: b"\x82", 53: b"\xac"}
    text = {52: b"\xe2\x82", 53: b"\xe2\x82\xac"}
    budget = ReasoningBudget(2, START, END, FORCED, piece=(pieces | text).__getitem__)
    states = []
    for token in (50, 51, 52, 53):
        budget.accept(token) if states else (budget.accept(100), budget.accept(token))
        states.append(budget.state)
    assert states == ["counting", "waiting_utf8", "waiting_utf8", "forcing"]


@pytest.mark.parametrize(
    ("piece", "complete"),
    [
        (b"hello", True), (b"", True), (b"\xc2\xa0", True), (b"\xe2\x80\x9c", True),
        (b"\xf0\x9f\x98\x80", True), (b"abc\xc3\xa9", True), (b"\xc2", False),
        (b"\xe2\x80", False), (b"\xe2", False), (b"\xf0\x9f\x98", False), (b"\xf0\x9f", False),
        (b"\xf0", False), (b"\x80", False), (b"hello\xc3", False), (b"hello\xc3\xa9", True),
    ],
)  # fmt: skip
def test_whole_characters(piece: bytes, complete: bool) -> None:
    assert _is_complete(piece) == complete


@pytest.mark.parametrize("temp", [0.0, 1.0])
def test_in_a_chain_the_prompt_does_not_count(temp: float) -> None:
    params = SamplingParams(
        temp=temp,
        seed=1,
        samplers=("temperature",),
        reasoning_budget_tokens=1,
        reasoning_budget_start=(5,),
        reasoning_budget_end=((6, 7),),
        generation_prompt=(4, 5),
    )
    chain = Chain(params, 8)
    chain.accept_prompt([5, 1, 2, 4, 5])
    logits = np.array([9, 0, 0, 0, 0, 0, 0, 0], np.float32)
    tokens = []
    for _ in range(4):
        tokens.append(chain.sample(logits))
        chain.accept(tokens[-1])
    assert tokens == [0, 6, 7, 0]
    assert chain.reasoning is not None and chain.reasoning.end_match == (6, 7)
