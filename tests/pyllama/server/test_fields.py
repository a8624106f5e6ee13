"""A field of a request changes something, is refused, or is named in ``X-Ignored-Fields``.

The lists have all fields of the four APIs: what is added to one belongs here, and
`test_every_field_of_the_table_is_tried` tells what is missing of the table of parameters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields as dataclass_fields
from typing import Any

import pytest
from starlette.testclient import TestClient

from pyllama.parameters import rows
from pyllama.parameters.generation import RequestParams, names_in
from pyllama.parameters.sampling import SamplingParams
from pyllama.server.request.errors import ApiError
from pyllama.server.request.fields import Body, Fields
from pyllama.server.worker.served import ServedModel

from ...tiers import some
from .conftest import PNG, Serve
from .test_chat import TOOL

ASK = [{"role": "user", "content": "Hi"}]
THINKING = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}{{ reasoning_effort }}"
    "{% if add_generation_prompt %}<|assistant|>{% if enable_thinking %}<think>{% endif %}"
    "{% endif %}{# </think> #}"
)
SAMPLING: dict[str, Any] = {
    "temperature": 0.5, "dynatemp_range": 0.1, "dynatemp_exponent": 2, "top_k": 3, "top_p": 0.5,
    "min_p": 0.5, "top_n_sigma": 1, "xtc_probability": 0.5, "xtc_threshold": 0.2, "typical_p": 0.5,
    "repeat_last_n": 3, "repeat_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 0.5,
    "dry_multiplier": 0.5, "dry_base": 2, "dry_allowed_length": 3, "dry_penalty_last_n": 3,
    "dry_sequence_breakers": ["x"], "mirostat": 1, "mirostat_tau": 3, "mirostat_eta": 0.2,
    "adaptive_target": 0.5, "adaptive_decay": 0.5, "min_keep": 2, "seed": 5, "samplers": ["top_k"],
    "logit_bias": [[5, 1.0]], "ignore_eos": True,
}  # fmt: skip
LLAMA_CPP: dict[str, Any] = {
    **SAMPLING, "stop": ["x"], "n_predict": 3, "n_keep": 1, "n_discard": 1, "n_indent": 1,
    "n_cmpl": 2, "n_probs": 2, "post_sampling_probs": True, "stream": True, "cache_prompt": False,
    "id_slot": 0, "t_max_predict_ms": 9, "sse_ping_interval": 9, "timings_per_token": True,
    "return_progress": True, "verbose": True, "grammar": 'root ::= "a"',
    "json_schema": {"const": 1}, "lora": [{"id": 0, "scale": 1}], "n_cache_reuse": 9,
    "backend_sampling": True, "preserved_tokens": ["a"], "grammar_triggers": [{"type": 1}],
    "parse_tool_calls": True, "chat_format": 1, "chat_parser": "x", "generation_prompt": "x",
    "reasoning_format": "none", "reasoning_control": True,
}  # fmt: skip
OWN: dict[str, Any] = {"return_tokens": True, "response_fields": ["content"]}
OPENAI: dict[str, Any] = {
    "n": 2, "max_completion_tokens": 3, "max_tokens": 3, "stream_options": {"include_usage": True},
    "user": "me", "metadata": {"a": "b"}, "store": True, "service_tier": "auto",
    "safety_identifier": "x", "prompt_cache_key": "x", "prompt_cache_retention": "24h",
}  # fmt: skip
CHAT: dict[str, Any] = {
    **OPENAI, "logprobs": True, "top_logprobs": 2, "tools": [TOOL], "tool_choice": "required",
    "parallel_tool_calls": True, "response_format": {"type": "json_object"},
    "reasoning_effort": "low", "functions": [TOOL["function"]], "function_call": "auto",
    "modalities": ["text", "audio"], "audio": {"voice": "x"}, "prediction": {"content": "x"},
    "verbosity": "low", "web_search_options": {}, "chat_template_kwargs": {"reasoning_effort": "x"},
    "add_generation_prompt": False, "continue_final_message": True,
    "reasoning_budget_tokens": 3, "thinking_budget_tokens": 3, "reasoning_budget_message": "x",
}  # fmt: skip
ANTHROPIC: dict[str, Any] = {
    "max_tokens": 3, "system": "Be brief.", "temperature": 0.5, "top_p": 0.5, "top_k": 3,
    "stop_sequences": ["x"], "stream": True, "tool_choice": {"type": "any"},
    "tools": [{"name": "weather", "input_schema": TOOL["function"]["parameters"]}],
    "thinking": {"type": "enabled", "budget_tokens": 3}, "metadata": {"user_id": "x"},
    "service_tier": "auto", "container": "x", "mcp_servers": [{}], "context_management": {},
    "output_config": {"effort": "low"}, "cache_control": {"type": "ephemeral"}, "seed": 5,
    "inference_geo": "eu",
}  # fmt: skip
RESPONSES: dict[str, Any] = {
    "instructions": "Be brief.", "max_output_tokens": 3, "temperature": 0.5, "top_p": 0.5,
    "stream": True, "tools": [{"type": "function", **TOOL["function"]}], "tool_choice": "required",
    "parallel_tool_calls": True, "metadata": {"a": "b"}, "reasoning": {"effort": "low"},
    "text": {"format": {"type": "json_object"}}, "background": True, "conversation": "x",
    "previous_response_id": "x", "prompt": {"id": "x"}, "include": ["x"], "max_tool_calls": 2,
    "store": True, "truncation": "auto", "top_logprobs": 2, "user": "x", "service_tier": "auto",
    "safety_identifier": "x", "prompt_cache_key": "x", "n": 2, "logprobs": True,
    "stream_options": {"include_obfuscation": True}, "seed": 5, "top_k": 3,
}  # fmt: skip
OLLAMA: dict[str, Any] = {
    "stream": True, "format": {"const": 1}, "think": True, "keep_alive": 0, "truncate": True,
    "shift": True, "_debug_render_only": True, "logprobs": True, "top_logprobs": 2,
}  # fmt: skip
OLLAMA_OPTIONS: dict[str, Any] = {
    "num_predict": 3, "num_keep": 1, "seed": 5, "temperature": 0.5, "top_k": 3, "top_p": 0.5,
    "min_p": 0.5, "typical_p": 0.5, "repeat_last_n": 3, "repeat_penalty": 1.5,
    "presence_penalty": 0.5, "frequency_penalty": 0.5, "mirostat": 1, "mirostat_tau": 3,
    "mirostat_eta": 0.2, "stop": ["x"], "num_ctx": 99, "num_batch": 9, "num_gpu": 1, "main_gpu": 1,
    "use_mmap": True, "num_thread": 9, "draft_num_predict": 3, "penalize_newline": True,
    "tfs_z": 0.5, "numa": True, "low_vram": True,
}  # fmt: skip
GENERATE: dict[str, Any] = {
    **OLLAMA, "suffix": "x", "system": "Be brief.", "template": "{{ .Prompt }}", "raw": True,
    "context": [1], "images": [PNG],
}  # fmt: skip
APIS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "/completion": ({"prompt": "Hi", "n_predict": 2}, LLAMA_CPP | OWN),
    "/v1/completions": (
        {"prompt": "Hi", "n_predict": 2},
        {k: v for k, v in (LLAMA_CPP | OWN | OPENAI).items() if not k.startswith("max_")}
        | {"echo": True, "suffix": "x", "best_of": 2, "logprobs": 2},
    ),
    "/v1/chat/completions": (
        {"messages": ASK, "n_predict": 2},
        {k: v for k, v in (LLAMA_CPP | OWN | CHAT).items() if not k.startswith("max_")},
    ),
    "/v1/responses": ({"input": "Hi", "max_output_tokens": 2}, RESPONSES),
    "/v1/messages": ({"messages": ASK, "max_tokens": 2}, ANTHROPIC),
    "/api/chat": (
        {"messages": ASK, "stream": False, "options": {"num_predict": 2}},
        OLLAMA | {"tools": [TOOL]},
    ),
    "/api/generate": ({"prompt": "Hi", "stream": False, "options": {"num_predict": 2}}, GENERATE),
    "/v1/embeddings": (
        {"input": "Hi"},
        {"dimensions": 8, "encoding_format": "base64", "user": "x", "embd_normalize": -1},
    ),
    "/embeddings": ({"content": "Hi"}, {"embd_normalize": -1, "dimensions": 8, "input": "Ho"}),
    "/tokenize": (
        {"content": "Hi<s>"},
        {"add_special": True, "parse_special": False, "with_pieces": True},
    ),
    "/detokenize": ({"tokens": [5]}, {}),
    "/apply-template": ({"messages": ASK}, {"tools": [TOOL], "reasoning_effort": "low"}),
    "/api/show": ({}, {"verbose": True, "template": "x"}),
}
WITH_TOOLS = {"tool_choice", "parallel_tool_calls"}  # these mean nothing without tools
VOLATILE = {
    "id", "created", "created_at", "completed_at", "timings", "usage", "id_slot", "tokens_cached",
    "modified_at",
}  # fmt: skip


def test_every_field_of_the_table_is_tried() -> None:
    tables = (SamplingParams, RequestParams)
    faces = [row.json for table in tables for row in rows(table).values() if row.json]
    assert {name for face in faces for name in face.names} <= {*LLAMA_CPP, *OWN, *CHAT}
    lists = {"anthropic": ANTHROPIC, "ollama": OLLAMA | OLLAMA_OPTIONS, "responses": RESPONSES}
    for api, tried in lists.items():
        assert names_in(api).keys() <= tried.keys(), api


class Probe:
    """What a server does with a body: its answer, and what was submitted to the engine."""

    def __init__(self, client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
        self._client, self._submitted = client, list[Any]()
        submit = ServedModel.submit

        def recorded(served: ServedModel, prompts: Any, options: Any) -> Any:
            grammar = None if options.grammar is None else options.grammar.text
            params = {
                f.name: getattr(options.params, f.name) for f in dataclass_fields(options.params)
            }
            params["logit_bias"] = dict(params["logit_bias"])
            self._submitted.append(
                (prompts, {**vars(options), "grammar": grammar, "params": params})
            )
            return submit(served, prompts, options)

        monkeypatch.setattr(ServedModel, "submit", recorded)

    def send(self, path: str, body: Any) -> tuple[int, list[str], Any]:
        """The status, the ignored fields, and all that a field might change."""
        self._submitted.clear()
        response = self._client.post(path, json=body)
        ignored = response.headers.get("X-Ignored-Fields", "")
        is_json = response.headers["content-type"].startswith("application/json")
        answer = stable(json.loads(response.text)) if is_json else None
        return response.status_code, ignored.split(", "), (answer, [*self._submitted])


def stable(value: Any) -> Any:
    """A value without what differs from request to request."""
    if isinstance(value, Mapping):
        return {k: stable(v) for k, v in value.items() if k not in VOLATILE}
    return [stable(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize("path", some(APIS, 6))
def test_no_field_is_ignored_in_silence(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    base, fields = APIS[path]
    client = serve(chat_template=THINKING, pooling="mean", context_shift=True)
    probe = Probe(client, monkeypatch)
    tools = {"tools": fields["tools"]} if "tools" in fields else {}
    for name, value in {**fields, "no_such_field": 1, "model": "x"}.items():
        before = base | (tools if name in WITH_TOOLS else {})
        status, told, plain = probe.send(path, before)
        assert status == 200, (name, plain)
        assert name not in told
        status, told, changed = probe.send(path, before | {name: value})
        assert status in (200, 400, 500, 501), (name, changed)
        if status == 200 and not any(one.partition(".")[0] == name for one in told):
            assert changed != plain, name


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_no_option_of_ollamas_is_ignored_in_silence(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    probe = Probe(serve(context_shift=True), monkeypatch)
    ask = {"stream": False, "messages": ASK} if path == "/api/chat" else {"prompt": "Hi"}
    base = {"stream": False, "options": {"temperature": 0.9}, **ask}
    _, told, plain = probe.send(path, base)
    assert told == [""]
    for name, value in OLLAMA_OPTIONS.items():
        options = {"temperature": 0.9, "num_predict": 2, name: value}
        before = {"temperature": 0.9, "num_predict": 2} if name != "num_predict" else {}
        _, _, plain = probe.send(path, {**base, "options": before})
        status, told, changed = probe.send(path, {**base, "options": options})
        assert status == 200
        assert f"options.{name}" in told or changed != plain, name
    for name in ("num_ctx", "num_gpu", "tfs_z"):
        assert probe.send(path, {**base, "options": {name: 7}})[1] == [f"options.{name}"]
    assert probe.send(path, {**base, "options": {"num_ctx": 512}})[1] == ["options.num_ctx"]
    assert probe.send(path, {**base, "options": {"num_ctx": 1024}})[1] == [""]  # that of the server


def test_the_models_own_name_is_not_ignored(serve: Serve) -> None:
    client = serve(aliases=("tiny", "small"))
    body = {"prompt": "a", "n_predict": 1}
    for name, told in (("tiny", ""), ("small", ""), ("tiny:latest", ""), ("gpt-4", "model")):
        response = client.post("/completion", json={**body, "model": name})
        assert response.headers.get("X-Ignored-Fields", "") == told


def test_streams_tell_what_they_ignore_too(client: TestClient) -> None:
    body = {"messages": ASK, "max_tokens": 2, "stream": True, "user": "x", "\u20ac, x\n": 1}
    response = client.post("/v1/chat/completions", json=body)
    assert response.headers["X-Ignored-Fields"] == "user, %E2%82%AC, x%5Cn"
    many = {f"field {'x' * 99}{i}": i for i in range(50)}
    response = client.post("/tokenize", json=many | {"content": "a"})
    assert len(response.headers["X-Ignored-Fields"]) < 2000


def test_parts_that_are_left_out_are_told(client: TestClient) -> None:
    def told(path: str, **body: Any) -> str:
        response = client.post(path, json=body)
        assert response.status_code == 200, response.text
        return response.headers.get("X-Ignored-Fields", "")

    ask = {"messages": ASK, "max_tokens": 1}
    own = {"type": "web_search_20250305", "name": "web_search"}
    assert told("/v1/messages", **ask, tools=[own]) == "tools[0] (web_search_20250305)"
    assert told("/v1/responses", input="a", max_output_tokens=1, tools=[own]) == "tools[0]"
    text = {"prompt": "a", "n_predict": 1}
    assert told("/completion", **text, dry_base=0.5) == "dry_base"
    ids = {"50256": -100, "5": 1}
    assert told("/completion", **text, logit_bias=ids) == "logit_bias of unknown tokens"
    assert told("/completion", **text, logit_bias={"5": 1}) == ""


def test_what_the_template_does_not_know_is_told(serve: Serve) -> None:
    kept = {"effort": "low", "summary": "auto"}
    asks: dict[str, tuple[dict[str, Any], str]] = {
        "/v1/chat/completions": (
            {
                "messages": ASK,
                "reasoning_effort": "low",
                "reasoning_budget_tokens": 5,
                "tool_choice": "required",
                "parallel_tool_calls": True,
                "chat_template_kwargs": {"colour": "red"},
            },
            "reasoning_effort, chat_template_kwargs.colour, reasoning_budget_tokens, tool_choice, "
            "parallel_tool_calls",
        ),
        "/v1/responses": ({"input": "a", "reasoning": kept}, "reasoning.summary, reasoning.effort"),
        "/v1/messages": ({"messages": ASK, "thinking": {"type": "enabled"}}, "thinking"),
        "/api/chat": ({"messages": ASK, "think": True}, "think"),
        "/api/generate": ({"prompt": "a", "think": "high"}, "think"),
    }
    plain, thinking = serve(chat_template="chatml"), serve(chat_template=THINKING)
    for path, (body, told) in asks.items():
        body |= {"max_tokens": 1} if "messages" in body else {"max_output_tokens": 1}
        body |= {"options": {"num_predict": 1}} if path.startswith("/api") else {}
        found = plain.post(path, json=body).headers["X-Ignored-Fields"]
        wanted = {*told.split(", ")}
        assert {*found.split(", ")} - {"max_tokens", "max_output_tokens"} == wanted
        found = thinking.post(path, json=body).headers.get("X-Ignored-Fields", "")
        assert not {*found.split(", ")} & (wanted - {
            "reasoning.summary", "tool_choice", "parallel_tool_calls", "chat_template_kwargs.colour"
        })  # fmt: skip


@pytest.mark.parametrize(
    "body",
    [
        {"samplers": "kzt"},
        {"samplers": "K"},
        {"logit_bias": [[1, 2, 3]]},
        {"logit_bias": [["a", "b"]]},
        {"logit_bias": [[None, 1]]},
        {"logit_bias": {"5": True}},
        {"seed": "x"},
        {"seed": True},
    ],
)
def test_what_cannot_be_used_is_refused(client: TestClient, body: dict[str, Any]) -> None:
    response = client.post("/completion", json={"prompt": "a", "n_predict": 1, **body})
    assert response.status_code == 400 and next(iter(body)) in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("seed", "used"),
    some([
        (0, 0), (2**32 - 2, 2**32 - 2), (2**32, 0), (2**63 - 1, 2**32 - 1), (2**64 + 7, 7),
        (-1, 2**32 - 1), (-2, 2**32 - 2), (-(2**63), 0), (7.0, 7), (1e18, 10**18 % 2**32),
    ], 4),
)  # fmt: skip
def test_seeds_of_any_size_in_all_apis(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, seed: float, used: int
) -> None:
    """As llama.cpp, which converts 64 bits to 32 without a sign; all ones mean a random one."""
    probe = Probe(client, monkeypatch)
    for path, (base, _) in APIS.items():
        if path.startswith(("/completion", "/v1/c", "/v1/r", "/v1/m", "/api/c", "/api/g")):
            options = {"options": {"num_predict": 1, "seed": seed}}
            more = options if path.startswith("/api") else {"seed": seed}
            status, _, (_, submitted) = probe.send(path, base | more)
            assert status == 200
            assert submitted[0][1]["params"]["seed"] == used


def test_a_body_knows_what_was_read() -> None:
    body = Body({"a": 1, "b": None, "c": {"d": 1, "e": 2}, "f": {"g": 1}, "h": 1})
    fields = Fields(body)
    assert fields.whole("a", 0) == 1 and fields.inner("c").whole("d", 0) == 1
    assert body.ignored == ["f", "h", "c.e"]
    above = Fields(Body({"a": 2, "h": None}, body))
    assert above.whole("a", 0) == 2 and not above.has("h") and above.inner("f").has("g")
    assert body.ignored == ["h", "c.e"]
    above.leave_out("a[0]")
    assert body.ignored == ["h", "c.e", "a[0]"]
    assert set(above.body) == {*"abcfh"} and len(above.body) == 5
    with pytest.raises(ApiError, match=r"f\.g"):
        fields.inner("f").flag("g")
