"""Batches: sequences, outputs and validation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pyllama.errors import BatchError
from pyllama.runtime.batch import Batch


@pytest.mark.parametrize(
    ("logits", "outputs"),
    [
        ("last", [3]),
        ("all", [0, 1, 2, 3]),
        ("none", []),
        ([True, False, True, False], [0, 2]),
        (np.array([0, 1, 1, 0]), [1, 2]),
    ],
)
def test_outputs(logits: Any, outputs: list[int]) -> None:
    assert list(Batch([5, 6, 7, 8], logits=logits).outputs()) == outputs
    batch = Batch([5, 6, 7, 8], logits="none", embeddings=logits)
    assert list(batch.embedded()) == outputs and batch.outputs() == []


def test_sequences() -> None:
    assert Batch([5, 6]).seqs() == [0, 0] and Batch([5, 6], seq_id=3).seqs() == [3, 3]
    assert Batch([5, 6], seq_id=np.int64(3)).seqs() == [3, 3]  # type: ignore[arg-type]
    assert Batch(np.array([5, 6]), seq_id=np.array([1, 0])).seqs() == [1, 0]
    assert Batch([], logits="last").outputs() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pos": [0]}, "batch: 2 tokens but 1 values of pos"),
        ({"seq_id": [0, 1, 2]}, "batch: 2 tokens but 3 values of seq_id"),
        ({"logits": [True]}, "batch: 2 tokens but 1 values of logits"),
        ({"logits": "first"}, "batch: logits is 'first', want"),
        ({"embeddings": [True]}, "batch: 2 tokens but 1 values of embeddings"),
        ({"embeddings": "first"}, "batch: embeddings is 'first', want"),
    ],
)
def test_states_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BatchError, match=message):
        Batch([5, 6], **options)
