"""When the model is loaded: the server answers before it is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from starlette.testclient import TestClient

from pyllama import Model
from pyllama.server.app import make_app
from pyllama.server.lifecycle import Lifecycle
from pyllama.server.options import ServerOptions
from pyllama.server.served import Served

from .conftest import make_served

LOADING = {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}


def until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_server_answers_while_it_loads(model: Model) -> None:
    may_end, ready = threading.Event(), []

    def load() -> Served:
        assert may_end.wait(20)
        return make_served(model)

    life = Lifecycle(load, ServerOptions())
    life.on_ready = ready.append
    with TestClient(make_app(life), base_url="http://localhost") as client:
        for path in ("/health", "/v1/health", "/props", "/slots", "/v1/models"):
            response = client.get(path)
            assert (response.status_code, response.json()) == (503, LOADING)
        response = client.post("/completion", json={"prompt": "a"})
        assert (response.status_code, response.json()) == (503, LOADING)
        assert client.get("/").status_code == 200 and not ready
        may_end.set()
        until(lambda: client.get("/health").status_code == 200)
        assert len(ready) == 1
        assert client.post("/completion", json={"prompt": "a", "n_predict": 1}).is_success


def test_a_model_that_cannot_be_loaded() -> None:
    failed: list[BaseException] = []

    def load() -> Served:
        raise OSError("no such file")

    life = Lifecycle(load, ServerOptions())
    life.on_failed = failed.append
    with TestClient(make_app(life), base_url="http://localhost") as client:
        until(lambda: bool(failed))
        assert client.get("/health").json() == LOADING
    assert failed == [life.error]


def test_a_server_that_ends_while_it_loads() -> None:
    may_end = threading.Event()

    def load() -> Served:
        may_end.wait(20)
        raise OSError("nobody waits for it")

    with TestClient(make_app(Lifecycle(load, ServerOptions())), base_url="http://localhost"):
        pass
    may_end.set()
