"""Measures sampling of one token from logits of a vocabulary; prints a table, appends a result.

    python -m benchmarks.samplers

Chains after a top-k of 40, and over the whole vocabulary; median of many calls on one core, with
the logits in the cache.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import machine
from pyllama.sampling import Chain, SamplingParams

RESULTS = Path(__file__).parent / "results" / "samplers.jsonl"
N_VOCAB, N_CALLS, N_PROMPT = 50_000, 400, 200
AFTER_TOP_K: dict[str, dict[str, Any]] = {
    "default": {},
    "greedy": {"temp": 0.0},
    "penalties": {"repeat_penalty": 1.1},
    "dry": {"dry_multiplier": 0.8, "dry_sequence_breakers": ((13,),)},
    "top_n_sigma": {"top_n_sigma": 1.0},
    "typical_p": {"typical_p": 0.9},
    "xtc": {"xtc_probability": 0.5},
    "dynamic temperature": {"dynatemp_range": 0.3},
    "adaptive_p": {
        "samplers": ("top_k", "min_p", "temperature", "adaptive_p"), "adaptive_target": 0.3,
    },
    "logit_bias": {"logit_bias": {5: -1.0}},
    "allowed_token_ids": {"allowed_token_ids": tuple(range(0, N_VOCAB, 7))},
    "bad_words": {"bad_words": ((3,), *((i, i + 1) for i in range(50)))},
    "min_tokens": {"min_tokens": 10**6},
    "a function": {"samplers": ("top_k", "top_p", "min_p", lambda c: c.keep_top(10), "temp")},
}  # fmt: skip
WHOLE: dict[str, dict[str, Any]] = {
    "top_p": {"samplers": ("top_p",), "top_p": 0.95},
    "min_p": {"samplers": ("min_p",)},
    "top_n_sigma": {"samplers": ("top_n_sigma",), "top_n_sigma": 1.0},
    "typical_p": {"samplers": ("typ_p",), "typical_p": 0.9},
    "xtc": {"samplers": ("xtc",), "xtc_probability": 1.0, "xtc_threshold": 0.02},
    "dynamic temperature": {"samplers": ("temperature",), "dynatemp_range": 0.3},
    "mirostat 1": {"mirostat": 1},
    "mirostat 2": {"mirostat": 2},
}


def time_us(params: SamplingParams) -> float:
    """Median time of `sample` and `accept`, in microseconds."""
    rng = np.random.default_rng(0)
    chain = Chain(params, N_VOCAB, eog_ids=(2,))
    chain.accept_prompt(rng.integers(0, 40, N_PROMPT).tolist())
    rows = (rng.standard_normal((8, N_VOCAB)) * 3).astype(np.float32)
    argmax = [int(row.argmax()) for row in rows]
    taken = []
    for i in range(N_CALLS):
        row, best = rows[i % 8], argmax[i % 8]
        start = time.perf_counter()
        chain.accept(chain.sample(row, best))
        taken.append(time.perf_counter() - start)
    return 1e6 * statistics.median(taken[N_CALLS // 4 :])


def main() -> None:
    line: dict[str, Any] = {**machine.head(), "n_vocab": N_VOCAB}
    for title, chains in (("after top-k", AFTER_TOP_K), ("whole vocabulary", WHOLE)):
        line[title] = {}
        for name, given in chains.items():
            line[title][name] = round(time_us(SamplingParams(seed=1, **given)), 1)
            print(f"{title:18}{name:22}{line[title][name]:8.1f} us", flush=True)
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a", encoding="utf-8") as out:
        out.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
