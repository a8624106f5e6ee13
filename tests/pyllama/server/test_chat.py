"""OpenAI's chat API."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import httpx2
import pytest
from starlette.testclient import TestClient

from pyllama import Model

from ...tiers import some
from .conftest import PNG, Serve, events, listening, make_served

ASK = [{"role": "user", "content": "Hi"}]
BASE = {"messages": ASK, "max_tokens": 10, "temperature": 1.0}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Rome", "Oslo"]}},
            "required": ["city"],
        },
    },
}


def post(client: TestClient, **fields: Any) -> Any:
    response = client.post("/v1/chat/completions", json={**BASE, **fields})
    assert response.status_code == 200, response.text
    return response.json()


def stream(client: TestClient, **fields: Any) -> list[dict[str, Any]]:
    response = client.post("/v1/chat/completions", json={**BASE, "stream": True, **fields})
    assert response.status_code == 200, response.text
    assert response.text.endswith("data: [DONE]\n\n")
    return events(response.text)


def test_a_reply(client: TestClient) -> None:
    found = post(client)
    choice = found["choices"][0]
    assert choice["message"]["role"] == "assistant" and choice["finish_reason"] == "length"
    assert found["usage"]["completion_tokens"] == 10 and found["object"] == "chat.completion"
    assert "__verbose" not in found
    assert "Hi" in post(client, verbose=True)["__verbose"]["prompt"]


def test_a_stream_is_the_whole_reply(client: TestClient) -> None:
    whole = post(client)["choices"][0]["message"]["content"]
    chunks = stream(client, stream_options={"include_usage": True})
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": None}
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 10
    assert "timings" in chunks[-1] and all("timings" not in c for c in chunks[:-1])
    deltas = [c["choices"][0]["delta"] for c in chunks[1:-1]]
    assert "".join(d.get("content", "") for d in deltas) == whole
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"


def test_several_replies(client: TestClient) -> None:
    found = post(client, n=2)
    assert [c["index"] for c in found["choices"]] == [0, 1]
    chunks = stream(client, n=2, stream_options={"include_usage": True})
    for choice in found["choices"]:
        mine = [
            c["choices"][0]["delta"].get("content") or ""
            for c in chunks
            if c["choices"] and c["choices"][0]["index"] == choice["index"]
        ]
        assert "".join(mine) == choice["message"]["content"]
    assert [c["choices"] for c in chunks].count([]) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object", "schema": {"enum": [[1], [2]]}}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"const": [1]}}}},
        {"json_schema": {"enum": [[1], [2]]}},
    ],
)
def test_structured_replies(client: TestClient, fields: dict[str, Any]) -> None:
    content = post(client, **fields, max_tokens=40)["choices"][0]["message"]["content"]
    assert json.loads(content) in ([1], [2])


def test_a_forced_call(client: TestClient) -> None:
    fields = {"tools": [TOOL], "tool_choice": "required", "max_tokens": 300}
    choice = post(client, **fields)["choices"][0]
    (call,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls" and call["function"]["name"] == "weather"
    assert json.loads(call["function"]["arguments"])["city"] in ("Rome", "Oslo")

    parts = [
        part
        for chunk in stream(client, **fields)
        for part in chunk["choices"][0]["delta"].get("tool_calls", ())
    ]
    assert parts[0]["function"]["name"] == "weather" and parts[0]["id"]
    assert "id" not in parts[-1] and len(parts) > 2  # arguments arrive in pieces
    text = "".join(part["function"]["arguments"] for part in parts)
    assert json.loads(text) == json.loads(call["function"]["arguments"])


def test_the_last_message_is_continued(serve: Serve) -> None:
    client = serve(chat_template="llama3")
    messages = [*ASK, {"role": "assistant", "content": "Well, I"}]
    prompt = client.post("/apply-template", json={"messages": messages}).json()["prompt"]
    assert prompt.endswith("<|end_header_id|>\n\nWell, I")
    given = {"continue_final_message": True, "add_generation_prompt": False}
    same = client.post("/apply-template", json={"messages": messages, **given})
    assert same.json()["prompt"] == prompt
    off = serve(chat_template="llama3", prefill_assistant=False)
    prompt = off.post("/apply-template", json={"messages": messages}).json()["prompt"]
    assert not prompt.endswith("Well, I")
    both = {"continue_final_message": True, "add_generation_prompt": True}
    response = client.post("/v1/chat/completions", json={"messages": messages, **both})
    assert response.status_code == 400


def test_settings_tell_the_generation_prompt(serve: Serve) -> None:
    client = serve(chat_template="llama3")
    begin = "<|start_header_id|>assistant<|end_header_id|>\n\n"
    prefilled = [*ASK, {"role": "assistant", "content": "Well, I"}]
    for messages, expected in (ASK, begin), (prefilled, begin + "Well, I"):
        settings = post(client, messages=messages, verbose=True)["__verbose"]["generation_settings"]
        assert settings["generation_prompt"] == expected


def test_reasoning_that_is_switched_off(serve: Serve) -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}<think>\n{# </think> #}"
    client = serve(chat_template=template)
    ask = {"messages": ASK, "chat_template_kwargs": {"enable_thinking": False}}
    assert client.post("/apply-template", json=ask).json()["prompt"].endswith("<think>\n</think>")
    assert client.post("/apply-template", json={"messages": ASK}).json()["prompt"] == "Hi<think>\n"


def test_reasoning_is_reported_apart(serve: Serve) -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}<think>{# </think> #}"
    client = serve(chat_template=template)
    grammar = {"grammar": 'root ::= "hm</think>so"', "max_tokens": 40}
    message = post(client, **grammar)["choices"][0]["message"]
    assert message["reasoning_content"] == "hm" and message["content"] == "so"
    deltas = [c["choices"][0]["delta"] for c in stream(client, **grammar)]
    assert "".join(d.get("reasoning_content", "") for d in deltas) == "hm"
    assert "".join(d.get("content") or "" for d in deltas) == "so"
    message = post(client, **grammar, reasoning_format="none")["choices"][0]["message"]
    assert message["content"] == "hm</think>so"


def test_reasoning_is_ended_while_it_runs(model: Model) -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}<think>{# </think> #}"
    served = make_served(model, n_ctx=4096, chat_template=template)
    base = {"messages": ASK, "stream": True, "ignore_eos": True, "max_tokens": 3000}
    with listening(served) as port, httpx2.Client(base_url=f"http://127.0.0.1:{port}") as client:

        def end(id: str) -> Any:
            body = {"id": id, "action": "reasoning_end"}
            return client.post("/v1/chat/completions/control", json=body).json()

        def run(**more: Any) -> tuple[Any, str, str]:
            """The reply to the control request, and the reasoning and content afterwards."""
            told, thought, content = None, "", ""
            with client.stream("POST", "/v1/chat/completions", json=base | more) as response:
                for line in response.iter_lines():
                    if not line.startswith("data: {"):
                        continue
                    chunk = json.loads(line.removeprefix("data: "))
                    delta = chunk["choices"][0]["delta"]
                    thought += delta.get("reasoning_content", "")
                    content += delta.get("content") or ""
                    told = told or (end(chunk["id"]) if thought else None)
                    if told and (content or not more):
                        break
            while end(chunk["id"]).get("message") != "no active completion for this id":
                pass  # until the text of a client that has gone is aborted
            return told, thought, content

        told, thought, content = run(reasoning_control=True)
        assert told == {"success": True} and thought and content
        told, thought, content = run()
        assert not told["success"] and "not enabled" in told["message"] and not content


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"action": "reasoning_end"}, "missing completion id"),
        ({"id": "x"}, "unknown control action"),
        ({"id": "x", "action": "stop"}, "unknown control action"),
    ],
)
def test_wrong_controls(client: TestClient, body: Any, message: str) -> None:
    found = client.post("/v1/chat/completions/control", json=body)
    assert (found.status_code, found.json()["error"]["message"]) == (400, message)


def test_log_probabilities(client: TestClient) -> None:
    found = post(client, logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
    assert len(found) == 10 and all(len(one["top_logprobs"]) == 2 for one in found)


def test_templates_know_the_date(serve: Serve) -> None:
    client = serve(chat_template="{{ date_string }}{# {% if messages %} #}")
    prompt = client.post("/apply-template", json={"messages": ASK}).json()["prompt"]
    assert datetime.strptime(prompt, "%d %b %Y").year > 2024


def test_sizes_of_prompts(client: TestClient) -> None:
    response = client.post("/v1/chat/completions/input_tokens", json={"messages": ASK})
    assert response.json()["input_tokens"] == post(client)["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    "fields",
    some(
        [
            {"messages": None},
            {"messages": "text"},
            {"messages": [1]},
            {"messages": [{}]},
            {"messages": [{"role": 1, "content": ""}]},
            {"messages": [{"role": "user"}]},
            {"messages": [{"role": "user", "content": 1}]},
            {"messages": [{"role": "user", "content": [{"type": []}]}]},
            {"messages": [*ASK, *[{"role": "assistant", "content": "a"}] * 2]},
            {"tools": "weather"},
            {"tools": [{"type": "function"}]},
            {"tools": [TOOL], "grammar": 'root ::= "a"'},
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "no"}}},
            {"response_format": {"type": "sound"}},
            {"response_format": {"type": "json_object", "schema": 1}},
            {"top_logprobs": 3},
            {"chat_template_kwargs": {"enable_thinking": "no"}},
            {"json_schema": {}, "grammar": 'root ::= "a"'},
            {"reasoning_format": "loud"},
        ],
        8,
    ),
)
def test_wrong_requests(client: TestClient, fields: dict[str, Any]) -> None:
    for extra in ({}, {"stream": True}):
        response = client.post("/v1/chat/completions", json={**BASE, **fields, **extra})
        assert response.status_code == 400, response.text
        assert response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("url", "status"),
    [
        (f"data:image/png;base64,{PNG}", 500),  # as llama-server's tests ask
        ("data:image/png;base64,AA==", 400),
        (f"data:image/png;base64,{'=' * 40}", 400),
        ("file:///etc/passwd", 400),
        (5, 400),
    ],
)
def test_images_are_refused(client: TestClient, url: Any, status: int) -> None:
    part = {"type": "image_url", "image_url": {"url": url}}
    messages = [{"role": "user", "content": [part]}]
    response = client.post("/v1/chat/completions", json={"messages": messages})
    assert response.status_code == status
    assert "image input is not supported" in response.json()["error"]["message"]
    asked = [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]
    assert client.post("/v1/responses", json={"input": asked}).status_code == status


def test_sounds_are_refused(client: TestClient) -> None:
    part = {"type": "input_audio", "input_audio": {"data": PNG, "format": "wav"}}
    messages = [{"role": "user", "content": [part]}]
    response = client.post("/v1/chat/completions", json={"messages": messages})
    assert response.status_code == 400
    assert "audio input is not supported" in response.json()["error"]["message"]


def test_templates_with_functions(serve: Serve) -> None:
    client = serve(chat_template="{% if messages %}functools[{{ functions + '.' }}{% endif %}")
    ask = {"messages": ASK}
    assert client.post("/apply-template", json=ask).json()["prompt"] == "functools[[]."


def test_a_named_template_is_that_of_llama_cpp(serve: Serve) -> None:
    """llama-cpp-python's texts of the same names drop the system message, or have one of theirs."""
    messages = [{"role": "system", "content": "Be brief."}, *ASK]
    for name, text in {
        "gemma": "<start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\n",
        "vicuna": "Be brief.\n\nUSER: Hi\nASSISTANT:",
    }.items():
        client = serve(chat_template=name)
        found = client.post("/apply-template", json={"messages": messages}).json()
        assert found["prompt"] == text
