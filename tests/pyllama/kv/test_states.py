"""Slots of recurrent states: what each of them holds after any operations on sequences."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyllama.errors import BatchError
from pyllama.kv.states import StateCache

N_SEQ = 3


def states(n_checkpoints: int = 5) -> StateCache:
    """Slots of one layer with a state of two elements."""
    hparams: Any = SimpleNamespace(states=({"s": (2,)},))
    return StateCache(hparams, N_SEQ, n_checkpoints)


class Histories:
    """Sequences as lists of tokens, and the slots as the tokens that each has seen."""

    def __init__(self, cache: StateCache) -> None:
        self.cache, self.tokens = cache, [[] for _ in range(N_SEQ)]
        self.slots: dict[int, list[int]] = {-1: []}
        self._next = itertools.count()

    def place(self, lengths: dict[int, int], kept: set[int], drafted: set[int]) -> None:
        """Evaluate tokens of some sequences, as the ops with slots do."""
        seqs = [seq for seq, n in lengths.items() for _ in range(n)]
        positions = [len(self.tokens[seq]) + i for seq, n in lengths.items() for i in range(n)]
        runs, slots = self.cache.place(seqs, positions, kept, drafted)
        assert [n for _, n, _ in runs] == [n for n in lengths.values() if n]
        read = {before for _, _, before in runs}
        for first, n, before in runs.tolist():
            seen = list(self.slots[before])
            for t in range(first, first + n):
                token = next(self._next)
                seen.append(token)
                self.tokens[seqs[t]].append(token)
                slot = int(slots[t])
                if slot >= 0:
                    assert slot == before or slot not in read
                    self.slots[slot] = list(seen)
            assert slots[first + n - 1] >= 0

    def check(self) -> None:
        """Every state that is referred to has seen what its sequence has."""
        for seq, tokens in enumerate(self.tokens):
            assert self.cache.position(seq) == len(tokens)
            for state in self.cache.states_of(seq):
                assert self.slots[state.slot] == tokens[: state.position]


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_states_follow_their_sequences(data: st.DataObject) -> None:
    h = Histories(states(data.draw(st.integers(0, 6))))
    numbers = st.integers(0, N_SEQ - 1)
    for _ in range(data.draw(st.integers(1, 25))):
        operation = data.draw(st.sampled_from(["place", "one", "go back", "copy", "lose"]))
        seq = data.draw(numbers)
        if operation == "place":
            lengths = {s: data.draw(st.integers(1, 4)) for s in data.draw(st.sets(numbers))}
            n = sum(lengths.values())
            flags = st.sets(st.integers(0, max(n - 1, 0)), max_size=4)
            h.place(lengths, data.draw(flags), data.draw(flags))
        elif operation == "one":
            before, after = h.cache.append(seq)
            h.tokens[seq].append(-1)
            h.slots[after] = [*h.slots[before], -1]
        elif operation == "go back":
            position = h.cache.resume(seq, data.draw(st.integers(0, len(h.tokens[seq]) + 1)))
            h.cache.truncate(seq, position)
            del h.tokens[seq][position:]
        elif operation == "copy":
            other = data.draw(numbers)
            if other != seq:
                at = h.cache.resume(seq, data.draw(st.integers(0, len(h.tokens[seq]))))
                h.cache.copy(seq, other, at)
                h.tokens[other] = h.tokens[seq][:at]
        else:
            h.cache.lose(seq, data.draw(st.integers(0, len(h.tokens[seq]))))
            del h.tokens[seq][h.cache.position(seq) :]
        h.check()


def test_the_newest_checkpoint_before_a_position() -> None:
    cache = states()
    cache.place([0] * 10, list(range(10)), kept={2, 6})
    assert [cache.resume(0, n) for n in (2, 3, 6, 7, 9, 10, 12)] == [0, 3, 3, 7, 7, 10, 10]
    cache.truncate(0, 7)
    assert cache.position(0) == 7 and cache.resume(0, 6) == 3


def test_one_token_after_another_stays_in_its_slot() -> None:
    cache = states()
    slots = {cache.append(1)[1] for _ in range(20)}
    assert len(slots) == 1


def test_the_oldest_checkpoints_are_dropped() -> None:
    cache = states(n_checkpoints=2)
    cache.place([0] * 10, list(range(10)), kept={1, 3, 5})
    assert [x.position for x in cache.states_of(0)] == [4, 6, 10]


def test_sequences_of_one_token_share_a_state() -> None:
    cache = states()
    cache.place([(0, 1)] * 3, [0, 1, 2])
    assert cache.states_of(0)[-1].slot == cache.states_of(1)[-1].slot
    cache.append(0)
    with pytest.raises(BatchError, match="whose recurrent states differ"):
        cache.place([(0, 1)], [4])


def test_bytes_of_a_slot() -> None:
    cache = states()
    (tensor,) = cache.stored
    data = np.arange(8, dtype=np.uint8)
    cache.write(tensor, 3, data)
    assert np.array_equal(cache.read(tensor, 3), data) and not cache.read(tensor, 2).any()
