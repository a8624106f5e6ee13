"""``/metrics``, ``/props`` and ``/models``."""

from __future__ import annotations

import pytest

from .conftest import Serve

ASK = {"prompt": "Once upon a time", "n_predict": 6, "ignore_eos": True}


def numbers(text: str) -> dict[str, float]:
    pairs = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def test_counters_are_sums_of_the_timings(serve: Serve) -> None:
    pytest.importorskip("prometheus_client")
    client = serve(endpoint_metrics=True)
    timings = [client.post("/completion", json=ASK).json()["timings"] for _ in range(3)]
    response = client.get("/metrics")
    found = numbers(response.text)
    assert int(response.headers["process-start-time-unix"]) > 0
    for name, field in (
        ("llamacpp:prompt_tokens_total", "prompt_n"),
        ("llamacpp:prompt_tokens_cached_total", "cache_n"),
        ("llamacpp:tokens_predicted_total", "predicted_n"),
    ):
        assert found[name] == sum(t[field] for t in timings)
    assert found["llamacpp:requests_processing"] == found["llamacpp:requests_deferred"] == 0
    assert found["pyllama_time_to_first_token_seconds_count"] == 3
    assert numbers(client.get("/metrics").text)["llamacpp:predicted_tokens_seconds"] == 0
    assert serve().get("/metrics").status_code == 501


def test_properties(serve: Serve) -> None:
    client = serve(aliases=("b", "a"), tags=("t",), model_path="/x/y.gguf", unified=False)
    props = client.get("/props").json()
    assert props["total_slots"] == 2 and props["model_path"] == "/x/y.gguf"
    assert props["default_generation_settings"]["n_ctx"] == 512
    assert props["default_generation_settings"]["params"]["seed"] == 1
    (model,) = client.get("/v1/models").json()["data"]
    assert model["id"] == "a" and model["aliases"] == ["a", "b"] and model["tags"] == ["t"]
    assert client.post("/props", json={}).status_code == 501
    assert client.get("/lora-adapters").json() == []


def test_tokens(serve: Serve) -> None:
    client = serve()
    text = "What is this? é"
    tokens = client.post("/tokenize", json={"content": text}).json()["tokens"]
    again = client.post("/detokenize", json={"tokens": tokens}).json()["content"]
    assert again.replace("\u2581", " ").strip() == text  # this vocabulary writes spaces so
    pieces = client.post("/tokenize", json={"content": text, "with_pieces": True}).json()
    assert [p["id"] for p in pieces["tokens"]] == tokens
    assert client.post("/tokenize", json={}).json() == {"tokens": []}
    for wrong in ([-1], ["a"], [10**9], [True]):
        assert client.post("/detokenize", json={"tokens": wrong}).status_code == 400
