"""What clients get when a replica is lost, before and within its answer; no Ray."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("starlette")

from pyllama.cluster.forward import FULL, LOST, Forwarded, error_of_call
from pyllama.server.http.sse import stream_error
from pyllama.server.request.errors import ApiError


class RayActorError(Exception):
    """By the name of Ray's class."""


class ActorDiedError(RayActorError):
    pass


class BackPressureError(Exception):
    pass


START = {"type": "http.response.start", "status": 200}
HEADERS = [(b"Content-Type", b"text/event-stream; charset=utf-8")]
PIECE = {"type": "http.response.body", "body": b"data: {}\n\n", "more_body": True}
END = {"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False}


def sent(*items: Any, path: str = "/v1/completions") -> list[dict[str, Any]]:
    """The messages that a client gets, of an iterator that yields or raises the items."""

    async def messages() -> AsyncIterator[Any]:
        for item in items:
            if isinstance(item, Exception):
                raise item
            yield item

    got: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        got.append(message)

    async def receive() -> Any:
        raise AssertionError

    scope = {"type": "http", "path": path, "headers": []}
    asyncio.run(Forwarded(messages())(scope, receive, send))
    return got


def test_a_whole_answer_is_passed_on() -> None:
    begin = {**START, "headers": HEADERS}
    assert sent(begin, PIECE, END) == [begin, PIECE, END]
    assert sent(begin, END, ActorDiedError()) == [begin, END]


@pytest.mark.parametrize(("error", "text"), [(ActorDiedError(), LOST), (BackPressureError(), FULL)])
def test_an_error_before_the_answer_is_a_503(error: Exception, text: str) -> None:
    start, body = sent(error)
    assert start["status"] == 503 and (b"retry-after", b"1") in start["headers"]
    assert json.loads(body["body"])["error"]["message"] == text


@pytest.mark.parametrize(
    ("path", "kind", "begin"),
    [
        ("/v1/completions", b"text/event-stream", b'data: {"error":'),
        ("/v1/messages", b"text/event-stream", b'event: error\ndata: {"type":"error"'),
        ("/v1/responses", b"text/event-stream", b'event: error\ndata: {"type":"unavailable_error"'),
        ("/api/chat", b"application/x-ndjson", b'{"error":"the replica'),
    ],
)
def test_an_error_within_a_stream_ends_it(path: str, kind: bytes, begin: bytes) -> None:
    start = {**START, "headers": [(b"Content-Type", kind)]}
    *_, last = sent(start, PIECE, ActorDiedError(), path=path)
    assert last["body"].startswith(begin) and not last["more_body"]
    assert b"[DONE]" not in last["body"]


def test_a_broken_body_breaks_the_connection() -> None:
    with pytest.raises(ActorDiedError):
        sent({**START, "headers": [(b"content-type", b"application/json")]}, ActorDiedError())


def test_other_errors_are_internal_ones() -> None:
    assert error_of_call(KeyError("x")).status == 500
    assert stream_error(ApiError(500, "x"), "/", "text/html") == b""
