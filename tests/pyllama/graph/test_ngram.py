"""Rows of a table by hashes of n-grams, which do not go beyond an end-of-text token."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pyllama.errors import ModelError
from pyllama.graph.ngram import HPARAMS, hash_rows

END, LONGEST, HEADS = 7, 3, 2
OWN: dict[str, Any] = {
    "gram_end": END,
    "n_gram": LONGEST,
    "n_gram_head": HEADS,
    "gram_multipliers": [(1 << 44) + 1, (1 << 43) + 5, (1 << 44) + 11],
    "gram_rows": [101, 103, 107, 109],
    "gram_offsets": [0, 101, 204, 311],
}


def row(tokens: list[int], t: int, n: int, head: int) -> int:
    """The row of the n-gram that ends with token ``t``."""
    ids = [tokens[t]]
    while len(ids) < n:
        inside = t - len(ids) >= 0 and END not in ids[1:]
        ids.append(tokens[t - len(ids)] if inside else END)
    mixed = 0
    for token, multiplier in zip(ids, OWN["gram_multipliers"], strict=False):
        mixed ^= token * multiplier
    at = (n - 2) * HEADS + head
    return int(mixed % OWN["gram_rows"][at] + OWN["gram_offsets"][at])


def test_rows_of_a_text_with_ends() -> None:
    tokens = [5, 300, END, 4, 511, END, END, 8, 9, 10]
    shifted = [np.array(([END] * k + tokens)[: len(tokens)]) - END for k in range(LONGEST)]
    before = [x.astype(np.float32).reshape(1, 1, -1, 1) for x in shifted]
    dst = np.zeros((1, 1, len(tokens), 2 * HEADS), np.int32)
    hash_rows(OWN, dst, *before)
    want = [
        [row(tokens, t, n, head) for n in range(2, LONGEST + 1) for head in range(HEADS)]
        for t in range(len(tokens))
    ]
    assert dst[0, 0].tolist() == want


@pytest.mark.parametrize(
    "wrong",
    [
        {"gram_multipliers": [1, 3]},
        {"gram_rows": [101, 103, 107]},
        {"gram_rows": [101, 0, 107, 109]},
        {"gram_offsets": [0, 101, 204, 1 << 31]},
        {"gram_end": 1 << 24},
    ],
)
def test_constants_that_do_not_fit_are_refused(wrong: dict[str, Any]) -> None:
    got = {**OWN, "arch": "qwen4exp", "gram_layers": [0]}
    count: Any = HPARAMS["n_gram_heads"]
    assert count(got) == 2 * HEADS
    with pytest.raises(ModelError, match="metadata is damaged"):
        count({**got, **wrong})
