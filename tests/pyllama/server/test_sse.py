"""Bodies of requests and responses: JSON, long ones in threads."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from pyllama.server.http import sse
from pyllama.server.http.sse import dump
from pyllama.server.worker.threads import LARGE

from ...waiting import WAIT_S
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
    assert "".join(sse._parts(value)) == dump(value)


@pytest.mark.parametrize("n", [0, 1, sse._PART, sse._PART + 1, 3 * sse._PART])
def test_long_lists_are_written_in_parts(n: int) -> None:
    value = {"a": [[0.5] * n, {"b": list(range(n))}]}
    assert "".join(sse._parts(value)) == dump(value)
    assert max(map(len, sse._parts(value))) < 10 * sse._PART


@pytest.mark.parametrize("n", [0, 1, 1000])
def test_elements_of_an_iterator_are_written_one_after_the_other(n: int) -> None:
    alive: list[int] = []
    value = {"a": ({"b": alive.append(i) or i} for i in range(n)), "c": 1}
    parts = sse._parts(value)
    assert next(parts) == '{"a":' and not alive
    rest = "".join(parts)
    assert json.loads('{"a":' + rest) == {"a": [{"b": i} for i in range(n)], "c": 1}


def test_small_elements_are_written_together() -> None:
    small, long = {"id": 1, "piece": [5, 6]}, "a" * 9000
    for value in ([small] * 1000, [small, long, small, [small] * 9, {"a": [[[small]]]}, 5, None]):
        assert "".join(sse._parts(value)) == dump(value)
    assert len(list(sse._parts([small] * 1000))) < 20
    assert max(map(len, sse._parts([[long]] * 1000))) < 2 * len(long)


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
    assert threads["parse"] == {"large"}
    assert threads["write"] == {"small"}
    short = client.post("/tokenize", content=json.dumps({"content": "a"}))
    assert short.is_success and len(threads["parse"]) == 2


def test_a_long_response_goes_on_among_large_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []

    def rows() -> Iterator[list[int]]:
        for i in range(5):
            threads.append(threading.current_thread().name)
            yield [i] * 20

    monkeypatch.setattr(sse, "_BEGIN_S", 0)
    monkeypatch.setattr(sse, "_TURN_S", 0)
    response = asyncio.run(sse.long_response(lambda: {"a": rows()}))
    assert json.loads(response.body) == {"a": [[i] * 20 for i in range(5)]}
    assert response.media_type == "application/json; charset=utf-8"
    assert threads[0] in ("small", "large") and threads[-1] == "large"


def test_a_small_request_overtakes_large_ones(serve: Serve) -> None:
    """A conversation is answered while the thread of large bodies is busy."""
    client, may_end = serve(), threading.Event()
    busy = LARGE.submit(lambda: may_end.wait(WAIT_S))
    chat = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
    with ThreadPoolExecutor(1) as pool:
        large = pool.submit(client.post, "/v1/chat/completions", json=chat | {"x": "y" * 40_000})
        assert client.post("/v1/chat/completions", json=chat).is_success
        assert not busy.done() and not large.done()
        may_end.set()
        assert large.result(WAIT_S).is_success


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
