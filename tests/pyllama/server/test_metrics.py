"""``/metrics``, ``/props`` and ``/models``."""

from __future__ import annotations

from typing import Any

import pytest

from pyllama.server.worker import description
from pyllama.tokenizer import vocab

from .conftest import Serve, events
from .test_chat import TOOL

TEMPLATE = (  # of the family of Hermes
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}{% if tools %}"
    "{{ tools | tojson }}<tool_call>{{ '{\"name\": 1}' }}</tool_call>{% endif %}"
)
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
    assert props["total_slots"] == 2 and props["model_path"] == "y.gguf"
    assert props["default_generation_settings"]["n_ctx"] == 512
    assert props["default_generation_settings"]["params"]["seed"] == 1
    (model,) = client.get("/v1/models").json()["data"]
    assert model["id"] == "a" and model["aliases"] == ["a", "b"] and model["tags"] == ["t"]
    assert client.post("/props", json={}).status_code == 501
    assert client.get("/lora-adapters").json() == []


def test_facts_are_those_of_the_model_and_the_request(serve: Serve) -> None:
    assert description._VOCAB_TYPES.keys() == vocab._MODELS.keys()
    client = serve(drafters=("draft-simple", "ngram-mod"), chat_template=TEMPLATE)
    (model,) = client.get("/v1/models").json()["data"]
    assert model["meta"]["vocab_type"] == 1  # SentencePiece's
    params = client.get("/props").json()["default_generation_settings"]["params"]
    assert params["speculative.types"] == "draft-simple,ngram-mod"
    plain = serve().post("/completion", json=ASK).json()["generation_settings"]
    assert plain["speculative.types"] == "none"

    def settings(**more: Any) -> Any:
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "verbose": True}
        response = client.post("/v1/chat/completions", json=body | more)
        assert response.status_code == 200, response.text
        return response.json()["__verbose"]["generation_settings"]

    assert settings()["chat_format"] == "Content-only"
    assert settings(tools=[TOOL])["chat_format"] == "hermes"
    assert settings(tools=[TOOL], tool_choice="none")["chat_format"] == "Content-only"
    assert not settings(reasoning_format="deepseek-legacy")["reasoning_in_content"]


def test_tokens_of_the_reasoning(serve: Serve) -> None:
    """As many as the text of the reasoning has, streamed or not."""
    client = serve(chat_template="{% if messages %}<think>{% endif %}{# </think> #}")
    body = {"input": "Hi", "max_output_tokens": 9, "temperature": 0}
    usage = client.post("/v1/responses", json=body).json()["usage"]
    assert 0 < usage["output_tokens_details"]["reasoning_tokens"] <= 9
    chunks = events(client.post("/v1/responses", json={**body, "stream": True}).text)
    usage = chunks[-1]["response"]["usage"]
    assert 0 < usage["output_tokens_details"]["reasoning_tokens"] <= usage["output_tokens"]
    plain = serve().post("/v1/responses", json=body).json()["usage"]
    assert plain["output_tokens_details"]["reasoning_tokens"] == 0


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
