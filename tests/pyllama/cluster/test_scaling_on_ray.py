"""Several models on Ray Serve, replicas added by the length of queues, and queues that are full."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pyllama.cluster.options import ClusterOptions
from pyllama.cluster.session import RunningServer, ray_session

from ..models import Spec, random_weights, write_model
from .local_ray import free_ports, local_ray, on_ray, until

pytestmark = on_ray


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder, spec = tmp_path_factory.mktemp("m"), Spec(n_ctx=2048, n_layer=3)
    models = {
        name: str(write_model(folder / f"{name}.gguf", spec, random_weights(spec, seed)))
        for seed, name in enumerate("ab")
    }
    options = ClusterOptions.from_arguments(
        {"model": models, "max_replicas": 2, "target_requests": 1, "upscale_s": 0.5,
         "max_requests": 2, "max_queued": 1, "parallel": 2, "ctx_size": 2048, "drain_s": 20}
    )  # fmt: skip
    (port,) = free_ports(1)
    with local_ray(n_nodes=1, n_cpus=3) as cluster, ray_session(cluster.address):
        running = RunningServer(options, port=port)
        running.start()
        yield running
        running.drain()


def ask(server: RunningServer, path: str, body: Any = None) -> tuple[int, dict[str, str], Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    data = None if body is None else json.dumps(body)
    connection.request("POST" if body else "GET", path, data)
    response = connection.getresponse()
    headers = {name.lower(): value for name, value in response.getheaders()}
    return response.status, headers, json.loads(response.read())


def completion(server: RunningServer, model: str, n: int = 8) -> tuple[int, dict[str, str], Any]:
    body = {"model": model, "prompt": "x", "max_tokens": n, "temperature": 0, "ignore_eos": True}
    return ask(server, "/v1/completions", body)


def test_models_are_loaded_when_they_are_named(server: RunningServer) -> None:
    texts = {}
    for model in ("a", "b", "a"):  # one at a time: the other is unloaded
        status, _, found = completion(server, model)
        assert (status, found["model"]) == (200, model)
        texts.setdefault(model, set()).add(found["choices"][0]["text"])
        assert [one["models"] for one in server.statuses()] == [[model]]
    assert len(texts["a"]) == 1 and texts["a"] != texts["b"]
    status, _, found = completion(server, "c")
    assert (status, found["error"]["message"]) == (404, "there is no model 'c'; there are a, b")
    status, _, found = ask(server, "/v1/models")
    assert [one["id"] for one in found["data"]] == ["a", "b"]


def test_full_queues_and_more_replicas(server: RunningServer) -> None:
    found = []

    def keep_asking() -> None:
        while len(server.statuses()) < 2:
            found.append(completion(server, "a", 1500))

    with ThreadPoolExecutor(6) as threads:
        for one in [threads.submit(keep_asking) for _ in range(6)]:
            one.result(300)
    until(lambda: len(server.statuses()) == 2, 120)
    refused = [one for one in found if one[0] != 200]
    assert refused and {one[0] for one in refused} == {503}
    assert {one[1]["retry-after"] for one in refused} == {"1"}
    assert all("too many requests wait" in one[2]["error"]["message"] for one in refused)
    assert any(one[0] == 200 for one in found)
