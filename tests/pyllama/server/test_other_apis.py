"""Anthropic's, Ollama's and OpenAI's responses APIs: the chat API in other words."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from starlette.testclient import TestClient

from pyllama.server.apis.llama_cpp.infill import infill_prompt
from pyllama.server.request.fields import Fields
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
            found = response.json()
            assert found["type"] == "error"
            assert "image input is not supported" in found["error"]["message"]


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


@pytest.mark.parametrize(
    "body",
    [
        {"messages": "Hi"},
        {"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]},
        {"system": 3},
        {"system": [{"type": "image"}]},
        {"tools": {}},
        {"tool_choice": "any"},
        {"tool_choice": {"type": "every"}},
        {"max_tokens": "many"},
        {"thinking": {"type": "enabled", "budget_tokens": "x"}},
        {"thinking": "long"},
    ],
)
def test_wrong_messages(client: TestClient, body: dict[str, Any]) -> None:
    response = client.post("/v1/messages", json={"messages": ASK, "max_tokens": 1, **body})
    assert response.status_code == 400 and response.json()["type"] == "error"


def test_anthropic_without_thinking(serve: Serve) -> None:
    template = "{{ enable_thinking }}{# </think> #}"
    client = serve(chat_template=template)
    counts = {}
    for kind in ("enabled", "disabled", "adaptive"):
        body = {"messages": ASK, "thinking": {"type": kind, "budget_tokens": 5}}
        counts[kind] = client.post("/v1/messages/count_tokens", json=body).json()["input_tokens"]
    assert counts["disabled"] != counts["enabled"] == counts["adaptive"]  # "False" and "True"


def test_reasoning_that_comes_back(serve: Serve) -> None:
    """Codex sends it without content, with a summary or another server's encrypted text."""
    client = serve(chat_template="{% for m in messages %}[{{ m.reasoning_content }}]{% endfor %}")
    said = {"role": "user", "content": "Hi"}
    item = {"type": "reasoning", "summary": [], "id": "rs_1", "encrypted_content": "x"}
    content = [{"type": "reasoning_text", "text": "a"}, {"type": "reasoning_text", "text": "b"}]

    def size(*items: Any) -> tuple[int, str]:
        body = {"input": [said, *items, said]}
        response = client.post("/v1/responses/input_tokens", json=body)
        assert response.status_code == 200, response.text
        told = response.headers.get("X-Ignored-Fields", "")
        return response.json()["input_tokens"], told

    plain, _ = size()
    summary = [{"type": "summary_text", "text": "I thought"}]
    for given in ({}, {"content": None}, {"content": []}, {"summary": summary, "content": None}):
        assert size(item | given) == (plain, "input[1]")
    whole, told = size(item | {"content": content})
    assert whole > plain and not told
    for wrong in ({"content": 3}, {"content": [{"type": "input_image"}]}, {"content": [{}]}):
        body = {"input": [said, item | wrong]}
        assert client.post("/v1/responses/input_tokens", json=body).status_code == 400


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


def test_log_probabilities_of_ollamas_api(client: TestClient) -> None:
    options = {"num_predict": 3}
    for path, ask in (("/api/chat", {"messages": ASK}), ("/api/generate", {"prompt": "Hi"})):
        body = {**ask, "options": options, "logprobs": True}
        found = client.post(path, json={**body, "stream": False}).json()["logprobs"]
        assert len(found) == 3 and {*found[0]} == {"token", "logprob", "bytes"}
        body["top_logprobs"] = 2
        lines = [json.loads(line) for line in client.post(path, json=body).text.splitlines()]
        streamed = [one for line in lines for one in line.get("logprobs", ())]
        assert [one["token"] for one in streamed] == [one["token"] for one in found]
        assert [len(one["top_logprobs"]) for one in streamed] == [2, 2, 2]
    wrong = {**body, "top_logprobs": 21}
    assert client.post(path, json=wrong).status_code == 400


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/generate", {"prompt": "a", "template": "{{ .Prompt }}"}),
        ("/api/generate", {"prompt": "a", "context": [1, 2]}),
        ("/api/generate", {"prompt": "a", "images": ["AAAA"]}),
        ("/api/generate", {"prompt": "a", "raw": True, "system": "x"}),
        ("/api/generate", {"prompt": "a", "think": 3}),
        ("/api/chat", {"messages": [{"role": "user", "content": "a", "images": ["AAAA"]}]}),
        ("/api/chat", {"messages": [{"role": "user", "content": "a", "images": "AAAA"}]}),
    ],
)
def test_what_ollamas_api_refuses(client: TestClient, path: str, body: dict[str, Any]) -> None:
    response = client.post(path, json=body)
    assert response.status_code == 400 and isinstance(response.json()["error"], str)


def test_infill_needs_its_tokens(client: TestClient) -> None:
    response = client.post("/infill", json={"input_prefix": "a", "input_suffix": "b"})
    assert response.status_code == 501
    assert "prefix token is missing" in response.json()["error"]["message"]
    response = client.post("/api/generate", json={"prompt": "a", "suffix": "b"})
    assert response.status_code == 501 and "prefix token is missing" in response.json()["error"]
    assert "insert" not in client.post("/api/show", json={}).json()["capabilities"]


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
    assert "insert" in client.post("/api/show", json={}).json()["capabilities"]
    plain = {"input_prefix": "one", "input_suffix": "two", "n_predict": 4, "seed": 1}
    wanted = client.post("/infill", json=plain).json()["content"]
    ask = {"prompt": "one", "suffix": "two", "options": {"num_predict": 4, "seed": 1}}
    assert client.post("/api/generate", json={**ask, "stream": False}).json()["response"] == wanted
    for wrong in ({"input_extra": [{}]}, {"input_prefix": None}, {"prompt": 3}):
        assert client.post("/infill", json={**body, **wrong}).status_code == 400
