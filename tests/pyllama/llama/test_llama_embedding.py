"""``Llama(embedding=True)``: llama-cpp-python's arguments, results and errors."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyllama import Context, Llama, Model
from pyllama.embeddings import embed_many
from pyllama.engine import Engine
from pyllama.runtime.overrides import Overrides

TEXTS = ["a cat", "", "Paris is a city", "a cat"]


@pytest.fixture
def make(model_path: Path) -> Any:
    def llama(**options: Any) -> Llama:
        return Llama(model_path, **{"n_ctx": 64, "embedding": True, "verbose": False, **options})

    return llama


def wanted(model: Model, pooling: str, *texts: str, causal: bool = True) -> list[Any]:
    context = Context(model, n_ctx=64, overrides=Overrides(causal=causal))
    return [
        embed_many(Engine(context), [model.tokenizer.encode(text)], pooling)[0].tolist()
        for text in texts
    ]


@pytest.mark.parametrize(("number", "pooling"), [(0, "none"), (1, "mean"), (2, "cls"), (3, "last")])
def test_embed(make: Any, model: Model, number: int, pooling: str) -> None:
    llama, rows = make(pooling_type=number), wanted(model, pooling, *TEXTS)
    assert llama.pooling_type() == number
    assert llama.embed(TEXTS) == rows and llama.embed(tuple(TEXTS)) == rows
    assert llama.embed("a cat") == rows[0]
    n_tokens = sum(len(model.tokenizer.encode(text)) for text in TEXTS)
    assert llama.embed(TEXTS, return_count=True) == (rows, n_tokens)
    unit = np.array(llama.embed("a cat", normalize=True))
    assert np.allclose(unit, np.array(rows[0]) / np.linalg.norm(rows[0], axis=-1, keepdims=True))
    assert np.allclose(np.linalg.norm(unit, axis=-1), 1)
    assert llama.embed([]) == []


def test_defaults_are_the_models(make: Any, model: Model) -> None:
    assert make().pooling_type() == 0 and make().embed("a cat") == wanted(model, "none", "a cat")[0]
    of_file = make(kv_overrides={"llama.pooling_type": 3, "llama.attention.causal": False})
    assert of_file.pooling_type() == 3
    assert of_file.embed("a cat") == wanted(model, "last", "a cat", causal=False)[0]
    assert (
        make(attention_type=1, pooling_type=2).embed("a cat")
        == (wanted(model, "cls", "a cat", causal=False)[0])
    )


def test_create_embedding(make: Any, model: Model, model_path: Path) -> None:
    llama, rows = make(pooling_type=1), wanted(model, "mean", *TEXTS[:2])
    made = llama.create_embedding(TEXTS[:2])
    n_tokens = sum(len(model.tokenizer.encode(text)) for text in TEXTS[:2])
    assert made == {
        "object": "list",
        "data": [
            {"object": "embedding", "embedding": row, "index": i} for i, row in enumerate(rows)
        ],
        "model": str(model_path),
        "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
    }
    one = llama.create_embedding("a cat", model="name")
    assert one["model"] == "name" and one["data"][0]["embedding"] == rows[0]


def test_texts_longer_than_a_batch(make: Any, model: Model) -> None:
    llama = make(pooling_type=3, n_batch=8)
    text, tokens = "a" * 20, model.tokenizer.encode("a" * 20)
    (row,) = embed_many(Engine(Context(model, n_ctx=64)), [tokens[:8]], "last")
    assert llama.embed(text, return_count=True) == (row.tolist(), 8)
    with pytest.raises(ValueError, match=rf"tokens \({len(tokens)}\) exceed batch size of 8"):
        llama.embed([text], truncate=False)


def test_texts_and_embeddings_of_one_object(make: Any, model: Model) -> None:
    llama = make(pooling_type=1)
    said = [llama("a cat", max_tokens=8, temperature=0)["choices"][0]["text"] for _ in range(2)]
    stream = llama("a cat", max_tokens=8, temperature=0, stream=True)
    parts = [next(stream)]
    assert llama.embed(TEXTS) == wanted(model, "mean", *TEXTS)
    assert llama.n_tokens == 0
    parts += stream
    assert "".join(part["choices"][0]["text"] for part in parts) == said[0] == said[1]
    assert pickle.loads(pickle.dumps(llama)).embed("a cat") == wanted(model, "mean", "a cat")[0]


def test_errors(make: Any) -> None:
    with pytest.raises(RuntimeError, match="must be created with embedding=True"):
        make(embedding=False).embed("a")
    with pytest.raises(ValueError, match="no classification head"):
        make(pooling_type=4).embed("a")
    with pytest.raises(ValueError, match="the text is empty"):
        make(kv_overrides={"tokenizer.ggml.add_bos_token": False}).embed(["a", ""])
    with pytest.raises(ValueError, match="it computes embeddings, no texts"):
        make(attention_type=1)("a cat")
    with pytest.raises(ValueError, match="there is no context"):
        make(vocab_only=True).embed("a")
