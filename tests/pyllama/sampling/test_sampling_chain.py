"""The chain as a whole: order, greedy, seeds, history, errors."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pyllama.errors import SamplingError
from pyllama.sampling import (
    DEFAULT_SAMPLERS,
    SAMPLERS,
    Candidates,
    Chain,
    ChainSetup,
    Mt19937,
    Sampler,
    SamplingParams,
)
from pyllama.sampling.samplers.dist import Dist
from pyllama.sampling.top import Floats

PROPERTY = settings(deadline=None, max_examples=100)

LOGITS = hnp.arrays(
    np.float32,
    st.integers(1, 60),
    elements=st.one_of(
        st.sampled_from([-np.inf, -1.0, 0.0, 0.5, 1.0, np.inf, np.nan, -3.4e38]),
        st.floats(width=32),
    ),
)
MORE = {
    "dynatemp_range": st.sampled_from([0.0, 0.5, 3.0]),
    "dynatemp_exponent": st.floats(-2, 3),
    "typical_p": st.sampled_from([0.0, 0.3, 0.9, 1.0]),
    "top_n_sigma": st.sampled_from([-1.0, 0.5, 2.0]),
    "xtc_probability": st.sampled_from([0.0, 0.5, 1.0]),
    "xtc_threshold": st.floats(0, 0.6),
    "dry_multiplier": st.sampled_from([0.0, 1.0]),
    "dry_allowed_length": st.integers(0, 3),
    "dry_penalty_last_n": st.integers(0, 12),
    "dry_sequence_breakers": st.sampled_from([(), ((3,),), ((1, 2), (5,))]),
    "adaptive_target": st.floats(-1, 2),
    "bad_words": st.sampled_from([(), ((0,),), ((0, 0), (0, 0, 0))]),
    "min_tokens": st.sampled_from([0, 3]),
}
PARAMS = st.builds(
    SamplingParams,
    seed=st.integers(0, 2**32 - 2),
    temp=st.floats(-1, 5),
    top_k=st.integers(-1, 70),
    top_p=st.floats(-0.1, 1.1),
    min_p=st.floats(-0.1, 1.1),
    min_keep=st.integers(0, 70),
    repeat_last_n=st.integers(-1, 10),
    repeat_penalty=st.floats(0.1, 10),
    frequency_penalty=st.floats(-2, 2),
    presence_penalty=st.floats(-2, 2),
    ignore_eos=st.booleans(),
    samplers=st.one_of(st.none(), st.permutations([*DEFAULT_SAMPLERS, "adaptive_p"]).map(tuple)),
    **MORE,
)
OFF: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temp": 1.0}


def logits_of(n: int, seed: int = 0) -> Floats:
    return (np.random.default_rng(seed).standard_normal(n) * 3).astype(np.float32)


@PROPERTY
@given(LOGITS, PARAMS, st.lists(st.integers(0, 59), max_size=20))
def test_any_logits_give_a_legal_token(
    logits: Floats, params: SamplingParams, history: list[int]
) -> None:
    n = logits.size
    before = logits.copy()
    chain, twin = (Chain(params, n, eog_ids=(0,)) for _ in range(2))
    for token in history:
        chain.accept(token % n)
        twin.accept(token % n)
    for _ in range(3):  # XTC may remove other candidates at each sample
        candidates = chain.apply(logits)
        probs = candidates.probs()
        assert len(candidates) >= 1
        assert np.unique(candidates.ids).size == len(candidates)
        assert abs(float(probs.sum()) - 1) < 1e-5
        if candidates.sorted:
            assert (candidates.logits[:-1] >= candidates.logits[1:]).all()
        drawn = chain.sample(logits)
        assert drawn == twin.sample(logits)
        # adaptive_p prefers a probability, and may draw tokens whose own is rounded to 0
        adaptive = "adaptive_p" in (params.samplers or ())
        assert drawn in (candidates.ids if adaptive else candidates.ids[probs > 0])
    np.testing.assert_array_equal(logits, before)


@PROPERTY
@given(LOGITS, PARAMS, st.lists(st.integers(0, 59), max_size=20))
def test_the_greedy_short_cut_changes_nothing(
    logits: Floats, params: SamplingParams, history: list[int]
) -> None:
    values = {f: getattr(params, f) for f in params.__slots__}
    greedy = SamplingParams(**values | {"temp": 0.0, "dynatemp_range": 0.0})
    chain = Chain(greedy, logits.size, eog_ids=(0,))
    for token in history:
        chain.accept(token % logits.size)
    whole = chain.apply(logits)
    assert chain.sample(logits) == Dist(1).pick(whole)


@pytest.mark.parametrize("order", list(permutations(["top_k", "min_p", "temperature"])))
def test_filters_by_rank_do_not_depend_on_their_order(order: tuple[str, ...]) -> None:
    """top_k and min_p commute at temperature 1: both keep a head of the same ranking."""
    logits = np.round(logits_of(2000, 5))
    params = {"temp": 1.0, "top_k": 30, "min_p": 0.1, "seed": 3}
    got = Chain(SamplingParams(samplers=order, **params), 2000).apply(logits)
    want = Chain(SamplingParams(samplers=("top_k", "min_p"), **params), 2000).apply(logits)
    assert sorted(got.ids) == sorted(want.ids)


def test_seeds_reproduce_and_reset_starts_again() -> None:
    logits = logits_of(500)
    chain = Chain(SamplingParams(seed=42, repeat_penalty=1.3), 500)

    def run(chain: Chain) -> list[int]:
        tokens = []
        for _ in range(50):
            tokens.append(chain.sample(logits))
            chain.accept(tokens[-1])
        return tokens

    first = run(chain)
    assert run(Chain(SamplingParams(seed=42, repeat_penalty=1.3), 500)) == first
    assert run(Chain(SamplingParams(seed=43, repeat_penalty=1.3), 500)) != first
    chain.reset()
    assert run(chain) == first and chain.seed == 42


def test_a_random_seed_is_told() -> None:
    logits = logits_of(500)
    chain = Chain(SamplingParams(temp=3.0), 500)
    again = Chain(SamplingParams(temp=3.0, seed=chain.seed), 500)
    assert [chain.sample(logits) for _ in range(20)] == [again.sample(logits) for _ in range(20)]


@pytest.mark.parametrize("params", [{"temp": 0.0}, {"top_k": 1}, {}])
def test_every_token_takes_two_words_of_the_stream(params: dict[str, Any]) -> None:
    chain = Chain(SamplingParams(**(OFF | {"seed": 4242} | params)), 2)
    chain.sample(np.zeros(2, np.float32))
    rng = Mt19937(4242)
    rng.raw(), rng.raw()
    assert chain._final.rng.raw() == rng.raw()


def test_the_draw_is_the_first_running_sum_past_the_random_number() -> None:
    probs = np.array([0.1, 0.2, 0.3, 0.4])
    chain = Chain(SamplingParams(**OFF, seed=99), 4)
    rng = Mt19937(99)
    for _ in range(200):
        want = int(np.searchsorted(probs.cumsum(), rng.uniform_double()))
        assert chain.sample(np.log(probs).astype(np.float32)) == want


def test_an_impossible_token_is_not_drawn_at_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Mt19937, "raw", lambda _: 0)
    chain = Chain(SamplingParams(**OFF, seed=1), 3)
    assert chain.sample(np.array([-np.inf, 0, 0], np.float32)) == 1


def test_frequencies_follow_the_probabilities() -> None:
    probs = np.array([0.5, 0.3, 0.15, 0.05])
    chain = Chain(SamplingParams(**OFF, seed=7), 4)
    logits = np.log(probs).astype(np.float32)
    counts = np.bincount([chain.sample(logits) for _ in range(4000)], minlength=4)
    np.testing.assert_allclose(counts / 4000, probs, atol=0.03)


@pytest.mark.parametrize("params", [{"temp": 0.0}, {"seed": 1}, {"top_k": 0, "seed": 1}])
def test_all_impossible_gives_the_first_token(params: dict[str, Any]) -> None:
    for value in (-np.inf, np.nan):
        chain = Chain(SamplingParams(**params), 5000)
        assert chain.sample(np.full(5000, value, np.float32)) == 0


def test_greedy_takes_the_lowest_of_equal_ids() -> None:
    logits = np.zeros(6000, np.float32)
    logits[[4321, 17, 5000]] = 2.0
    assert Chain(SamplingParams(temp=0.0), 6000).sample(logits) == 17
    assert Chain(SamplingParams(temp=1e-40), 6000).sample(logits) == 17


def test_ignore_eos_bans_all_tokens_that_end_a_generation() -> None:
    logits = np.array([5, 9, 1, 8], np.float32)
    params = SamplingParams(temp=0.0, ignore_eos=True, logit_bias={2: 5.5})
    assert Chain(params, 4, eog_ids=(1, 3)).sample(logits) == 2
    assert Chain(SamplingParams(temp=0.0), 4, eog_ids=(1, 3)).sample(logits) == 1


def test_describe_is_the_line_of_llama_cpp() -> None:
    default = (
        "logits -> ?penalties -> ?dry -> ?top-n-sigma -> top-k -> ?typical -> top-p -> min-p -> "
        "?xtc -> temp-ext -> dist"
    )
    assert Chain(SamplingParams(), 4).describe() == default
    assert Chain(
        SamplingParams(**OFF, repeat_penalty=2.0, ignore_eos=True), 4, (1,)
    ).describe() == (
        "logits -> logit-bias -> penalties -> ?dry -> ?top-n-sigma -> ?top-k -> ?typical -> "
        "?top-p -> ?min-p -> ?xtc -> ?temp-ext -> dist"
    )
    assert Chain(SamplingParams(samplers=("temperature", "top_k")), 4).describe() == (
        "logits -> temp-ext -> top-k -> dist"
    )
    assert Chain(SamplingParams(samplers=()), 4).describe() == "logits -> dist"
    every = SamplingParams(
        samplers=("dry", "Top-N-Sigma", "typ", "XTC", "adaptive-p", "topk"),
        dry_multiplier=1.0, dry_sequence_breakers=(), top_n_sigma=1.0, typical_p=0.5,
        xtc_probability=0.5,
    )  # fmt: skip
    assert Chain(every, 4).describe() == (
        "logits -> dry -> top-n-sigma -> typical -> xtc -> top-k -> adaptive-p"
    )
    assert Chain(SamplingParams(mirostat=1), 4).describe() == "logits -> temp -> mirostat"
    plain = SamplingParams(mirostat=2, temp=1.0, logit_bias={1: 2.0})
    assert Chain(plain, 4).describe() == "logits -> logit-bias -> ?temp -> mirostat-v2"


class Mirror(Sampler):
    """Reverses the ranking: a sampler that a greedy chain must run."""

    label = "mirror"

    @classmethod
    def create(cls, setup: ChainSetup) -> Mirror:
        assert setup.n_vocab == 3 and setup.eog_ids == (2,)
        return cls()

    def apply(self, candidates: Candidates) -> None:
        candidates.logits = -candidates.logits
        candidates.sorted = False


def test_a_new_sampler_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SAMPLERS, "mirror", Mirror)
    params = SamplingParams(temp=0.0, samplers=("top_k", "mirror", "top_p", "temperature"))
    chain = Chain(params, 3, eog_ids=(2,))
    assert chain.describe() == "logits -> top-k -> mirror -> top-p -> temp-ext -> dist"
    assert chain.sample(np.array([3, 1, 2], np.float32)) == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Chain(SamplingParams(samplers=("top_k", "nope")), 4), "unknown sampler nope"),
        (lambda: Chain(SamplingParams(logit_bias={4: 1.0}), 4), "biased token 4"),
        (lambda: Chain(SamplingParams(), 4).accept(4), "accepted token 4"),
        (lambda: Chain(SamplingParams(), 4).accept(-1), "accepted token -1"),
        (lambda: Chain(SamplingParams(), 4).sample(np.zeros(5, np.float32)), r"want \(4,\)"),
    ],
)
def test_errors_have_one_line(make: Any, message: str) -> None:
    with pytest.raises(SamplingError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
