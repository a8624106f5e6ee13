"""User callbacks get tokens and scores, in order, and their exceptions propagate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pyllama.errors import SamplingError
from pyllama.sampling import LogitsProcessorList, apply_logits_processors

IDS = np.array([1, 2], np.intc)


def add_one(input_ids: Any, scores: Any) -> Any:
    assert input_ids is IDS
    scores += 1
    return scores


def double(input_ids: Any, scores: Any) -> Any:
    return (scores * 2).astype(np.float64)


def forgets_to_return(input_ids: Any, scores: Any) -> Any:
    scores[0] = 0


def too_short(input_ids: Any, scores: Any) -> Any:
    return scores[:1]


def fails(input_ids: Any, scores: Any) -> Any:
    raise KeyError("mine")


def test_processors_run_in_order_on_a_copy() -> None:
    scores = np.array([1, 2], np.float32)
    got = apply_logits_processors([add_one, double], IDS, scores)
    assert got.tolist() == [4, 6] and got.dtype == np.float32
    assert scores.tolist() == [1, 2]


def test_a_list_is_a_processor() -> None:
    both = LogitsProcessorList([add_one, double])
    scores = np.array([1, 2], np.float32)
    assert apply_logits_processors([both], IDS, scores).tolist() == [4, 6]


def test_exceptions_propagate() -> None:
    with pytest.raises(KeyError, match="mine"):
        apply_logits_processors([add_one, fails], IDS, np.zeros(2, np.float32))


@pytest.mark.parametrize("bad", [forgets_to_return, too_short])
def test_results_are_checked(bad: Any) -> None:
    with pytest.raises(SamplingError, match=f"{bad.__name__}: got .* want scores of shape"):
        apply_logits_processors([bad], IDS, np.zeros(2, np.float32))
