"""Samplers of the user in a chain: functions and objects, their state and their mistakes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pyllama.errors import SamplingError
from pyllama.sampling import Candidates, Chain, Sampler, SamplingParams

LOGITS = np.array([5, 4, 3, 2, 1], np.float32)


def only_odd(candidates: Candidates) -> None:
    candidates.keep(candidates.ids % 2 == 1)


class Newest(Sampler):
    """Bans the accepted tokens."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def apply(self, candidates: Candidates) -> None:
        logits, positions, _ = candidates.edit(np.array(self.seen, np.intp))
        logits[positions] = -np.inf

    def accept(self, token: int) -> None:
        self.seen.append(token)


@pytest.mark.parametrize(
    ("samplers", "temp", "token"),
    [
        ((only_odd,), 0.0, 1),
        (("temperature", only_odd), 0.0, 1),  # a greedy chain must not skip it
        ((only_odd, "top_k", "temperature"), 0.0, 1),
        (("top_k", only_odd, lambda c: c.keep_top(1)), 1.0, 1),
        (("top_k", lambda c: setattr(c, "logits", -c.logits), "top_k"), 1.0, 4),
    ],
)
def test_functions_anywhere_in_a_chain(samplers: Any, temp: float, token: int) -> None:
    top_k = 1 if samplers[-1] == "top_k" and token == 4 else 5
    params = SamplingParams(samplers=samplers, temp=temp, top_k=5 if temp else top_k, seed=3)
    chain = Chain(params, 5)
    if token == 4:
        assert chain.apply(LOGITS).ids.tolist() == [4, 3, 2, 1, 0]
    else:
        assert {chain.sample(LOGITS) for _ in range(5)} == {token}


def test_each_chain_has_its_own_object() -> None:
    mine = Newest()
    params = SamplingParams(samplers=(mine, "temperature"), temp=0.0)
    one, two = Chain(params, 5), Chain(params, 5)
    for chain, n in ((one, 3), (two, 1)):
        for _ in range(n):
            chain.accept(chain.sample(LOGITS))
    assert (one.sample(LOGITS), two.sample(LOGITS), mine.seen) == (3, 1, [])
    clone, mark = one.clone(), one.mark()
    one.accept(3)
    assert (one.sample(LOGITS), clone.sample(LOGITS)) == (4, 3)
    for _ in range(2):
        one.rollback(mark)
        assert one.sample(LOGITS) == 3
        one.accept(3)
    one.reset()
    assert one.sample(LOGITS) == 0
    assert one.describe() == "logits -> Newest -> temp-ext -> dist"


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        (lambda c: c.keep(np.zeros(5, bool)), "removed all candidates"),
        (lambda c: c.logits, "returned ndarray"),
        (lambda c: setattr(c, "logits", c.logits[:2]), r"float32 of shape \(2,\)"),
        (lambda c: setattr(c, "logits", np.array(list("abcde"))), "<U1 of shape"),
    ],
)
def test_mistakes_are_named(sampler: Any, message: str) -> None:
    with pytest.raises(SamplingError, match=f"sampler <lambda>.*{message}") as caught:
        Chain(SamplingParams(samplers=(sampler,)), 5).sample(LOGITS)
    assert "\n" not in str(caught.value)


def test_exceptions_and_nan() -> None:
    def fails(candidates: Candidates) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        Chain(SamplingParams(samplers=(fails,)), 5).sample(LOGITS)

    class Fails(Newest):
        def accept(self, token: int) -> None:
            raise KeyError("mine")

    chain = Chain(SamplingParams(samplers=(Fails(),)), 5)
    with pytest.raises(
        SamplingError, match=r"sampler Fails: KeyError\('mine'\) at the p"
    ) as caught:
        chain.accept_prompt([1])
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(KeyError, match="mine"):
        chain.accept(1)

    def nan(candidates: Candidates) -> None:
        candidates.writable()[:3] = np.nan

    chain = Chain(SamplingParams(samplers=("top_k", nan, "top_p"), seed=1, top_p=0.5), 5)
    assert {chain.sample(LOGITS) for _ in range(5)} == {3}


def test_texts_and_ids_that_must_not_occur() -> None:
    params = SamplingParams(temp=0.0, min_tokens=2, bad_words=((1, 2),))
    chain = Chain(params, 5, eog_ids=(0,), stop_ids=(1, 9))
    chain.accept_prompt([1, 1, 1])
    tokens = []
    for _ in range(3):
        tokens.append(chain.sample(LOGITS))
        chain.accept(tokens[-1])
    assert tokens == [2, 2, 0]
    chain.accept(1)
    banned = chain.apply(LOGITS)
    assert banned.logits[banned.ids == 2].tolist() in ([], [-np.inf])


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"bad_words": ("x",)}, "bad_words: 'x' is text, which needs a tokenizer"),
        ({"dry_multiplier": 1.0}, "dry_sequence_breakers: .* needs a tokenizer"),
        ({"samplers": ("infill",)}, "infill needs a tokenizer"),
        ({"allowed_token_ids": (7,)}, "token 7 is outside"),
        ({"bad_words": ((1, 7),)}, "token 7 is outside"),
        ({"samplers": (7,)}, "samplers: got 7, want a name, a function or a Sampler object"),
        ({"samplers": ("top_j",)}, "unknown sampler top_j; choose from penalties, dry, top_n"),
    ],
)
def test_what_a_chain_needs(params: dict[str, Any], message: str) -> None:
    with pytest.raises(SamplingError, match=message):
        Chain(SamplingParams(**params), 5)
