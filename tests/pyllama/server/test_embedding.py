"""Embeddings and reranking; the numbers are tested with the engine."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from .conftest import Serve


def test_openai_embeddings(serve: Serve) -> None:
    client = serve(pooling="mean")
    texts = ["One text", "Another one", "One text"]
    found = client.post("/v1/embeddings", json={"input": texts}).json()
    rows = [np.array(one["embedding"]) for one in found["data"]]
    assert [one["index"] for one in found["data"]] == [0, 1, 2]
    assert (rows[0] == rows[2]).all() and (rows[0] != rows[1]).any()
    assert np.linalg.norm(rows[0]) == pytest.approx(1, abs=1e-5)
    assert found["usage"]["prompt_tokens"] == found["usage"]["total_tokens"] > 3
    ask = {"input": texts[0], "encoding_format": "base64"}
    (one,) = client.post("/v1/embeddings", json=ask).json()["data"]
    assert (np.frombuffer(base64.b64decode(one["embedding"]), "<f4") == rows[0].astype("f4")).all()
    parts = {"content": [{"type": "text", "text": "One "}, {"type": "text", "text": "text"}]}
    (one,) = client.post("/v1/embeddings", json={"input": parts}).json()["data"]
    assert one["embedding"] == rows[0].tolist()


def test_dimensions(serve: Serve) -> None:
    """The first numbers of the vector, scaled to a length of 1 again."""
    client = serve(pooling="mean")

    def vector(**more: Any) -> Any:
        response = client.post("/v1/embeddings", json={"input": "One text", **more})
        assert response.status_code == 200, response.text
        assert "X-Ignored-Fields" not in response.headers
        return np.array(response.json()["data"][0]["embedding"])

    whole, raw = vector(), vector(embd_normalize=-1)
    for n in (1, 7, len(whole)):
        cut = whole[:n] / np.linalg.norm(whole[:n])
        np.testing.assert_allclose(vector(dimensions=n), cut, rtol=1e-5)
        assert (vector(dimensions=n, embd_normalize=-1) == raw[:n]).all()
    for wrong in (0, -1, len(whole) + 1, "x"):
        body = {"input": "a", "dimensions": wrong}
        response = client.post("/v1/embeddings", json=body)
        assert response.status_code == 400 and "dimensions" in response.json()["error"]["message"]


def test_ollama_s_format(serve: Serve) -> None:
    client, texts = serve(pooling="mean"), ["One text", "Another one"]
    found = client.post("/v1/embeddings", json={"input": texts}).json()["data"]
    wanted = [one["embedding"] for one in found]
    made = client.post("/api/embed", json={"model": "m", "input": texts}).json()
    assert made["embeddings"] == wanted and made["model"] == "m"
    assert made["prompt_eval_count"] > 3 and made["total_duration"] > 0
    assert client.post("/api/embed", json={"input": texts[0]}).json()["embeddings"] == wanted[:1]
    (cut,) = client.post("/api/embed", json={"input": texts[0], "dimensions": 7}).json()[
        "embeddings"
    ]
    np.testing.assert_allclose(cut, wanted[0][:7] / np.linalg.norm(wanted[0][:7]), rtol=1e-5)
    plain = client.post("/api/embeddings", json={"prompt": texts[0]}).json()["embedding"]
    np.testing.assert_allclose(plain / np.linalg.norm(plain), wanted[0], rtol=1e-5)
    for nothing in ({}, {"input": ""}, {"input": []}):
        assert client.post("/api/embed", json=nothing).json()["embeddings"] == []
    assert client.post("/api/embeddings", json={"prompt": ""}).json() == {"embedding": []}
    long = {"input": "word " * 2000}
    assert len(client.post("/api/embed", json=long).json()["embeddings"]) == 1
    for wrong in (
        {"input": 5},
        {"input": [1]},
        {"input": "a", "dimensions": 1 << 20},
        {**long, "truncate": False},
    ):
        response = client.post("/api/embed", json=wrong)
        assert response.status_code == 400 and isinstance(response.json()["error"], str)
    assert serve().post("/api/embed", json={"input": "a"}).status_code == 501
    assert serve(pooling="none").post("/api/embed", json={"input": "a"}).status_code == 400


def test_embeddings_of_all_tokens(serve: Serve) -> None:
    client = serve(pooling="none")
    tokens = client.post("/tokenize", json={"content": "abc", "add_special": True}).json()["tokens"]
    (one,) = client.post("/embeddings", json={"content": "abc"}).json()
    assert np.array(one["embedding"]).shape[0] == len(tokens)
    assert client.post("/v1/embeddings", json={"input": "abc"}).status_code == 400


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"input": []},
        {"input": True},
        {"input": [""]} | {"input": [[]]},
        {"input": "a", "encoding_format": 1},
        {"input": {"content": "a"}},
        {"input": {"content": [{"type": "image_url"}]}},
        {"input": [10**9]},
        {"input": ["a"] * 2049},
    ],
)
def test_wrong_inputs(serve: Serve, body: dict[str, Any]) -> None:
    assert serve(pooling="last").post("/v1/embeddings", json=body).status_code == 400


def test_embeddings_beside_texts(serve: Serve) -> None:
    client = serve(pooling="last", endpoint_metrics=True)
    alone = client.post("/completion", json={"prompt": "abc", "n_predict": 5}).json()["content"]
    client.post("/v1/embeddings", json={"input": ["abcdef"]})
    assert (
        client.post("/completion", json={"prompt": "abc", "n_predict": 5}).json()["content"]
        == alone
    )
    assert serve().post("/v1/embeddings", json={"input": "a"}).status_code == 501


def test_reranking(serve: Serve) -> None:
    client = serve(pooling="last", reranking=True)
    documents = ["a cat", "a dog", "no"]
    ask = {"query": "cat?", "documents": documents}
    found = client.post("/v1/rerank", json=ask).json()
    scores = [one["relevance_score"] for one in found["results"]]
    assert scores == sorted(scores, reverse=True) and found["usage"]["total_tokens"] > 3
    assert len(client.post("/rerank", json={**ask, "top_n": 2}).json()["results"]) == 2
    tei = {"query": "cat?", "texts": documents, "return_text": True}
    for one in client.post("/rerank", json=tei).json():
        assert one["text"] == documents[one["index"]] and one["score"] in scores
    assert client.post("/rerank", json={**ask, "documents": ["a"] * 2049}).status_code == 400
    for wrong in ({"documents": []}, {"documents": 3}, {"documents": "a"}, {"documents": [1]}):
        assert client.post("/rerank", json={"query": "a", **wrong}).status_code == 400
    assert client.post("/rerank", json={"documents": ["a"]}).status_code == 400
    assert serve(pooling="last").post("/rerank", json=ask).status_code == 501
