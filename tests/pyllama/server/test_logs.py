"""Records of requests, and their JSON lines."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from pyllama import Model
from pyllama.server.http.logs import JsonFormatter

from ...waiting import until
from .conftest import Serve, held, listening, make_served
from .test_listener import post

PROMPT = {"prompt": "a b", "n_predict": 3, "ignore_eos": True}


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    made = [JsonFormatter().format(record) for record in caplog.records]
    assert not any("\n" in line for line in made)
    return [found for line in made if "status" in (found := json.loads(line))]


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "pyllama.server")
    return caplog


@pytest.mark.parametrize(
    ("path", "body", "status", "n_generated"),
    [
        ("/completion", PROMPT, 200, 3),
        ("/completion", {**PROMPT, "stream": True}, 200, 3),
        ("/v1/completions", {**PROMPT, "n": 2}, 200, 6),
        ("/embedding", {"input": "a b"}, 200, 0),
        ("/completion", {}, 400, None),
        ("/nothing%0A%1B/here?key=secret", {}, 404, None),
        ("/tokenize", {"content": "a"}, 200, None),
    ],
)
def test_a_record_of_each_request(
    serve: Serve, log: pytest.LogCaptureFixture,
    path: str, body: dict[str, Any], status: int, n_generated: int | None,
) -> None:  # fmt: skip
    response = serve(pooling="mean").post(path, json=body)
    (line,) = lines(log)
    assert line["status"] == response.status_code == status
    assert line["request_id"] == response.headers["X-Request-Id"]
    assert (line["level"], line["method"], line["ms"] > 0) == ("info", "POST", True)
    assert line["path"].isprintable() and "secret" not in json.dumps(line)
    assert line["msg"] == f"POST {line['path']} {status}" and line["time"].endswith("Z")
    assert line.get("completion_tokens") == n_generated
    if n_generated is not None:
        expected = response.json() if body.get("stream") is None and "prompt" in body else {}
        n_prompt = expected.get("usage", {}).get("prompt_tokens") or expected.get(
            "tokens_evaluated"
        )
        assert line["prompt_tokens"] == (n_prompt or line["prompt_tokens"]) > 0


def test_ignored_fields_are_logged(serve: Serve, log: pytest.LogCaptureFixture) -> None:
    serve().post("/tokenize", json={"content": "a", "x\n": 1})
    (line,) = lines(log)
    assert line["ignored"] == ["x\\n"] and line["msg"] == "POST /tokenize 200 (ignored: x\\n)"


@pytest.mark.parametrize(("given", "is_taken"), [("a-1", True), ("a b", False), ("x" * 200, False)])
def test_the_id_of_a_request(
    serve: Serve, log: pytest.LogCaptureFixture, given: str, is_taken: bool
) -> None:
    response = serve().get("/health", headers={"X-Request-Id": given})
    assert (response.headers["X-Request-Id"] == given) is is_taken


def test_a_client_that_hangs_up(model: Model, log: pytest.LogCaptureFixture) -> None:
    body = {"prompt": "a", "n_predict": -1, "ignore_eos": True, "stream": True}
    served = make_served(model, n_ctx=2048)
    with held(served), listening(served) as port:
        with post(port, "/completion", body) as one:
            one.recv(1 << 12)
        until(lambda: lines(log))
    assert [line["status"] for line in lines(log)] == [499]


def test_an_exception_is_one_line() -> None:
    try:
        raise ValueError("why\nnot")
    except ValueError as error:
        record = logging.LogRecord("x", logging.WARNING, "", 0, "a %d", (1,), (
            ValueError, error, error.__traceback__
        ))  # fmt: skip
    line = JsonFormatter().format(record)
    assert "\n" not in line
    found = json.loads(line)
    assert (found["level"], found["msg"]) == ("warn", "a 1") and "why\nnot" in found["exception"]
