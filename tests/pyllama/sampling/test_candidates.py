"""Candidates: order, ties, NaN and infinities."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pyllama.sampling import Candidates
from pyllama.sampling.top import Floats

PROPERTY = settings(deadline=None, max_examples=60)


@PROPERTY
@given(hnp.arrays(np.float32, st.integers(1, 80), elements=st.floats(-80, 80, width=32)))
def test_probabilities_are_the_softmax(logits: Floats) -> None:
    candidates, total = Candidates(logits), np.float32(0)
    probs = candidates.probs()
    exact = np.exp(logits.astype(np.float64) - logits.max())
    rtol = 160 * 2.0**-24 + 1e-6  # a difference of up to 160 is rounded to float32 before exp
    np.testing.assert_allclose(probs, exact / exact.sum(), rtol=rtol, atol=1e-37)
    for weight in candidates.weights():
        total += weight  # in llama.cpp's order
    assert probs.tolist() == (candidates.weights() / total).tolist()


@pytest.mark.parametrize(
    ("logits", "expected"),
    [
        ([np.nan, 0, np.nan], [0, 1, 0]),
        ([np.nan, np.nan], [1, 0]),
        ([-np.inf, -np.inf, -np.inf], [1, 0, 0]),
        ([np.inf, 3, np.inf], [0.5, 0, 0.5]),
        ([-np.inf, np.inf, np.nan], [0, 1, 0]),
        ([-3.4e38, 0, 0], [0, 0.5, 0.5]),
        ([-3.4e38, 3.4e38], [0, 1]),
    ],
)
def test_special_logits(logits: list[float], expected: list[float]) -> None:
    assert Candidates(np.array(logits, np.float32)).probs().tolist() == expected


def test_keeping_the_top_twice_is_keeping_the_smaller() -> None:
    logits = np.array([1, 3, 2, 3, 0], np.float32)
    candidates = Candidates(logits)
    candidates.keep_top(4)
    assert candidates.sorted and candidates.ids.tolist() == [1, 3, 2, 0]
    candidates.keep_top(9)
    candidates.keep_top(3)
    assert candidates.ids.tolist() == [1, 3, 2] and len(candidates) == 3
    assert candidates.token(candidates.argmax()) == 1


@PROPERTY
@given(
    hnp.arrays(np.float32, st.integers(1, 40), elements=st.sampled_from([-np.inf, -1, -0.0, 0, 2]))
)
def test_ids_of_a_sorted_vocabulary(logits: Floats) -> None:
    expected = (-logits).argsort(kind="stable")
    half = (len(expected) + 1) // 2
    for which in (slice(half), np.arange(half)[::-1], np.arange(len(expected)) % 2 == 0):
        candidates = Candidates(logits)
        candidates.keep_top(len(logits))
        assert candidates.sorted and candidates.logits.tolist() == logits[expected].tolist()
        candidates.logits = candidates.logits / np.float32(2)
        candidates.keep(which)
        tokens = [candidates.token(i) for i in range(len(candidates))]
        assert tokens == expected[which].tolist() == candidates.ids.tolist()
        candidates.keep_top(len(candidates))
        assert [candidates.token(i) for i in range(len(candidates))] == candidates.ids.tolist()


def test_editing_keeps_the_order_and_spares_the_source() -> None:
    logits = np.array([1, 3, 2, 3, 0], np.float32)
    candidates = Candidates(logits)
    candidates.keep_top(3)
    values, positions, found = candidates.edit(np.array([3, 0, 2]))
    assert candidates.ids.tolist() == [1, 3, 2] and not candidates.sorted
    assert dict(zip(found.tolist(), positions.tolist(), strict=True)) == {0: 1, 2: 2}
    values[positions] = 9
    assert candidates.logits.tolist() == [3, 9, 9]
    candidates.replace(0)
    assert (candidates.ids.tolist(), candidates.probs().tolist()) == ([0], [1])
    assert logits.tolist() == [1, 3, 2, 3, 0]


def test_editing_the_whole_vocabulary_copies_once() -> None:
    logits = np.zeros(4, np.float32)
    candidates = Candidates(logits)
    first, positions, _ = candidates.edit(np.array([2]))
    assert positions.tolist() == [2] and first is not logits
    assert candidates.edit(np.array([1]))[0] is first


def test_nothing_is_copied_until_it_has_to_be() -> None:
    logits = np.zeros(4, np.float32)
    assert Candidates(logits).logits is logits
    assert Candidates(logits).ids.dtype == np.int32
