"""Documents that a chain samples under the grammars of JSON schemas are valid, and they end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from pyggml.gguf import GGUFFile
from pyllama.grammar import Grammar
from pyllama.grammar.schema.schema_parts import Unsatisfiable
from pyllama.sampling import SamplingParams, chain_for
from pyllama.tokenizer import Tokenizer, load_tokenizer

from ...tiers import long
from .random_schemas import RandomSchema, bounded

pytestmark = pytest.mark.model
FIXED = sorted((Path(__file__).resolve().parents[2] / "data" / "json_schemas").glob("*.json"))
MAX_TOKENS = 400


@pytest.fixture(scope="module")
def tokenizer(demo_model: Path) -> Tokenizer:
    return load_tokenizer(GGUFFile(demo_model).metadata)


def rows_of_logits(kind: str, n_vocab: int) -> Any:
    """float32[64, n_vocab]: all tokens alike, or as a model's: tokens merged early are likelier."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((64, n_vocab), np.float32)
    if kind == "like a model":
        rows = 2 * rows - np.log(np.arange(n_vocab, dtype=np.float32) + 10)
    return rows


def document(grammar: Grammar, tokenizer: Tokenizer, rows: Any, seed: int) -> str | None:
    """The text that a chain samples at temperature 1.2; None if the grammar did not end it."""
    params = SamplingParams(temp=1.2, seed=seed)
    if seed % 2:  # no token is cut off
        params = SamplingParams(temp=1.2, seed=seed, samplers=("temperature",))
    chain = chain_for(params, tokenizer.n_vocab, tokenizer, grammar)
    text = b""
    for row in np.random.default_rng(seed).integers(0, len(rows), MAX_TOKENS):
        token = chain.sample(rows[row])
        if token in tokenizer.eog:
            return text.decode()
        chain.accept(token)
        text += tokenizer.token_to_piece(token)
    return None


def check(schema: Any, text: str) -> None:
    judge = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    error = next(judge.iter_errors(json.loads(text)), None)
    assert error is None, f"{text}: {error.message}"


@pytest.mark.parametrize(("kind", "n_random"), [("like a model", 60), long(("random", 120))])
def test_sampled_documents_are_valid(kind: str, n_random: int, tokenizer: Tokenizer) -> None:
    rows = rows_of_logits(kind, tokenizer.n_vocab)
    schemas = [json.loads(path.read_bytes()) for path in FIXED]
    schemas += [bounded(RandomSchema(seed).draw()) for seed in range(n_random)]
    n_ended = n = 0
    for seed, schema in enumerate(schemas):
        try:
            grammar = Grammar.from_json_schema(schema)
        except Unsatisfiable:
            continue
        n += 1
        text = document(grammar, tokenizer, rows, seed)
        if text is not None:
            n_ended += 1
            check(schema, text)
    assert n >= 0.95 * len(schemas)
    if kind == "like a model":  # else a quote is one token of 49152, and free keys do not end
        assert n_ended >= 0.95 * n
