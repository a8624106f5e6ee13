"""Requests on their way to a child, and its responses on their way back."""

from __future__ import annotations

import http.client
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pyllama.server.request.options import ServerOptions
from pyllama.server.router.app import make_router
from pyllama.server.router.forward import target_of
from pyllama.server.router.pool import Pool

from ....waiting import until
from ..conftest import at_a_socket
from .conftest import Fleet, StartRouter, ask, entries, router


def test_a_request_reaches_its_model(route: StartRouter) -> None:
    client = route(api_prefix="/deep", cors_origins="https://x.example")
    body = {"model": "a", "prompt": "ä", "n": [1, 2]}
    headers = {
        "Authorization": "Bearer of-the-client", "X-Api-Key": "k", "Cookie": "c=1",
        "Origin": "https://x.example", "Sec-Fetch-Site": "cross-site", "X-Request-Id": "mine",
        "X-Other": "1",
    }  # fmt: skip
    response = client.post("/deep/v1/completions?x=a%20b", json=body, headers=headers)
    assert response.status_code == 200
    assert response.json() == {"by": "a", "target": "/v1/completions?x=a%20b", "body": body}
    (child,) = client.fleet.children
    (seen,) = child.seen
    assert seen["authorization"] == "Bearer key of a"
    assert (seen["x-request-id"], seen["x-other"]) == ("mine", "1")
    assert not {"x-api-key", "cookie", "origin", "sec-fetch-site"} & seen.keys()
    assert seen["host"] == f"127.0.0.1:{child.port}"


def test_line_ends_in_a_target_stay_quoted() -> None:
    scope = {"path": "/deep/slots/1\r\nX: y", "query_string": b"a=%0D%0A b&c=[\xff\n]"}
    target = target_of(scope, "/deep", 1)
    assert target == "http://127.0.0.1:1/slots/1%0D%0AX%3A%20y?a=%0D%0A%20b&c=[%FF%0A]"
    assert target.isprintable()


def test_headers_of_a_response_pass(route: StartRouter) -> None:
    client = route(cors_origins="https://page.example")
    response = client.post("/completion", json={"model": "a", "prompt": "busy"})
    assert response.status_code == 429 and response.json() == {"error": {"code": 429}}
    assert response.headers["Retry-After"] == "7"
    assert response.headers["X-Request-Id"] == "of-the-child"
    origin = {"Origin": "https://page.example"}
    response = client.post("/completion", json={"model": "a", "prompt": "x"}, headers=origin)
    assert response.headers["X-Own"] == "1" and response.headers["Server"] == "pyllama"
    assert response.headers["Access-Control-Allow-Origin"] == origin["Origin"]
    assert response.headers["Content-Length"] == str(len(response.content))


def test_the_id_of_a_logged_request_goes_to_the_child(route: StartRouter, caplog: Any) -> None:
    client = route()
    with caplog.at_level("INFO", logger="pyllama.server"):
        response = client.post("/completion", json={"model": "a", "prompt": "busy"})
        seen = client.fleet.children[0].seen[-1]
        assert response.headers.get_list("X-Request-Id") == [seen["x-request-id"]]


def test_a_stream_is_not_collected() -> None:
    fleet = Fleet()
    with at_a_socket(router(fleet, entries("a"))) as port:
        body = {"model": "a", "prompt": "step", "stream": True}
        with ask(port, body) as connection:
            response = http.client.HTTPResponse(connection)
            response.begin()
            assert response.getheader("Content-Type", "").startswith("text/event-stream")
            child = fleet.children[0]
            for i in range(3):
                assert response.readline() == f"data: {i}\n".encode()  # i + 1 is not written yet
                assert response.readline() == b"\n"
                child.exit.get_loop().call_soon_threadsafe(child.go.set)
            assert response.read() == b""


def test_a_client_that_hangs_up_ends_the_stream_of_the_child() -> None:
    fleet = Fleet()
    with at_a_socket(router(fleet, entries("a"))) as port:
        with ask(port, {"model": "a", "prompt": "endless", "stream": True}) as connection:
            assert b"data: 0" in connection.recv(65536) + connection.recv(65536)
        until(lambda: fleet.children[0].n_aborted == 1)
        with ask(port, {"model": "a", "prompt": "slow"}):
            until(lambda: len(fleet.children[0].seen) == 2)
        with ask(port, {"model": "a", "prompt": "x"}) as connection:
            assert b"200 OK" in connection.recv(65536)


ENDS = [
    ("/completion", "text/event-stream", 'data: {"error":{"code":500,'),
    ("/v1/messages", "text/event-stream", 'event: error\ndata: {"type":"error","error":{'),
    ("/v1/responses", "text/event-stream", 'event: error\ndata: {"type":"server_error","error":{'),
    ("/api/chat", "application/x-ndjson", '{"error":"proxy error: model name=a ended before'),
]


@pytest.mark.parametrize(("path", "media_type", "end"), ENDS)
def test_a_child_that_dies_in_a_stream(
    route: StartRouter, path: str, media_type: str, end: str
) -> None:
    client = route()
    body = {"model": "a", "prompt": "die", "stream": True, "media_type": media_type}
    text = client.post(path, json=body).text
    assert text.startswith("data: 0\n\n") and text.removeprefix("data: 0\n\n").startswith(end)
    assert client.post(path, json={"model": "a"}).json()["by"] == "a"
    assert client.fleet.names() == ["a", "a"]


def test_a_child_that_dies_before_it_answers(route: StartRouter) -> None:
    client = route()
    client.post("/completion", json={"model": "a"})
    child = client.fleet.children[0]
    with ThreadPoolExecutor(1) as threads:
        body = {"model": "a", "prompt": "slow"}
        asked = threads.submit(client.post, "/completion", json=body)
        until(lambda: len(child.seen) == 2)
        child.exit.get_loop().call_soon_threadsafe(child.end, 1)
        response = asked.result()
    assert response.status_code == 500
    message = response.json()["error"]["message"]
    assert message == "proxy error: model name=a ended before its response did"


def test_many_streams_at_once_and_large_bodies() -> None:
    fleet = Fleet()
    with at_a_socket(router(fleet, entries("a"), max_body_bytes=1 << 20)) as port:
        body = {"model": "a", "prompt": "y" * 300_000}
        open_ones = [ask(port, {"model": "a", "prompt": "", "stream": True}) for _ in range(20)]
        with ask(port, body) as connection:
            response = http.client.HTTPResponse(connection)
            response.begin()
            assert json.load(response)["body"] == body
        for one in open_ones:
            response = http.client.HTTPResponse(one)
            response.begin()
            assert response.read() == b"data: 0\n\ndata: 1\n\ndata: 2\n\n"
            one.close()
        with ask(port, {"model": "a", "prompt": "y" * (1 << 20)}) as connection:
            assert b"413" in connection.recv(65536)


def test_a_client_that_hangs_up_while_the_model_loads_is_forgotten() -> None:
    fleet = Fleet()
    pool = Pool(entries("a", "b"), fleet.spawn, 1)
    app = make_router(pool, ServerOptions(), list)
    with at_a_socket(app) as port:
        busy = ask(port, {"model": "a", "prompt": "slow"})
        until(lambda: bool(fleet.children and fleet.children[0].seen))
        with ask(port, {"model": "b"}):
            until(lambda: any(one.n_users for one in pool.instances if one.name == "b"))
        until(lambda: not any(one.n_users for one in pool.instances if one.name == "b"))
        busy.close()
        with ask(port, {"model": "a"}) as last:  # b would be loaded before
            assert b"200 OK" in last.recv(65536)
        assert fleet.names() == ["a"]
