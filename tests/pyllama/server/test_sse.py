"""Bodies of requests and responses: JSON, long ones in a thread of their own."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from pyllama.server.http import sse
from pyllama.server.http.sse import JsonResponse, dump

from .conftest import Serve

SCALARS = st.none() | st.booleans() | st.integers() | st.text()
VALUES = st.recursive(
    SCALARS | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers() | st.none() | st.booleans(), inner)
    ),
    max_leaves=20,
)


@settings(deadline=None, max_examples=60)
@given(VALUES)
def test_a_body_that_is_written_in_parts_is_the_same(value: Any) -> None:
    assert JsonResponse(value).body == dump(value).encode("utf-8", "replace")


@pytest.mark.parametrize("n", [0, 1, sse._PART, sse._PART + 1, 3 * sse._PART])
def test_long_lists_are_written_in_parts(n: int) -> None:
    value = {"a": [[0.5] * n, {"b": list(range(n))}]}
    assert JsonResponse(value).body == dump(value).encode()
    assert max(map(len, sse._parts(value))) < 10 * sse._PART


@pytest.mark.parametrize("n", [0, 1, 1000])
def test_elements_of_an_iterator_are_written_one_after_the_other(n: int) -> None:
    alive: list[int] = []
    value = {"a": ({"b": alive.append(i) or i} for i in range(n)), "c": 1}
    parts = sse._parts(value)
    assert next(parts) == '{"a":' and not alive
    rest = "".join(parts)
    assert json.loads('{"a":' + rest) == {"a": [{"b": i} for i in range(n)], "c": 1}


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e400"])
def test_numbers_that_are_not_json_are_refused(client: TestClient, number: str) -> None:
    for path in ("/completion", "/tokenize", "/v1/chat/completions", "/api/chat"):
        response = client.post(path, content=f'{{"prompt": "a", "x": [{number}]}}')
        assert response.status_code == 400, response.text
        assert "not valid JSON" in response.text


def test_long_bodies_do_not_stop_the_event_loop(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What takes long is done by another thread than the loop's."""
    client = serve(pooling="none", n_ctx=2048)
    threads: dict[str, set[str]] = {"parse": set(), "write": set()}
    parse, parts = sse.parse_json, sse._parts

    def parsed(*args: Any, **options: Any) -> Any:
        threads["parse"].add(threading.current_thread().name)
        return parse(*args, **options)

    def written(value: Any) -> Any:
        threads["write"].add(threading.current_thread().name)
        return parts(value)

    monkeypatch.setattr(sse, "parse_json", parsed)
    monkeypatch.setattr(sse, "_parts", written)
    text = "a b " * 400
    asked: dict[str, Any] = {"content": text, "prompt": text, "n_predict": 1, "x": "y" * 40_000}
    for path in ("/tokenize", "/embeddings", "/v1/embeddings", "/completion"):
        body = asked if path != "/v1/embeddings" else {**asked, "content": None, "input": text}
        assert client.post(path, json=body).status_code in (200, 400)
    assert client.post("/detokenize", json={"tokens": [5] * 20_000}).is_success
    assert threads["parse"] == {"json"}
    assert "json" in threads["write"]
    short = client.post("/tokenize", content=json.dumps({"content": "a"}))
    assert short.is_success and len(threads["parse"]) == 2


def test_prompts_that_cannot_fit_are_not_tokenized(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = serve(n_ctx=64, n_slots=1)
    tokenizer = client.served.tokenizer  # type: ignore[attr-defined]

    def encode(*args: Any) -> list[int]:
        encoded.append(args)
        return encode_as_before(*args)

    encoded: list[Any] = []
    encode_as_before = tokenizer.encode
    monkeypatch.setattr(tokenizer, "encode", encode)
    longest = max(map(len, tokenizer.vocab.tokens))
    for prompt in (" " * 64 * longest, ["a" * 64 * longest, 5], ["a" * 64, "b"]):
        response = client.post("/completion", json={"prompt": prompt, "n_predict": 1})
        assert response.status_code == 400
        assert response.json()["error"]["type"] == "exceed_context_size_error"
    assert [args[0] for args in encoded] == ["a" * 64]  # the second of two prompts neither
