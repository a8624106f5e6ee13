"""Malformed requests get a 4xx, or 501 for what is not supported, and the server goes on."""

from __future__ import annotations

import json
import random
import socket
from typing import Any

from starlette.testclient import TestClient

from pyllama import Model
from pyllama.server.app import ROUTES

from .conftest import listening, make_served

SEEDS: dict[str, dict[str, Any]] = {
    "/completion": {"prompt": "a", "n_predict": 1, "temperature": 0.5, "stop": ["x"], "n_probs": 1},
    "/v1/completions": {"prompt": ["a", [5]], "max_tokens": 1, "n": 1, "logit_bias": {"5": 1}},
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
        "max_tokens": 1,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
        "response_format": {"type": "json_schema", "json_schema": {"schema": {"const": 1}}},
        "stream_options": {"include_usage": True},
    },
    "/v1/messages": {
        "messages": [{"role": "user", "content": [{"type": "tool_result", "content": []}]}],
        "max_tokens": 1,
        "system": [{"type": "text", "text": "a"}],
        "tools": [{"name": "f", "input_schema": {}}],
        "thinking": {"type": "enabled", "budget_tokens": 3},
    },
    "/v1/responses": {
        "input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}],
        "max_output_tokens": 1,
        "tools": [{"type": "function", "name": "f", "parameters": {}}],
        "reasoning": {"effort": "low"},
    },
    "/api/chat": {
        "messages": [{"role": "user", "content": "a", "tool_calls": [{"function": {}}]}],
        "options": {"num_predict": 1, "stop": ["a"]},
        "format": "json",
    },
    "/api/generate": {"prompt": "a", "options": {"num_predict": 1}, "think": False},
    "/tokenize": {"content": ["a", 5], "with_pieces": True},
    "/detokenize": {"tokens": [5, 6]},
    "/apply-template": {"messages": [{"role": "user", "content": "a"}]},
    "/infill": {"input_prefix": "a", "input_suffix": "b", "input_extra": [{"text": "c"}]},
    "/slots/0?action=save": {"filename": "a"},
    "/props": {},
    "/lora-adapters": {},
}
ODD = [
    None, True, -1, 0, 1.5, 10**30, 1e308, "", "a", "\ud800", "\0", [], {}, [[]], [None], {"": {}},
    "9" * 50, [[1]], {"type": "x"}, {"$ref": "#"}, -(2**31), 2**31,
]  # fmt: skip
ALLOWED = {200, 400, 404, 405, 413, 429, 501}


def mutated(value: Any, rng: random.Random, depth: int = 0) -> Any:
    """A value with a part replaced, removed, doubled or renamed."""
    if depth and rng.random() < 0.25:
        return rng.choice(ODD)
    if isinstance(value, dict) and value:
        key = rng.choice([*value])
        changed = {k: v for k, v in value.items() if k != key or rng.random() < 0.9}
        return changed | {key: mutated(value[key], rng, depth + 1)}
    if isinstance(value, list) and value:
        i = rng.randrange(len(value))
        return [*value[:i], mutated(value[i], rng, depth + 1), *value[i : i + rng.randrange(2)]]
    return rng.choice(ODD)


def is_media(response: Any) -> bool:
    return response.status_code == 500 and "input is not supported" in response.text


def test_changed_bodies(client: TestClient) -> None:
    rng = random.Random(1)
    for path, body in SEEDS.items():
        for _ in range(40):
            value = mutated(body, rng)
            data = json.dumps(value).encode()
            response = client.post(path, content=data)
            good = response.status_code in ALLOWED or is_media(response)
            assert good, (path, value, response.status_code, response.text)
    assert client.post("/completion", json=SEEDS["/completion"]).status_code == 200


def test_changed_bytes(client: TestClient) -> None:
    rng = random.Random(2)
    for path, body in SEEDS.items():
        whole = json.dumps(body).encode()
        for _ in range(20):
            data = bytearray(whole)
            for _ in range(rng.randrange(1, 4)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            data = data[: rng.randrange(1, len(data) + 1)]
            response = client.post(path, content=bytes(data))
            assert response.status_code in ALLOWED, (path, bytes(data), response.text)


def test_every_route_takes_garbage(client: TestClient) -> None:
    for method, paths, _ in ROUTES:
        for path in paths:
            url = path.replace("{id_slot}", "x%00")
            for data in (b"", b"\xff\xfe", b"nul", b"[1]", b'{"a":' * 70, b"9" * 5000):
                response = client.request(method, url, content=data)
                assert response.status_code in ALLOWED | {403}, (url, data, response.text)


def test_changed_requests_at_a_socket(model: Model) -> None:
    rng = random.Random(3)
    whole = (
        b"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: 29\r\n\r\n"
        b'{"prompt":"a","n_predict": 1}'
    )
    with listening(make_served(model), header_s=0.05, body_s=0.05) as port:
        for i in range(150):
            data = bytearray(whole)
            for _ in range(rng.randrange(1, 5)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            with socket.create_connection(("127.0.0.1", port), timeout=10) as one:
                one.sendall(bytes(data[: rng.randrange(1, len(data) + 1)] if i % 2 else data))
                one.shutdown(socket.SHUT_WR)
                status = one.recv(1 << 16)[9:12]
                assert status in (b"", b"200", b"400", b"403", b"404", b"405", b"408"), (
                    data,
                    status,
                )
