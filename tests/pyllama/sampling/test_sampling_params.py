"""Defaults are llama.cpp's; bad values give errors of one line."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest

from pyllama.errors import PyllamaError, SamplingError
from pyllama.sampling import RANDOM_SEED, SamplingParams, sampling_fields

DEFAULTS = {
    "seed": 0xFFFFFFFF,
    "temp": 0.8,
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.05,
    "min_keep": 0,
    "repeat_last_n": 64,
    "repeat_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "dynatemp_range": 0.0,
    "dynatemp_exponent": 1.0,
    "typical_p": 1.0,
    "top_n_sigma": -1.0,
    "xtc_probability": 0.0,
    "xtc_threshold": 0.1,
    "dry_multiplier": 0.0,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": 64,
    "dry_sequence_breakers": ("\n", ":", '"', "*"),
    "adaptive_target": -1.0,
    "adaptive_decay": 0.9,
    "mirostat": 0,
    "mirostat_tau": 5.0,
    "mirostat_eta": 0.1,
    "allowed_token_ids": None,
    "bad_words": (),
    "min_tokens": 0,
    "reasoning_budget_tokens": -1,
    "reasoning_budget_start": (),
    "reasoning_budget_end": (),
    "reasoning_budget_forced": (),
    "generation_prompt": (),
    "ignore_eos": False,
    "logit_bias": {},
    "samplers": None,
    "n": 1,
    "best_of": None,
    "logprobs": None,
    "prompt_logprobs": None,
    "stop_token_ids": frozenset(),
    "include_stop_str_in_output": False,
}
NAN, INF = float("nan"), float("inf")


def test_defaults() -> None:
    params = SamplingParams()
    assert {name: getattr(params, name) for name in params.__slots__} == DEFAULTS


def test_parameters_do_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        SamplingParams().temp = 0.0  # type: ignore[misc]


@pytest.mark.parametrize(
    "bad",
    [
        {"seed": -2},
        {"seed": 2**32},
        {"samplers": "top_k"},
        {"bad_words": "Paris"},
        {"dry_sequence_breakers": "\n"},
        {"temp": NAN},
        {"temp": INF},
        {"temp": 1e300},
        {"top_p": 10**400},
        {"top_p": NAN},
        {"min_p": NAN},
        {"min_keep": -1},
        {"n": 0},
        {"best_of": 0},
        {"logprobs": -1},
        {"prompt_logprobs": -1},
        {"stop_token_ids": frozenset([-1])},
        {"repeat_last_n": -2},
        {"repeat_penalty": 0.0},
        {"repeat_penalty": -1.0},
        {"repeat_penalty": NAN},
        {"repeat_penalty": INF},
        {"repeat_penalty": 1e39},
        {"frequency_penalty": INF},
        {"presence_penalty": NAN},
        {"typical_p": NAN},
        {"dynatemp_range": INF},
        {"xtc_threshold": NAN},
        {"dry_base": 1e39},
        {"dry_penalty_last_n": -1},
        {"mirostat": 3},
        {"mirostat_tau": INF},
        {"allowed_token_ids": ()},
        {"bad_words": ("",)},
        {"min_tokens": -1},
        {"logit_bias": {-1: 0.0}},
        {"logit_bias": {1: NAN}},
        {"logit_bias": {1: -1e39}},
        {"temp": "0.5"},
        {"temp": None},
        {"repeat_penalty": "1"},
        {"top_k": None},
        {"top_k": 2.5},
        {"seed": "1"},
        {"n": "2"},
        {"best_of": "2"},
        {"logprobs": "2"},
        {"reasoning_budget_tokens": -5},
        {"reasoning_budget_end": (5,)},
        {"generation_prompt": "x"},
        {"stop_token_ids": 5},
        {"stop_token_ids": "5"},
        {"allowed_token_ids": 5},
        {"bad_words": (5,)},
        {"samplers": 5},
        {"logit_bias": [1]},
        {"logit_bias": {"1": 0.0}},
        {"logit_bias": {1: "x"}},
    ],
)
def test_bad_values(bad: dict[str, Any]) -> None:
    (name,) = bad
    with pytest.raises(SamplingError, match=f"sampling parameter {name}.*got .*, want ") as caught:
        SamplingParams(**bad)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, PyllamaError) and isinstance(caught.value, ValueError)


def test_numbers_of_numpy() -> None:
    params = SamplingParams(
        temp=np.float32(0.5), top_k=np.int64(3), allowed_token_ids=np.arange(3),  # type: ignore[arg-type]
        logit_bias={np.int32(1): np.float32(2)}, stop_token_ids=frozenset(np.arange(2)),
    )  # fmt: skip
    assert (params.temp, params.top_k) == (0.5, 3)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"top_kk": 1}, "no field 'top_kk'; did you mean 'top_k'?"),
        ({"nosuch": 1}, "no field 'nosuch'; there are seed, temp, "),
        ({1: 1}, "no field 1; "),
        ([1], "sampling: got [1], want a dictionary"),
        (5, "sampling: got 5, want a dictionary"),
    ],
)
def test_fields_by_name(given: Any, message: str) -> None:
    with pytest.raises(SamplingError) as caught:
        sampling_fields(given)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert sampling_fields({"top_k": 1}) == {"top_k": 1} and sampling_fields(None) == {}


def test_describe_is_llama_cpps_text() -> None:
    assert SamplingParams(top_k=7, repeat_penalty=1.1).describe() == (
        "\trepeat_last_n = 64, repeat_penalty = 1.100, frequency_penalty = 0.000, "
        "presence_penalty = 0.000\n"
        "\tdry_multiplier = 0.000, dry_base = 1.750, dry_allowed_length = 2, "
        "dry_penalty_last_n = 64\n"
        "\ttop_k = 7, top_p = 0.950, min_p = 0.050, xtc_probability = 0.000, "
        "xtc_threshold = 0.100, typical_p = 1.000, top_n_sigma = -1.000, temp = 0.800\n"
        "\tmirostat = 0, mirostat_lr = 0.100, mirostat_ent = 5.000, adaptive_target = -1.000, "
        "adaptive_decay = 0.900"
    )


def test_texts_have_seeds_of_their_own() -> None:
    assert [SamplingParams(seed=7, top_k=3).for_text(i).seed for i in (0, 1, 9)] == [7, 8, 16]
    assert SamplingParams(seed=7, top_k=3).for_text(2).top_k == 3
    last = SamplingParams(seed=RANDOM_SEED - 1)
    assert (last.for_text(0).seed, last.for_text(1).seed) == (
        RANDOM_SEED - 1,
        0,
    )  # never a random one
    assert all(SamplingParams(seed=seed).for_text(5).seed == seed for seed in (-1, RANDOM_SEED))
