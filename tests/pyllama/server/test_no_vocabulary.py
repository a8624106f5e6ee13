"""A server of a model without a vocabulary takes token ids, and refuses text with a 400."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from pyllama import Model
from pyllama.server.app import make_app

from ..models import Spec, random_weights, write_model
from .conftest import make_served

SPEC = Spec()


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    keys = {
        "tokenizer.ggml.model": "none", "tokenizer.ggml.tokens": None,
        "llama.vocab_size": SPEC.n_vocab,
    }  # fmt: skip
    path = tmp_path_factory.mktemp("none") / "x.gguf"
    model = Model.load(write_model(path, SPEC, random_weights(SPEC), metadata=keys))
    with TestClient(make_app(make_served(model)), base_url="http://localhost") as client:
        yield client


def test_token_ids(client: TestClient) -> None:
    body = {"prompt": [5, 9, 200], "n_predict": 4, "return_tokens": True}
    found = client.post("/completion", json=body).json()
    assert len(found["tokens"]) == found["tokens_predicted"] == 4 and found["content"] == ""
    body = {"prompt": [5, 9, 200], "max_tokens": 4}
    assert client.post("/v1/completions", json=body).json()["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/completion", {"prompt": "text"}),
        ("/completion", {"prompt": [5, "text"]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "text"}]}),
        ("/tokenize", {"content": "text"}),
    ],
)
def test_text(client: TestClient, path: str, body: dict[str, Any]) -> None:
    response = client.post(path, json=body)
    assert response.status_code == 400
    assert "it takes token ids, not text" in response.json()["error"]["message"]


def test_descriptions(client: TestClient) -> None:
    for path in ("/health", "/props", "/v1/models", "/slots", "/metrics"):
        assert client.get(path).status_code in (200, 501), path
    assert client.post("/detokenize", json={"tokens": [5, 9]}).json() == {"content": ""}
