"""llama.cpp's expectations of its samplers (tests/test-sampling.cpp), as data."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from pyllama.sampling import Candidates, Chain, Sampler, SamplingParams
from pyllama.sampling.samplers.dist import Dist
from pyllama.sampling.samplers.truncation import MinP, TopK, TopP

OFF: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temp": 1.0, "seed": 0}
RISING = (0.1, 0.2, 0.3, 0.4)
EVEN = (0.2,) * 5
FALLING, QUARTERS = RISING[::-1], (0.25,) * 4
XTC = {"xtc_probability": 0.99}
DRY: dict[str, Any] = {
    "dry_multiplier": 1.0, "dry_base": 1.1, "dry_allowed_length": 2, "dry_sequence_breakers": (),
}  # fmt: skip
REPEAT = {"repeat_penalty": 50.0}
FREQUENT = {"frequency_penalty": 5.0, "presence_penalty": 5.0}

# fmt: off
# (probabilities in, parameters, accepted tokens, probabilities out in the chain's order)
TABLE: list[tuple[tuple[float, ...], dict[str, Any], tuple[int, ...], tuple[float, ...]]] = [
    (RISING, {"temp": 1.0}, (), RISING),
    (RISING, {"temp": 0.0}, (), (0, 0, 0, 1)),
    (RISING, {"temp": -1.0}, (), (0, 0, 0, 1)),
    (RISING, {"temp": 0.5}, (), (1 / 30, 4 / 30, 9 / 30, 16 / 30)),
    (RISING, {"temp": 0.0, "dynatemp_range": 0.0, "dynatemp_exponent": 1.0}, (), (0, 0, 0, 1)),
    (RISING, {"temp": 1.0, "dynatemp_range": 0.0, "dynatemp_exponent": 1.0}, (), RISING),
    # equal tokens have the greatest entropy: the highest temperature, which changes nothing
    (EVEN, {"temp": 1.0, "dynatemp_range": 0.5}, (), EVEN),
    (RISING, {"top_k": 1}, (), (1,)),
    (RISING, {"top_k": 3}, (), (0.44444, 0.33333, 0.22222)),
    (RISING, {"top_k": 4}, (), RISING[::-1]),
    (RISING, {"top_k": 0}, (), RISING),
    (RISING, {"top_p": 0.0}, (), (1,)),
    (RISING, {"top_p": 0.7}, (), (0.571429, 0.428571)),
    (RISING, {"top_p": 0.8}, (), (0.44444, 0.33333, 0.22222)),
    (RISING, {"top_p": 1.0}, (), RISING),
    (RISING, {"top_p": 0.1, "min_keep": 2}, (), (0.571429, 0.428571)),
    (RISING, {"top_p": 0.1, "min_keep": 9}, (), RISING[::-1]),
    (RISING, {"min_p": 0.0}, (), RISING),
    (RISING, {"min_p": 0.24}, (), RISING),
    (RISING, {"min_p": 0.26}, (), (0.2 / 0.9, 0.3 / 0.9, 0.4 / 0.9)),
    (RISING, {"min_p": 0.49}, (), (0.2 / 0.9, 0.3 / 0.9, 0.4 / 0.9)),
    (RISING, {"min_p": 0.51}, (), (0.3 / 0.7, 0.4 / 0.7)),
    (RISING, {"min_p": 0.74}, (), (0.3 / 0.7, 0.4 / 0.7)),
    (RISING, {"min_p": 0.76}, (), (1,)),
    (RISING, {"min_p": 1.0}, (), (1,)),
    (RISING, {"min_p": 1.05}, (), (1,)),
    (RISING, {"min_p": 1.0, "min_keep": 3}, (), (0.44444, 0.33333, 0.22222)),
    (FALLING, XTC | {"xtc_threshold": 0.09}, (), (1,)),
    (FALLING, XTC | {"xtc_threshold": 0.19}, (), (2 / 3, 1 / 3)),
    (FALLING, XTC | {"xtc_threshold": 0.29}, (), (3 / 6, 2 / 6, 1 / 6)),
    (FALLING, XTC | {"xtc_threshold": 0.39}, (), FALLING),
    (FALLING, XTC | {"xtc_threshold": 0.09, "min_keep": 2}, (), FALLING),
    ((0.97, 0.01, 0.01, 0.01), {"typical_p": 0.5}, (), (1,)),
    ((0.4, 0.2, 0.2, 0.2), {"typical_p": 0.5}, (), (1 / 3, 1 / 3, 1 / 3)),
    ((0.97, 0.01, 0.02, 0.0), {"typical_p": 0.5, "min_keep": 3}, (), (0.97, 0.02, 0.01)),
    (RISING, {"top_n_sigma": 1.0}, (), (0, 0, 0.428571, 0.571429)),
    (RISING, {"top_n_sigma": 0.0}, (), RISING),
    (RISING, {"top_n_sigma": 3.0}, (), RISING),
    (QUARTERS, DRY | {"dry_penalty_last_n": 4}, (0, 1), QUARTERS),
    (QUARTERS, DRY | {"dry_penalty_last_n": 5}, (0, 1, 2, 0, 1),
     (0.296923, 0.296923, 0.109232, 0.296923)),
    (EVEN, DRY | {"dry_penalty_last_n": 6, "dry_sequence_breakers": ((3,),)}, (0, 1, 3, 4, 0, 1),
     EVEN),
    (EVEN, DRY | {"dry_multiplier": 2.0, "dry_penalty_last_n": 5}, (0, 1, 2, 0, 1),
     (0.241818, 0.241818, 0.032727, 0.241818, 0.241818)),
    (EVEN, DRY | {"dry_allowed_length": 4, "dry_penalty_last_n": 7}, (0, 1, 2, 3, 4, 0, 1), EVEN),
    (RISING, {"allowed_token_ids": (0, 2)}, (), (1 / 4, 0, 3 / 4, 0)),
    (RISING, {"bad_words": ((3,), (0, 1))}, (0,), (1 / 4, 0, 3 / 4, 0)),
    (RISING, {"bad_words": ((3,), (0, 1))}, (0, 2), (1 / 6, 2 / 6, 3 / 6, 0)),
    (RISING, {"bad_words": ((1, 0, 1), (2, 0, 2))}, (1, 0), (1 / 8, 0, 3 / 8, 4 / 8)),
    (EVEN, REPEAT, (0,), (0, 0.25, 0.25, 0.25, 0.25)),
    (EVEN, REPEAT, (0, 1, 2), (0, 0, 0, 0.5, 0.5)),
    (EVEN, REPEAT, (0, 1, 2, 0, 0), (0, 0, 0, 0.5, 0.5)),
    (EVEN, FREQUENT, (0,), (0.000011, 0.249997, 0.249997, 0.249997, 0.249997)),
    (EVEN, FREQUENT, (0, 1, 2), (0.000023, 0.000023, 0.000023, 0.499966, 0.499966)),
    (EVEN, FREQUENT, (0, 1, 2, 0, 0), (0, 0.000023, 0.000023, 0.499977, 0.499977)),
    (EVEN, REPEAT | {"repeat_last_n": 2}, (0, 1, 2), (1 / 3, 0, 0, 1 / 3, 1 / 3)),
    (EVEN, REPEAT | {"repeat_last_n": 0}, (0, 1, 2), EVEN),
    (EVEN, REPEAT | {"repeat_last_n": -1}, (0, *([1] * 99)), (0, 0, 1 / 3, 1 / 3, 1 / 3)),
    (RISING, {"logit_bias": {3: -math.inf}}, (), (1 / 6, 2 / 6, 3 / 6, 0)),
    (RISING, {"logit_bias": {0: math.inf}}, (), (1, 0, 0, 0)),
    (RISING, {"logit_bias": {0: math.log(2), 1: 0.0}}, (), (2 / 11, 2 / 11, 3 / 11, 4 / 11)),
]
# fmt: on


@pytest.mark.parametrize(("probs", "params", "history", "expected"), TABLE)
def test_probabilities(
    probs: tuple[float, ...],
    params: dict[str, Any],
    history: tuple[int, ...],
    expected: tuple[float, ...],
) -> None:
    chain = Chain(SamplingParams(**(OFF | params)), len(probs))
    for token in history:
        chain.accept(token)
    with np.errstate(divide="ignore"):
        logits = np.log(np.array(probs, np.float32))
    got = chain.apply(logits).probs()
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)


def test_penalty_divides_positive_logits_and_multiplies_the_others() -> None:
    chain = Chain(SamplingParams(**(OFF | {"repeat_penalty": 2.0})), 4)
    for token in (0, 1, 2):
        chain.accept(token)
    got = chain.apply(np.array([4, -4, 0, 1], np.float32)).logits
    assert got.tolist() == [2, -8, 0, 1]


def test_a_single_candidate_consumes_a_random_number() -> None:
    single, control = Dist(4242), Dist(4242)
    single.pick(Candidates(np.zeros(1, np.float32)))
    control.pick(Candidates(np.zeros(2, np.float32)))
    even = np.zeros(256, np.float32)
    for _ in range(4):
        assert single.pick(Candidates(even)) == control.pick(Candidates(even))


N_VOCAB = 10_000
QUEUES = [
    ("k", 10_000, 1.0, 1.0),
    ("k", 1, 1.0, 1.0),
    ("p", 10_000, 1.0, 1.0),
    ("p", 10_000, 0.0, 1.0),
    ("m", 10_000, 1.0, 1.0),
    ("m", 10_000, 1.0, 1e-12),
    ("k", 100, 1.0, 1.0),
    ("p", 10_000, 0.0003, 1.0),
    ("p", 10_000, 0.8, 1.0),
    ("m", 10_000, 1.0, 9997.9 / 9999.0),
    ("m", 10_000, 1.0, 0.1),
    ("mp", 100, 0.8, 9997.9 / 9999.0),
    *((q, 100, 0.8, 0.1) for q in ("kp", "km", "pk", "pm", "mk", "mp")),
    *((q, 100, 0.8, 0.1) for q in ("kpm", "kmp", "pkm", "pmk", "mkp", "mpk")),
]


@pytest.mark.parametrize(("queue", "k", "p", "m"), QUEUES)
def test_queues_keep_the_right_ids(queue: str, k: int, p: float, m: float) -> None:
    """With logits ln(id) probabilities are proportional to ids: expected values are integers."""
    links: dict[str, Sampler] = {"k": TopK(k), "p": TopP(p, 1), "m": MinP(m, 1)}
    with np.errstate(divide="ignore"):
        candidates = Candidates(np.log(np.arange(N_VOCAB, dtype=np.float32)))
    lowest = 0
    for letter in queue:
        if letter != "p" or p < 1:  # a chain leaves top-p out at 1
            links[letter].apply(candidates)
        if letter == "k":
            lowest = max(lowest, N_VOCAB - k)
        elif letter == "p" and p < 1:
            total = sum(range(lowest, N_VOCAB))
            lowest, running = N_VOCAB, 0
            while lowest == N_VOCAB or running < p * total:
                lowest -= 1
                running += lowest
        elif letter == "m":
            lowest = max(lowest, 1, math.ceil(m * (N_VOCAB - 1)))
        assert sorted(candidates.ids) == list(range(lowest, N_VOCAB))
        assert candidates.token(candidates.argmax()) == N_VOCAB - 1
