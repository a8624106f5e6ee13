"""The structure of drafts, and the rules that `check` enforces."""

from __future__ import annotations

import re

import numpy as np
import pytest

from pyllama.errors import DraftError
from pyllama.sampling import Distribution
from pyllama.speculative.draft import Draft

Q = Distribution(np.arange(2, dtype=np.int32), np.full(2, 0.5))
TREE = Draft([5, 9, 7, 5], [-1, 0, -1, 1], [Q] * 4)


def test_structure() -> None:
    TREE.check(10)
    assert TREE.children() == [[0, 2], [1], [3], [], []]
    assert TREE.depths() == [1, 2, 1, 3]
    assert TREE.path(3) == [0, 1, 3] and TREE.path(-1) == []
    assert TREE.first(2) == Draft([5, 9], [-1, 0], [Q] * 2) and TREE.first(4) is TREE
    assert not TREE.is_chain and TREE.first(2).is_chain
    chain = Draft.chain([4, 4, 4])
    chain.check(5)
    assert chain.is_chain and chain.parent == [-1, 0, 1] and len(chain) == 3


ILLEGAL = {
    "draft of 2 tokens has 1 parents, no q": Draft([1, 2], [-1]),
    "draft of 1 tokens has 1 parents, 2 q": Draft([1], [-1], [Q, Q]),
    "drafted token 10 is outside the vocabulary of 10 tokens": Draft([10], [-1]),
    "drafted token -1 is outside": Draft([-1], [-1]),
    "node 0 of a draft has the parent 0, not one before": Draft([1], [0]),
    "node 1 of a draft has the parent -2": Draft([1, 1], [-1, -2]),
    "token 1 is drafted twice after node -1": Draft([1, 1], [-1, -1]),
}


@pytest.mark.parametrize("message", ILLEGAL)
def test_illegal_drafts(message: str) -> None:
    with pytest.raises(DraftError, match=re.escape(message)):
        ILLEGAL[message].check(10)
