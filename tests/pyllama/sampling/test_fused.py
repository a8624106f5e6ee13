"""A fused chain samples the same tokens as its samplers in sequence."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pyllama.sampling import DEFAULT_SAMPLERS, SAMPLERS, Chain, SamplingParams
from pyllama.sampling.float_math import log_of
from pyllama.sampling.fused import STEPS, Fused
from pyllama.sampling.sampler import Sampler
from pyllama.sampling.samplers.truncation import MinP, TopK, TopP
from pyllama.sampling.top import Floats

PROPERTY = settings(deadline=None, max_examples=150)

LOGITS = hnp.arrays(
    np.float32,
    st.integers(100, 500),
    elements=st.one_of(
        st.sampled_from([-np.inf, -1.0, 0.0, -0.0, 0.5, 1.0, np.inf, np.nan, -3.4e38, 3.4e38]),
        st.floats(-20, 20, width=32),
    ),
)
PARAMS = st.builds(
    SamplingParams,
    seed=st.integers(0, 2**32 - 2),
    temp=st.floats(0.05, 5),
    top_k=st.integers(1, 6),
    top_p=st.floats(-0.1, 1.1),
    min_p=st.floats(-0.1, 1.1),
    min_keep=st.integers(0, 7),
    repeat_penalty=st.floats(0.5, 2),
    ignore_eos=st.booleans(),
    typical_p=st.sampled_from([0.2, 0.7, 1.0]),
    xtc_probability=st.sampled_from([0.0, 0.5, 1.0]),
    xtc_threshold=st.floats(0, 0.5),
    top_n_sigma=st.sampled_from([-1.0, 0.5, 1.5]),
    dynatemp_range=st.sampled_from([0.0, 0.0, 0.5]),
    samplers=st.one_of(
        st.none(),
        st.permutations(
            ["top_p", "min_p", "temperature", "typ_p", "xtc", "top_n_sigma", "top_k"]
        ).map(lambda names: ("penalties", "top_k", *names)),
    ),
)


def one_by_one(chain: Chain) -> Chain:
    chain._fused = None
    return chain


def check_distribution(chain: Chain, twin: Chain, logits: Floats) -> None:
    """Equal bits; both consume the same random numbers."""
    argmax = int(logits.argmax())
    best, wanted = chain.likeliest(logits, argmax), twin.distribution(logits)
    assert best is not None and wanted is not None
    assert best[1] == pytest.approx(wanted.probs.max(), abs=1e-8)
    assert wanted.probs[wanted.ids == best[0]] == wanted.probs.max()
    found, wanted = chain.distribution(logits, argmax), twin.distribution(logits)
    assert found is not None and wanted is not None
    np.testing.assert_array_equal(found.ids, wanted.ids)
    np.testing.assert_array_equal(found.probs, wanted.probs)


@pytest.mark.parametrize(
    ("params", "n_kept"),
    [
        (SamplingParams(top_k=6, min_p=0.5, top_p=1.0, temp=1.0), 2),
        (SamplingParams(top_k=6, min_p=0.0, top_p=0.5, temp=1.0), 1),
    ],
    ids=["min-p", "top-p"],
)
def test_a_token_at_the_limit_is_kept(params: SamplingParams, n_kept: int) -> None:
    """With half of the likeliest token's probability, and as the one that completes the sum."""
    logits = -50 - np.arange(100, dtype=np.float32)
    logits[7], logits[9] = 0, log_of(np.array([0.5], np.float32))[0] if n_kept == 2 else 0
    chain, twin = (Chain(params, logits.size) for _ in range(2))
    assert chain._fused is not None and chain._fused.weights(logits) is not None
    check_distribution(chain, one_by_one(twin), logits)
    found = chain.distribution(logits, 7)
    assert found is not None and len(found.ids) == n_kept


@PROPERTY
@given(LOGITS, PARAMS, st.lists(st.integers(0, 99), max_size=5))
def test_any_logits_give_the_same_token(
    logits: Floats, params: SamplingParams, history: list[int]
) -> None:
    chain, twin = (Chain(params, logits.size, eog_ids=(3,)) for _ in range(2))
    assert chain._fused is not None
    one_by_one(twin)
    for token in history:
        chain.accept(token)
        twin.accept(token)
    before = logits.copy()
    check_distribution(chain, twin, logits)
    assert [chain.sample(logits) for _ in range(4)] == [twin.sample(logits) for _ in range(4)]
    np.testing.assert_array_equal(logits, before)


@pytest.mark.parametrize("seed", range(8))
def test_a_vocabulary_gives_the_same_tokens(seed: int) -> None:
    rng = np.random.default_rng(seed)
    params = SamplingParams(seed=seed, top_k=int(rng.integers(1, 2001)), temp=1.5)
    chain, twin = Chain(params, 32003), one_by_one(Chain(params, 32003))
    for _ in range(50):
        logits = (rng.standard_normal(32003) * 3).astype(np.float32)
        check_distribution(chain, twin, logits)
        assert chain.sample(logits) == twin.sample(logits)


@pytest.mark.parametrize("value", [0.0, 7.5, np.inf, -np.inf, np.nan])
def test_more_equal_logits_than_it_takes(value: float) -> None:
    logits = np.full(4096, value, np.float32)
    params = SamplingParams(seed=5, top_k=40)
    chain, twin = Chain(params, 4096), one_by_one(Chain(params, 4096))
    assert chain._fused is not None and chain._fused.pick(logits, 0.5) == -1
    check_distribution(chain, twin, logits)
    tokens = [chain.sample(logits) for _ in range(50)]
    assert tokens == [twin.sample(logits) for _ in range(50)]
    assert max(tokens) < 40


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_has_memory_of_its_own(copied: Callable[[Chain], Chain]) -> None:
    logits = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
    chain = Chain(SamplingParams(seed=3), 4096)
    twin = copied(chain)
    assert chain._fused is not None and twin._fused is not None
    before = chain._fused._work.copy()
    tokens = [twin.sample(logits) for _ in range(20)]
    np.testing.assert_array_equal(chain._fused._work, before)
    assert [chain.sample(logits) for _ in range(20)] == tokens


def test_counts_beyond_all_numbers() -> None:
    params = SamplingParams(seed=1, top_k=10**400, min_keep=10**400)
    assert Chain(params, 4096).sample(np.zeros(4096, np.float32)) >= 0
    params = SamplingParams(seed=1, top_k=5, min_keep=10**400)
    assert Chain(params, 4096).sample(np.zeros(4096, np.float32)) < 5


def test_equal_logits_are_taken_by_id() -> None:
    logits = np.zeros(4096, np.float32)
    logits[[4000, 70, 2000, 9, 1000]] = 3.0
    fused = Fused.create([TopK(3)], 4096)
    assert fused is not None
    assert [fused.pick(logits, uniform) for uniform in (0.0, 0.5, 0.99)] == [9, 70, 1000]


@pytest.mark.parametrize(
    ("samplers", "n_vocab"),
    [
        ([], 4096),
        ([TopP(0.9), TopK(40)], 4096),
        ([TopK(257)], 4096),
        ([TopK(4), type("Mine", (MinP,), {})(0.1)], 4096),
    ],
)
def test_unsupported_chains_are_not_fused(samplers: list[Sampler], n_vocab: int) -> None:
    assert Fused.create(samplers, n_vocab) is None


def test_every_sampler_after_top_k_is_fused_or_keeps_all() -> None:
    for name in DEFAULT_SAMPLERS:
        in_one_function = SAMPLERS[name] in STEPS or SAMPLERS[name].keeps_all
        assert in_one_function, f"{name} of the default chain would end its fusion: see STEPS"


@pytest.mark.parametrize(
    ("params", "fused"),
    [
        ({}, True),
        ({"ignore_eos": True}, True),
        ({"repeat_penalty": 1.1, "logit_bias": {5: 1.0}}, True),
        ({"top_k": 0}, False),
        ({"samplers": ("min_p", "top_k")}, False),
        ({"samplers": ("top_k", "penalties"), "repeat_penalty": 1.1}, False),
    ],
)
def test_which_chains_are_fused(params: dict[str, Any], fused: bool) -> None:
    assert (Chain(SamplingParams(**params), 49152, (0,))._fused is not None) == fused
