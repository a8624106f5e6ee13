"""Streams that go on without their client: read again, stopped, bounded, forgotten."""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.testclient import TestClient

from pyllama import Model
from pyllama.server.request.errors import ApiError
from pyllama.server.worker import kept_streams
from pyllama.server.worker.kept_streams import KeptStreams

from ...waiting import WAIT_S, until
from .conftest import Serve, held, listening, make_served
from .test_listener import everything, post

ID = "conv::org/model:Q8_0"
WHERE = {"conv_id": ID}
Sent = tuple[int, Any, threading.Event]
ASK: dict[str, Any] = {"prompt": "a", "n_predict": 6, "ignore_eos": True, "stream": True}


def begin(client: TestClient, **more: Any) -> Any:
    return client.post("/completion", json=ASK | more, headers={"X-Conversation-Id": ID})


def lookup(client: TestClient, *ids: Any) -> Any:
    return client.post("/v1/streams/lookup", json={"conversation_ids": [*ids]}).json()


def test_a_finished_stream_is_read_again(client: TestClient) -> None:
    whole = begin(client).content
    assert whole.count(b"data: ") == 7
    again = client.get("/v1/stream", params=WHERE)
    assert again.status_code == 200 and again.content == whole
    assert again.headers["content-type"].startswith("text/event-stream")
    assert client.get("/v1/stream", params={**WHERE, "from": 40}).content == whole[40:]
    assert client.get("/v1/stream", params={**WHERE, "from": len(whole)}).content == b""
    (found,) = lookup(client, "conv", "other", 3, "")
    assert found["is_done"] and found["total_bytes"] == len(whole)
    assert found["conversation_id"] == ID and found["completed_at"] >= found["started_at"] > 0
    assert client.delete("/v1/stream", params=WHERE).status_code == 204
    assert client.delete("/v1/stream", params=WHERE).status_code == 204
    assert client.get("/v1/stream", params=WHERE).status_code == 404
    assert lookup(client, "conv") == []


def test_wrong_requests(client: TestClient) -> None:
    begin(client)
    for offset in ("x", "-1", "1" * 30, "٣"):
        found = client.get("/v1/stream", params={**WHERE, "from": offset})
        assert (found.status_code, found.json()["error"]["message"]) == (
            400,
            "Invalid 'from' offset",
        )
    for method in ("GET", "DELETE"):
        assert client.request(method, "/v1/stream").status_code == 400
    assert lookup(client) == [] and client.post("/v1/streams/lookup", json={}).json() == []
    assert client.post("/v1/streams/lookup", content=b"{").status_code == 400
    long = client.post("/completion", json=ASK, headers={"X-Conversation-Id": "x" * 600})
    assert long.status_code == 400


def test_only_streams_that_begin_are_kept(client: TestClient) -> None:
    assert begin(client, prompt=[10**6]).status_code == 400
    assert begin(client, stream=False).status_code == 200
    assert client.get("/v1/stream", params=WHERE).status_code == 404


@pytest.fixture
def sent(model: Model) -> Iterator[Sent]:
    """A port, its model, and the event after which the text of a client that hung up goes on."""
    served = make_served(model, n_slots=1, n_ctx=2048)
    with listening(served) as port, held(served) as go_on:
        body = json.dumps(ASK | {"n_predict": 400}).encode()
        with connect_with_id(port, body) as one:
            assert one.recv(64)
        yield port, served, go_on


def connect_with_id(port: int, body: bytes) -> Any:
    one = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
    lines = [
        "POST /completion HTTP/1.1",
        "Host: localhost",
        "Connection: close",
        f"X-Conversation-Id: {ID}",
        f"Content-Length: {len(body)}",
    ]
    one.sendall("\r\n".join([*lines, "", ""]).encode() + body)
    return one


def ask(port: int, method: str, path: str) -> bytes:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)) as connection:
        connection.request(method, path)
        return connection.getresponse().read()


def test_a_text_goes_on_without_its_client(sent: Sent) -> None:
    port, served, go_on = sent
    go_on.set()
    data = ask(port, "GET", f"/v1/stream?conv_id={ID}")  # waits for the end
    last = json.loads(data.decode().strip().split("\n\n")[-1].removeprefix("data: "))
    assert last["stop"] and last["tokens_predicted"] == 400
    assert served.runner.counts.n_aborted == 0


def test_a_stop_frees_the_slot(sent: Sent) -> None:
    port, served, _ = sent
    assert served.runner.n_processing == 1
    assert ask(port, "DELETE", f"/v1/stream?conv_id={ID}") == b""
    until(lambda: not served.runner.n_processing)
    assert served.runner.counts.n_aborted == 1


def test_the_next_stream_replaces_the_last(sent: Sent) -> None:
    port, served, go_on = sent
    with connect_with_id(port, json.dumps(ASK | {"n_predict": 2}).encode()) as one:
        until(lambda: served.runner.counts.n_aborted)
        go_on.set()
        assert b'"tokens_predicted":2' in everything(one)
    assert served.runner.counts.n_aborted == 1


def test_without_the_header_a_text_ends_with_its_client(model: Model) -> None:
    served = make_served(model, n_slots=1, n_ctx=2048)
    with listening(served) as port, held(served):
        with post(port, "/completion", ASK | {"n_predict": -1}) as one:
            assert one.recv(64)
        until(lambda: served.runner.counts.n_aborted)


def test_bytes_are_bounded(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_streams, "MAX_BYTES", 300)
    client = serve()
    assert begin(client).status_code == 200
    (found,) = lookup(client, ID)
    lost = client.get("/v1/stream", params=WHERE)
    assert lost.status_code == 400 and "restart" in lost.json()["error"]["message"]
    begin_at = found["total_bytes"] - 300
    assert len(client.get("/v1/stream", params={**WHERE, "from": begin_at}).content) == 300


def test_streams_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    aborted: list[str] = []

    async def run() -> None:
        streams = KeptStreams()

        def begin(id: str) -> Any:
            return streams.open(id, "text/event-stream", lambda: aborted.append(id))

        first, second = begin("a"), begin("b")
        with pytest.raises(ApiError, match="running already") as found:
            begin("c")
        assert found.value.status == 429 and not aborted
        second.finish()
        begin("c")
        assert streams.get("b") is None and streams.get("a") is first
        monkeypatch.setattr(kept_streams, "KEEP_S", -1.0)  # nobody reads it for so long
        assert streams.get("a") is None and "a" in aborted

    monkeypatch.setattr(kept_streams, "MAX_STREAMS", 2)
    asyncio.run(run())


def test_a_reader_keeps_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(monotonic=itertools.count().__next__, time=time.time)
    monkeypatch.setattr(kept_streams, "time", clock)

    async def run() -> None:
        streams = KeptStreams()
        stream = streams.open("a", "text/event-stream", lambda: None)
        stream.append(b"xy")
        assert stream.idle_s > 0
        reader = stream.read(1)
        assert await anext(reader) == b"y" and stream.idle_s == 0
        stream.append(b"z")
        assert await anext(reader) == b"z"
        streams.close()
        assert await anext(reader, None) is None
        assert stream.is_done and stream.n_bytes == 3

    asyncio.run(run())
