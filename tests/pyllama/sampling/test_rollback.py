"""After mark, rollback or clone a chain samples the same tokens."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pyllama.sampling import (
    DEFAULT_SAMPLERS,
    Candidates,
    Chain,
    Mt19937,
    Sampler,
    SamplingParams,
)

N_VOCAB = 24
LOGITS = np.random.default_rng(3).standard_normal((16, N_VOCAB)).astype(np.float32) * 2


class Counting(Sampler):
    """A user's sampler with state in a list, without a mark of its own."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    def apply(self, candidates: Candidates) -> None:
        logits, positions, _ = candidates.edit(np.array([len(self.tokens) % N_VOCAB]))
        logits[positions] += 3

    def accept(self, token: int) -> None:
        self.tokens.append(token)


params = st.builds(
    SamplingParams,
    seed=st.integers(0, 5),
    temp=st.sampled_from([0.0, 0.7, 1.0]),
    top_k=st.sampled_from([0, 5, 40]),
    repeat_penalty=st.sampled_from([1.0, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.5]),
    repeat_last_n=st.sampled_from([-1, 0, 1, 4, 64]),
    ignore_eos=st.booleans(),
    xtc_probability=st.sampled_from([0.0, 0.5]),
    xtc_threshold=st.just(0.02),
    dry_multiplier=st.sampled_from([0.0, 2.0]),
    dry_allowed_length=st.integers(0, 2),
    dry_sequence_breakers=st.just(((3,), (4, 5))),
    mirostat=st.sampled_from([0, 0, 1, 2]),
    adaptive_target=st.just(0.2),
    bad_words=st.just(((1,), (2, 3), (2, 4, 5))),
    min_tokens=st.sampled_from([0, 30]),
    reasoning_budget_tokens=st.sampled_from([-1, 4]),
    reasoning_budget_start=st.just((6,)),
    reasoning_budget_end=st.just(((7,), (8, 9))),
    samplers=st.sampled_from(
        [
            None,
            (*DEFAULT_SAMPLERS, "adaptive_p"),
            ("typ_p", Counting(), "top_k", "penalties", "xtc", "temperature"),
        ]
    ),
)


def run(chain: Chain, rows: list[int], forced: list[int]) -> list[int]:
    """Sample and accept a token of each row of logits, with other tokens accepted between."""
    made = []
    for i, row in enumerate(rows):
        made.append(chain.sample(LOGITS[row]))
        chain.accept(forced[i] if i < len(forced) else made[-1])
    return made


rows = st.lists(st.integers(0, 15), max_size=90)
forced = st.lists(st.integers(0, N_VOCAB - 1), max_size=70)


@given(params, rows, forced, st.lists(st.tuples(rows, forced), max_size=3), rows)
@settings(deadline=None, max_examples=80)
def test_a_chain_that_is_rolled_back_chooses_as_one_that_never_went_on(
    given_params: SamplingParams,
    before: list[int],
    prompt: list[int],
    detours: list[tuple[list[int], list[int]]],
    after: list[int],
) -> None:
    straight, marked = (Chain(given_params, N_VOCAB, (0,)) for _ in range(2))
    for chain in (straight, marked):
        chain.accept_prompt(prompt)
        run(chain, before, [])
    mark = marked.mark()
    for rows_, forced_ in detours:
        run(marked, rows_, forced_)
        inner = marked.mark()
        run(marked, rows_[:3], [])
        marked.rollback(inner)
        run(marked, rows_[:2], [])
        marked.rollback(mark)
    clone = marked.clone()
    wanted = run(straight, after, [])
    assert run(marked, after, []) == wanted
    assert run(clone, after, []) == wanted


@given(st.lists(st.tuples(st.sampled_from("rs"), st.integers(1, 150)), max_size=12), st.data())
@settings(deadline=None)
def test_a_random_stream_rolls_back_to_any_position(
    steps: list[tuple[str, int]], data: st.DataObject
) -> None:
    plain, rng = Mt19937(7), Mt19937(7)
    words = [plain.raw() for _ in range(150 * 12 + 40)]
    marks, at = [(rng.mark(), 0)], 0
    for kind, n in steps:
        if kind == "s":
            rng.n_skip += n
            at += n
        else:
            assert [rng.raw() for _ in range(n)] == words[at : at + n]
            at += n
        marks.append((rng.mark(), at))
        back = data.draw(st.integers(0, len(marks) - 1))
        rng.rollback(marks[back][0])
        at = marks[back][1]
        del marks[back + 1 :]
    assert [rng.raw() for _ in range(40)] == words[at : at + 40]
