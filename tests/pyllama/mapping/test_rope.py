"""Rope settings in config.json: every spelling, and one line for invalid values.

The tests of the architectures' variants compare the values with transformers.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from pyllama.errors import ModelError
from pyllama.mapping.rope import rope_factors, rope_keys

BASE = {"hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 256}
YARN = {"factor": 4.0, "original_max_position_embeddings": 64}
YARN_KEYS = {
    "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 64,
}  # fmt: skip
LONG = {
    "rope_type": "longrope", "original_max_position_embeddings": 16,
    "long_factor": [2.0] * 8, "short_factor": [1.0] * 8,
}  # fmt: skip
LONG_KEYS = {
    "rope.scaling.type": "longrope", "rope.scaling.original_context_length": 16,
    "rope.scaling.attn_factor": math.sqrt(2),
}  # fmt: skip

KEYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing": ({}, {}),
    "old": ({"rope_theta": 5e5}, {"rope.freq_base": 5e5}),
    "older": ({"rotary_emb_base": 100, "rotary_pct": 0.25},
              {"rope.freq_base": 100.0, "rope.dimension_count": 4}),
    "new": ({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}},
            {"rope.freq_base": 5e5}),
    "partial": ({"rope_parameters": {"rope_theta": 10.0, "partial_rotary_factor": 0.5}},
                {"rope.freq_base": 10.0, "rope.dimension_count": 8}),
    "old-linear": ({"rope_theta": 10, "rope_scaling": {"type": "linear", "factor": 4}},
                   {"rope.freq_base": 10.0, "rope.scaling.type": "linear",
                    "rope.scaling.factor": 4.0}),
    "dynamic": ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, {}),
    "llama3": ({"rope_scaling": {"rope_type": "llama3", **YARN}}, {}),
    "yarn": ({"rope_scaling": {"type": "yarn", **YARN}}, YARN_KEYS),
    "yarn-by-sizes": ({"rope_scaling": {"type": "yarn", **YARN, "factor": None}}, YARN_KEYS),
    "yarn-betas": ({"rope_scaling": {"type": "yarn", **YARN, "beta_fast": 16, "beta_slow": 2}},
                   YARN_KEYS | {"rope.scaling.yarn_beta_fast": 16.0,
                                "rope.scaling.yarn_beta_slow": 2.0}),
    "yarn-untruncated": ({"rope_scaling": {"type": "yarn", **YARN, "truncate": False}},
                         YARN_KEYS | {"rope.scaling.yarn_truncate": False}),
    "yarn-as-deepseek": ({"rope_scaling": {"type": "yarn", **YARN, "mscale": 1.0,
                                           "mscale_all_dim": 1.0}},
                         YARN_KEYS | {"rope.scaling.attn_factor": 1 / (1 + 0.1 * math.log(4))}),
    "longrope": ({"rope_parameters": LONG}, LONG_KEYS),
    "su": ({"rope_scaling": {**LONG, "rope_type": None, "type": "su"}}, LONG_KEYS),
    "longrope-attention": ({"rope_parameters": {**LONG, "attention_factor": 3.0}},
                           LONG_KEYS | {"rope.scaling.attn_factor": 3.0}),
    "longrope-factor": ({"rope_parameters": {**LONG, "factor": 2.0}},
                        LONG_KEYS | {"rope.scaling.attn_factor": math.sqrt(1.25)}),
    "longrope-sizes": ({"rope_parameters": {**LONG, "original_max_position_embeddings": 64},
                        "original_max_position_embeddings": 16}, LONG_KEYS),
    "two-kinds": ({"rope_parameters": {"full_attention": {"rope_theta": 1e6},
                                       "sliding_attention": {"rope_theta": 1e4}}},
                  {"rope.freq_base": 1e6, "rope.freq_base_swa": 1e4}),
    "two-kinds-old": ({"rope_theta": 1e6, "rope_local_base_freq": 1e4},
                      {"rope.freq_base": 1e6, "rope.freq_base_swa": 1e4}),
}  # fmt: skip


@pytest.mark.parametrize(("given", "wanted"), KEYS.values(), ids=KEYS)
def test_rope_keys(given: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert rope_keys(BASE | given) == pytest.approx(wanted)


def test_rope_factors() -> None:
    assert rope_factors(BASE) == {}
    got = rope_factors(BASE | {"rope_parameters": LONG})
    assert set(got) == {"rope_factors_long.weight", "rope_factors_short.weight"}
    assert np.array_equal(got["rope_factors_long.weight"], np.full(8, 2, np.float32))
    llama3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64}
    factors = rope_factors(BASE | {"rope_parameters": llama3})["rope_freqs.weight"]
    assert factors.shape == (8,) and factors[0] == 1 and factors[-1] == 8
    assert (np.diff(factors) >= 0).all() and ((factors > 1) & (factors < 8)).any()


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": ({"rope_scaling": {"type": "abacus"}}, "'abacus' is not supported; supported"),
    "no-mapping": ({"rope_scaling": [1, 2]}, "must be an object"),
    "a-layer's-no-mapping": ({"rope_parameters": {"full_attention": 3}}, "must be an object"),
    "sliding-scaled": ({"rope_parameters": {"sliding_attention": {"rope_type": "yarn"}}},
                       "of sliding-window layers is"),
    "few-factors": ({"rope_parameters": {**LONG, "long_factor": [1.0]}}, "1 values, must have 8"),
    "llama3-backwards": ({"rope_scaling": {"type": "llama3", "low_freq_factor": 4.0,
                                           "high_freq_factor": 4.0}}, "parameters are invalid"),
    "llama3-negative": ({"rope_scaling": {"type": "llama3", "factor": -1.0}},
                        "parameters are invalid"),
    **{f"llama3-factor-{x}": ({"rope_scaling": {"type": "llama3", "factor": x}},
                               "parameters are invalid")
       for x in (math.nan, math.inf, 1e308)},
    **{f"longrope-{x}": ({"rope_parameters": {**LONG, "short_factor": [x] * 8}}, "not greater than")
       for x in (math.nan, math.inf, 1e308, 0.0, -1.0)},
    "an-endless-head": ({"head_dim": 10**11, "rope_scaling": {"type": "llama3"}}, "50000000000"),
    "llama3-text": ({"rope_scaling": {"type": "llama3", "factor": "x"}}, "x"),
    "longrope-text": ({"rope_parameters": {**LONG, "short_factor": ["a"] * 8}}, "a"),
}  # fmt: skip


@pytest.mark.parametrize(("given", "message"), BAD.values(), ids=BAD)
def test_invalid_rope_settings(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message) as error:
        rope_keys(BASE | given)
        rope_factors(BASE | given)
    assert "\n" not in str(error.value)
