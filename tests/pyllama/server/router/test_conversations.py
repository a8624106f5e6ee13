"""Streams of conversations: where they are, while their model loads, and without their client."""

from __future__ import annotations

import http.client
import socket
from typing import Any

from pyllama.server.request.options import ServerOptions
from pyllama.server.router import conversations
from pyllama.server.router.app import make_router
from pyllama.server.router.catalog import CatalogEntry
from pyllama.server.router.conversations import Conversations
from pyllama.server.router.pool import Instance, Pool

from ....waiting import WAIT_S, until
from ..conftest import at_a_socket
from .conftest import Fleet, HttpChild, StartRouter, ask, entries

HEADER = {"X-Conversation-Id": "x::y/z"}
STREAM = {"prompt": "", "stream": True}
PATH = "/v1/stream?conv_id=x%3A%3Ay%2Fz"


def test_a_stream_is_asked_of_its_model(route: StartRouter) -> None:
    client = route()
    assert client.get(PATH).status_code == 404
    assert client.delete(PATH).status_code == 204
    assert client.get("/v1/stream").status_code == 400
    assert client.post("/completion", json={"model": "b"}).status_code == 200
    client.post("/completion", json=STREAM | {"model": "a"}, headers=HEADER)
    found = client.get(f"{PATH}&from=7").json()
    assert found["by"] == "a" and found["target"].endswith("&from=7")
    lookup = {"conversation_ids": ["x", "other"]}
    assert client.post("/v1/streams/lookup", json=lookup).json() == [{"by": "a", "asked": lookup}]
    assert client.post("/v1/streams/lookup", json={"conversation_ids": ["y"]}).json() == []
    assert client.delete(PATH).json()["by"] == "a"
    assert client.get(PATH).status_code == 404
    client.post("/completion", json={"model": "a", "prompt": ""}, headers=HEADER)  # no stream
    assert client.get(PATH).status_code == 404


class SlowChild(HttpChild):
    """A child that loads until the test lets it go on."""

    async def begin(self) -> None:
        await self.go.wait()
        self.go.clear()
        await super().begin()


class Slow:
    """A router of a model that loads slowly, and a client that has asked for a stream."""

    def __init__(self) -> None:
        self.fleet = Fleet(SlowChild)
        self.pool = Pool(entries("a"), self.fleet.spawn, 1)
        self.app = make_router(self.pool, ServerOptions(), list)

    @property
    def child(self) -> SlowChild:
        (child,) = self.fleet.children
        assert isinstance(child, SlowChild)
        return child

    def begin(self, port: int) -> socket.socket:
        one = ask(port, STREAM | {"model": "a"}, headers=HEADER)
        until(lambda: any(instance.n_users for instance in self.pool.instances))
        until(lambda: bool(self.fleet.children))
        return one

    def load(self) -> None:
        self.child.exit.get_loop().call_soon_threadsafe(self.child.go.set)


def request(port: int, method: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    connection.request(method, PATH)
    response = connection.getresponse()
    response.read()
    connection.close()
    return response


def test_a_request_goes_on_without_its_client_while_the_model_loads() -> None:
    slow = Slow()
    with at_a_socket(slow.app) as port:
        slow.begin(port).close()
        refused = request(port, "GET")
        assert refused.status == 503 and refused.headers["Retry-After"] == "1"
        slow.load()
        until(lambda: bool(slow.child.seen))
        assert slow.child.seen[0]["x-conversation-id"] == HEADER["X-Conversation-Id"]
        until(lambda: not any(instance.n_users for instance in slow.pool.instances))
        assert request(port, "GET").status == 200


def test_a_stop_while_the_model_loads_cancels_the_request() -> None:
    slow = Slow()
    with at_a_socket(slow.app) as port:
        with slow.begin(port) as one:
            assert request(port, "DELETE").status == 204
            response = http.client.HTTPResponse(one)
            response.begin()
            assert response.status == 400 and b"cancelled by a stop" in response.read()
        slow.load()
        assert request(port, "GET").status == 404
        assert not slow.child.seen


def test_only_the_last_conversations_are_known(monkeypatch: Any) -> None:
    monkeypatch.setattr(conversations, "MAX_CONVERSATIONS", 2)
    known, instance = Conversations(), Instance(CatalogEntry("a", ()))
    for id in ("one", "two", "one", "three"):
        known.begin(id, instance)
    assert known.get("two") is None and known.owners(["one"]) == [instance]
