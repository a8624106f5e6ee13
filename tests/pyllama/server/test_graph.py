"""``/graph.json``, ``/graph.html`` and the files of the page, over HTTP."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from starlette.testclient import TestClient

from pyllama.server.apis.llama_cpp import graph
from pyllama.server.page.graph_page import draw_graph

from ...waiting import WAIT_S
from .conftest import Serve


def test_the_graph_and_its_drawing_are_of_one_run(client: TestClient) -> None:
    plain = client.get("/graph.json").json()
    assert plain["total_us"] is None and plain["nodes"]
    query = {"times": "1", "depth": "8"}
    timed = client.get("/graph.json", params=query).json()
    assert timed["total_us"] > 0
    drawing = client.get("/graph.html", params=query)
    assert drawing.headers["content-type"].startswith("text/html")
    assert drawing.text == client.get("/graph.html", params=query).text
    body = {"prompt": "a", "n_predict": 2}
    assert client.post("/completion", json=body).status_code == 200


def test_texts_go_on_while_a_graph_is_measured(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One at a time, in one of the threads that prepare requests."""
    begun, may_end, n_running = threading.Event(), threading.Event(), 0

    def slow(*args: Any) -> Any:
        nonlocal n_running
        n_running += 1
        assert n_running == 1
        begun.set()
        assert may_end.wait(WAIT_S)
        n_running -= 1
        return draw_graph(*args)

    monkeypatch.setattr(graph, "draw_graph", slow)
    with ThreadPoolExecutor(2) as threads:
        drawn = [threads.submit(client.get, f"/graph.json?tokens={n}") for n in (1, 2)]
        assert begun.wait(WAIT_S)
        body = {"prompt": "a", "n_predict": 2}
        assert client.post("/completion", json=body).is_success
        assert not any(one.done() for one in drawn)
        may_end.set()
        assert [one.result().json()["tokens"] for one in drawn] == [1, 2]


@pytest.mark.parametrize("path", ["/graph.json", "/graph.html"])
def test_queries_are_checked(client: TestClient, path: str) -> None:
    answer = client.get(path, params={"tokens": "1000"})
    assert answer.status_code == 400 and "tokens" in answer.json()["error"]["message"]


def test_the_page_needs_no_key_and_its_data_does(serve: Serve) -> None:
    client = serve(api_keys=("secret",))
    for path in ("/", "/graph", "/page/chat.js", "/page/vendor/marked.esm.js"):
        answer = client.get(path)
        assert answer.status_code == 200 and answer.headers["x-content-type-options"] == "nosniff"
        tag = {"If-None-Match": answer.headers["etag"]}
        assert client.get(path, headers=tag).status_code == 304
    assert "default-src 'none'" in client.get("/").headers["content-security-policy"]
    assert client.get("/graph.json").status_code == 401
