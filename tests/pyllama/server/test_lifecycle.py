"""When the model is loaded: the server answers before it is, and while it sleeps."""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from pyggml.errors import Aborted
from pyllama import Context, Model
from pyllama.runtime.adapters import load_lora
from pyllama.server.app import make_app
from pyllama.server.request.options import ServerOptions
from pyllama.server.worker import lifecycle
from pyllama.server.worker.lifecycle import Lifecycle
from pyllama.server.worker.served import ServedModel

from ...waiting import WAIT_S, until
from ..adapters import adaptable, random_terms, write_lora
from .conftest import events, make_served

LOADING = {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}


def test_a_server_answers_while_it_loads(model: Model) -> None:
    may_end, ready = threading.Event(), []

    def load() -> ServedModel:
        assert may_end.wait(WAIT_S)
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

    def load() -> ServedModel:
        raise OSError("no such file")

    life = Lifecycle(load, ServerOptions())
    life.on_failed = failed.append
    with TestClient(make_app(life), base_url="http://localhost") as client:
        until(lambda: bool(failed))
        assert client.get("/health").json() == LOADING
    assert failed == [life.error]


def test_a_server_that_ends_while_it_loads() -> None:
    may_end = threading.Event()

    def load() -> ServedModel:
        may_end.wait(WAIT_S)
        raise OSError("nobody waits for it")

    with TestClient(make_app(Lifecycle(load, ServerOptions())), base_url="http://localhost"):
        pass
    may_end.set()


@pytest.mark.parametrize("stops", [True, False])
def test_a_server_ends_while_its_engine_computes(
    model: Model, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, stops: bool
) -> None:
    """A step is aborted; what cannot be stopped still has the model when the server has ended."""
    served = make_served(model)
    begun, aborted, may_end = threading.Event(), threading.Event(), threading.Event()
    closed: list[bool] = []
    served.resources.callback(closed.append, True)

    def step() -> None:
        begun.set()
        assert (aborted if stops else may_end).wait(WAIT_S)
        raise Aborted("the decode was aborted")

    monkeypatch.setattr(served.engine, "step", step)
    monkeypatch.setattr(served.engine.context, "abort", aborted.set)
    monkeypatch.setattr(lifecycle, "_ABORT_S", WAIT_S if stops else 0.05)
    life = Lifecycle.of(served)
    with ThreadPoolExecutor(1) as threads:
        with TestClient(make_app(life), base_url="http://localhost") as client:
            asked = threads.submit(client.post, "/completion", json={"prompt": "a"})
            assert begun.wait(WAIT_S)
        assert asked.result().status_code == 503
    assert life.is_computing is not stops and closed == [True] * stops
    may_end.set()
    until(lambda: not life.is_computing)
    assert not caplog.records


EXEMPT = ("/health", "/props", "/models", "/metrics", "/api/version")


def sleeping(client: TestClient) -> bool:
    is_sleeping: bool = client.get("/props").json()["is_sleeping"]
    return is_sleeping


def test_an_idle_model_is_freed_and_loaded_again(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[Context]] = []

    def load() -> ServedModel:
        served = make_served(model, endpoint_metrics=True)
        made.append(weakref.ref(served.engine.context))
        return served

    life = Lifecycle(load, ServerOptions(endpoint_metrics=True), sleep_idle_s=0.05)
    idle_left_s, may_sleep = life._idle_left_s, threading.Event()

    def left_s(idle_s: float) -> float:
        return idle_left_s(idle_s) if may_sleep.is_set() else idle_s

    monkeypatch.setattr(life, "_idle_left_s", left_s)
    told: list[str] = []
    life.on_sleeping, life.on_awake = partial(told.append, "sleeps"), partial(told.append, "wakes")
    ask = {"prompt": "a b", "n_predict": 4, "ignore_eos": True}
    with TestClient(make_app(life), base_url="http://localhost") as client:
        until(lambda: client.get("/health").status_code == 200)
        first = client.post("/completion", json=ask).json()["content"]
        until(lambda: "compiling" not in client.get("/health").text)
        awake = {path: client.get(path).text for path in EXEMPT if path != "/metrics"}
        client.get("/metrics")  # the next scrape has rates of 0, as while it sleeps
        metrics = client.get("/metrics").text
        assert not sleeping(client) and "tokens_predicted_total 4" in metrics
        may_sleep.set()
        until(lambda: sleeping(client))
        may_sleep.clear()
        until(lambda: made[0]() is None)
        for _ in range(2):
            for path, text in awake.items():
                now = client.get(path)
                assert now.status_code == 200
                assert now.text == text.replace('"is_sleeping":false', '"is_sleeping":true')
            assert client.get("/metrics").text == metrics
        assert sleeping(client) and len(made) == 1
        with ThreadPoolExecutor(3) as threads:  # one loading for all
            asked = [threads.submit(client.post, "/completion", json=ask) for _ in range(3)]
            assert {one.result().json()["content"] for one in asked} == {first}
        assert not sleeping(client) and len(made) == 2 and told[:2] == ["sleeps", "wakes"]
        assert "tokens_predicted_total 16" in client.get("/metrics").text


def test_factors_of_adapters_outlive_sleep(model: Model, tmp_path: Path) -> None:
    terms = random_terms(adaptable(model), model.hparams.n_vocab)
    path = write_lora(tmp_path / "a.gguf", model.hparams.arch, terms)

    def load() -> ServedModel:
        served, lora = make_served(model), load_lora(path, model)
        served.engine.context.set_adapters([lora], {lora: 1.0})
        return served

    life = Lifecycle(load, ServerOptions(), sleep_idle_s=0.05)
    with TestClient(make_app(life), base_url="http://localhost") as client:
        until(lambda: client.get("/health").status_code == 200)
        client.post("/lora-adapters", json=[{"id": 0, "scale": 0.5}])
        until(lambda: sleeping(client))
        assert [one["scale"] for one in client.get("/lora-adapters").json()] == [0.5]


def test_a_stream_keeps_the_model_awake(model: Model) -> None:
    life = Lifecycle(lambda: make_served(model, n_ctx=2048), ServerOptions(), sleep_idle_s=0.05)
    body = {"prompt": "a", "n_predict": 400, "ignore_eos": True, "stream": True}
    with TestClient(make_app(life), base_url="http://localhost") as client:
        until(lambda: client.get("/health").status_code == 200)
        text = client.post("/completion", json=body).text
        assert len(events(text)) > 200 and '"error"' not in text
        until(lambda: sleeping(client))


def test_a_model_that_cannot_be_loaded_again(model: Model) -> None:
    made: list[ServedModel] = [make_served(model)]
    life = Lifecycle(lambda: made.pop(), ServerOptions(), sleep_idle_s=0.05)
    with TestClient(make_app(life), base_url="http://localhost") as client:
        until(lambda: client.get("/health").status_code == 200)
        until(lambda: sleeping(client))
        for _ in range(2):
            response = client.post("/tokenize", json={"content": "a"})
            assert response.status_code == 503
            assert "cannot be loaded again" in response.json()["error"]["message"]
        assert client.get("/health").status_code == 200
        made.append(make_served(model))
        assert client.post("/tokenize", json={"content": "a"}).is_success


def test_what_a_program_has_frozen_is_freed_with_the_model() -> None:
    gc.collect()
    gc.freeze()
    assert gc.get_freeze_count()
    lifecycle._collect()
    assert not gc.get_freeze_count()
