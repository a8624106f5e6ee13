"""Anthropic's, Ollama's and OpenAI's responses APIs: the chat API in other words."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from starlette.testclient import TestClient

from pyllama.server.fields import Fields
from pyllama.server.infill import infill_prompt
from pyllama.tokenizer import Tokenizer

from .conftest import PNG, Serve, events
from .test_chat import TOOL

ASK = [{"role": "user", "content": "Hi"}]
SAME = {"temperature": 1.0}
FUNCTION = TOOL["function"]


@pytest.fixture
def reply(client: TestClient) -> str:
    body = {"messages": ASK, "max_tokens": 10, **SAME}
    found = client.post("/v1/chat/completions", json=body).json()
    content: str = found["choices"][0]["message"]["content"]
    return content


def test_anthropic(client: TestClient, reply: str) -> None:
    body = {"messages": ASK, "max_tokens": 10, **SAME}
    found = client.post("/v1/messages", json=body).json()
    assert found["content"] == [{"type": "text", "text": reply}]
    assert found["stop_reason"] == "max_tokens" and found["usage"]["output_tokens"] == 10

    chunks = events(client.post("/v1/messages", json={**body, "stream": True}).text)
    kinds = [c["type"] for c in chunks]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    text = "".join(c["delta"]["text"] for c in chunks if c["type"] == "content_block_delta")
    assert text == reply
    count = client.post("/v1/messages/count_tokens", json=body).json()["input_tokens"]
    usage = found["usage"]
    assert count == usage["input_tokens"] + usage["cache_read_input_tokens"]


def test_anthropic_calls(client: TestClient) -> None:
    tool = {"name": "weather", "input_schema": FUNCTION["parameters"]}
    body = {"messages": ASK, "max_tokens": 300, "tools": [tool], "tool_choice": {"type": "any"}}
    found = client.post("/v1/messages", json=body).json()
    (block,) = found["content"]
    assert found["stop_reason"] == "tool_use" and block["type"] == "tool_use"
    assert block["input"]["city"] in ("Rome", "Oslo")
    chunks = events(client.post("/v1/messages", json={**body, "stream": True}).text)
    parts = [c["delta"]["partial_json"] for c in chunks if c["type"] == "content_block_delta"]
    assert json.loads("".join(parts)) == block["input"]


def test_anthropic_images_are_refused(client: TestClient) -> None:
    """With llama-server's status, also in a tool's result; what is no image is a mistake."""
    for data, status in ((PNG, 500), ("AAAA", 400), (5, 400)):
        source = {"type": "base64", "media_type": "image/png", "data": data}
        image = {"type": "image", "source": source}
        text = {"type": "text", "text": "a"}
        result = {"type": "tool_result", "tool_use_id": "1", "content": [text, image]}
        for block in (image, result):
            messages = [{"role": "user", "content": [block]}]
            response = client.post("/v1/messages", json={"messages": messages, "max_tokens": 1})
            assert response.status_code == status
            assert "image input is not supported" in response.json()["error"]["message"]


def test_anthropic_history(serve: Serve) -> None:
    client = serve(chat_template="chatml")
    messages = [
        *ASK,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm"},
                {"type": "text", "text": "Let me look."},
                {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Rome"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "sunny"},
                {"type": "text", "text": "Thanks"},
            ],
        },
    ]
    body = {"messages": messages, "max_tokens": 4, "system": [{"type": "text", "text": "Be."}]}
    assert client.post("/v1/messages", json=body).status_code == 200
    for wrong in ({}, {"messages": [{"role": "user", "content": [3]}]}, {"messages": [3]}):
        assert client.post("/v1/messages", json=wrong).status_code == 400


def test_responses(client: TestClient, reply: str) -> None:
    body = {"input": "Hi", "max_output_tokens": 10, **SAME}
    found = client.post("/v1/responses", json=body).json()
    assert found["output"][0]["content"][0]["text"] == reply and found["status"] == "completed"
    chunks = events(client.post("/v1/responses", json={**body, "stream": True}).text)
    assert [c["sequence_number"] for c in chunks] == list(range(len(chunks)))
    assert chunks[0]["type"] == "response.created" and chunks[-1]["type"] == "response.completed"
    deltas = [c["delta"] for c in chunks if c["type"] == "response.output_text.delta"]
    assert "".join(deltas) == reply
    last = chunks[-1]["response"]["output"][0]
    assert last["content"][0]["text"] == reply
    assert {c["item_id"] for c in chunks if "item_id" in c} == {last["id"]}


def test_responses_calls(client: TestClient) -> None:
    body = {
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}],
        "max_output_tokens": 300,
        "tools": [{"type": "function", **FUNCTION}],
        "tool_choice": "required",
    }
    found = client.post("/v1/responses", json=body).json()
    (call,) = found["output"]
    assert call["type"] == "function_call" and json.loads(call["arguments"])
    history = [
        *body["input"],
        {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "sunny"},
    ]
    body = {"input": history, "max_output_tokens": 4}
    assert client.post("/v1/responses", json=body).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"input": 3},
        {"input": [3]},
        {"input": [{"type": "sound"}]},
        {"input": [{"role": "user", "content": [{"type": "input_file"}]}]},
        {"input": "a", "previous_response_id": "x"},
        {"input": "a", "tools": 3},
    ],
)
def test_wrong_responses(client: TestClient, body: dict[str, Any]) -> None:
    assert client.post("/v1/responses", json=body).status_code == 400


def test_ollama(client: TestClient, reply: str) -> None:
    options = {"num_predict": 10, "temperature": 1.0}
    body = {"model": "x", "messages": ASK, "options": options}
    found = client.post("/api/chat", json={**body, "stream": False}).json()
    assert found["message"]["content"] == reply and found["done_reason"] == "length"
    lines = [json.loads(line) for line in client.post("/api/chat", json=body).text.splitlines()]
    assert "".join(line["message"]["content"] for line in lines) == reply
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]

    body = {"prompt": "Hi", "options": options}
    lines = [json.loads(line) for line in client.post("/api/generate", json=body).text.splitlines()]
    assert "".join(line["response"] for line in lines) == reply
    raw = client.post("/api/generate", json={**body, "raw": True, "stream": False}).json()
    plain = {"prompt": "Hi", "n_predict": 10, "temperature": 1.0}
    assert raw["response"] == client.post("/completion", json=plain).json()["content"]

    (model,) = client.get("/api/tags").json()["models"]
    assert client.post("/api/show", json={"model": model["name"]}).json()["details"]
    assert client.post("/api/generate", json={"model": "x"}).json()["done_reason"] == "load"


def test_ollama_calls_and_formats(client: TestClient) -> None:
    body = {"messages": ASK, "stream": False, "options": {"num_predict": 40}}
    found = client.post("/api/chat", json={**body, "format": {"const": [1]}}).json()
    assert json.loads(found["message"]["content"]) == [1]
    history = [
        *ASK,
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Rome"}}}],
        },
        {"role": "tool", "tool_name": "weather", "content": "sunny"},
    ]
    assert client.post("/api/chat", json={**body, "messages": history}).status_code == 200
    for wrong in ({"format": 3}, {"messages": [3]}, {"options": 3}, {"options": {"top_k": "a"}}):
        assert client.post("/api/chat", json={**body, **wrong}).status_code == 400


def test_infill_needs_its_tokens(client: TestClient) -> None:
    response = client.post("/infill", json={"input_prefix": "a", "input_suffix": "b"})
    assert response.status_code == 501
    assert "prefix token is missing" in response.json()["error"]["message"]


def test_infill_prompts(serve: Serve) -> None:
    client = serve(n_ctx=4096)
    served = client.served  # type: ignore[attr-defined]
    names = ("fim_rep", "fim_sep", "fim_pre", "fim_suf", "fim_mid")
    rep, sep, pre, suf, mid = special = range(3, 8)  # bytes 0 to 4
    vocab = served.tokenizer.vocab
    roles = {**vocab.roles, **dict(zip(names, special, strict=True))}
    served.tokenizer = Tokenizer(replace(vocab, roles=roles))
    body = {
        "input_prefix": "one",
        "input_suffix": "two",
        "prompt": "three",
        "input_extra": [{"filename": "f", "text": "four"}],
    }
    tokens = infill_prompt(served, Fields(body), 4)
    assert [t for t in tokens if t in special] == [rep, sep, sep, pre, suf, mid]

    def encode(text: str) -> list[int]:
        ids: list[int] = served.tokenizer.encode(text, add_special=False)
        return ids

    bos = [served.tokenizer.bos] if served.tokenizer.add_bos else []
    extra = [rep, *encode("myproject\n"), sep, *encode("f\n"), *encode("four"), sep]
    text = [pre, *encode("one"), *encode("three"), suf, *encode("two"), mid]
    assert tokens == [*extra, *encode("filename\n"), *bos, *text]
    assert client.post("/infill", json={**body, "n_predict": 2}).status_code == 200
    for wrong in ({"input_extra": [{}]}, {"input_prefix": None}, {"prompt": 3}):
        assert client.post("/infill", json={**body, **wrong}).status_code == 400
