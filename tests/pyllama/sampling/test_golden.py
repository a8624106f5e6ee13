"""Equal logits, parameters and seed give llama.cpp's tokens, for each sampler and random chains."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyllama.grammar import Grammar
from pyllama.sampling import LETTERS, Chain, SamplingParams, chain_for
from pyllama.sampling.top import Floats
from pyllama.tokenizer import Tokenizer, load_tokenizer

DATA = Path(__file__).parents[2] / "data" / "sampling"
CASES = [json.loads(line) for line in (DATA / "golden.jsonl").read_text().splitlines()]
ABOUT_LOGITS = ("n_vocab", "row", "period", "n", "scale", "prompt", "tokens", "vocab", "grammar")


@cache
def tokenizer(name: str) -> Tokenizer:
    """A small vocabulary, see record.py."""
    metadata = json.loads((DATA / "vocabularies.json").read_text(encoding="utf-8"))
    return load_tokenizer(metadata[name])


def logits(row: int, n_vocab: int, scale: float) -> Floats:
    """`candidates` of driver.cpp."""
    x = np.arange(n_vocab, dtype=np.uint64) + np.uint64(row << 32) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    total = (x >> np.uint64(32)).astype(np.float64) + (x & np.uint64(0xFFFFFFFF))
    made: Floats = ((total / 2.0**32 - 1) * scale).astype(np.float32)
    return made


def params(case: dict[str, Any]) -> SamplingParams:
    given = {name: value for name, value in case.items() if name not in ABOUT_LOGITS}
    samplers = tuple(LETTERS[letter] for letter in given.pop("chain"))
    breakers = given.pop("breakers", None) or map(tuple, given.pop("dry_sequence_breakers", ()))
    return SamplingParams(
        samplers=samplers, dry_sequence_breakers=tuple(breakers), **{"seed": 1, **given}
    )


def label(case: dict[str, Any]) -> str:
    chain = case["chain"] or f"mirostat{case['mirostat']}"
    return f"{chain}-{case.get('vocab', case['n_vocab'])}-{case['seed']}"


@pytest.mark.parametrize("case", CASES, ids=label)
def test_tokens_are_llama_cpps(case: dict[str, Any]) -> None:
    n_vocab, eog, vocabulary = case["n_vocab"], frozenset[int](), None
    if "vocab" in case:
        vocabulary = tokenizer(case["vocab"])
        n_vocab, eog = vocabulary.n_vocab, vocabulary.eog
    if vocabulary is not None and "grammar" in case:
        chain = chain_for(params(case), n_vocab, vocabulary, Grammar(case["grammar"]))
    else:
        chain = Chain(params(case), n_vocab, eog, tokenizer=vocabulary)
    rows = [logits(case["row"] + i, n_vocab, case["scale"]) for i in range(case["period"])]
    chain.accept_prompt(case["prompt"])
    tokens = []
    for i in range(case["n"]):
        tokens.append(chain.sample(rows[i % case["period"]]))
        chain.accept(tokens[-1])
        if "grammar" in case and tokens[-1] in eog:
            break
    assert tokens == case["tokens"]
