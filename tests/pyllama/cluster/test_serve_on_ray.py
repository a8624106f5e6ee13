"""The server on Ray Serve: two nodes with a replica each, on loopback; replicas and nodes die."""

from __future__ import annotations

import http.client
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pyllama import Context, Model
from pyllama.cluster.options import ClusterOptions
from pyllama.cluster.session import RunningServer, ray_session

from ..models import Spec, random_weights, write_model
from .local_ray import free_ports, local_ray, node_arguments, on_ray, until

pytestmark = on_ray
N_PREDICT = 400
LOOPBACK = ("0100007F", "0" * 16 + "FFFF00000100007F", "0" * 24 + "01000000")
"""127.0.0.1, the same as an IPv6 address, and ::1, as /proc/net writes them."""


@dataclass
class Outcome:
    """What a client got."""

    status: int = 0
    replica: str = ""
    text: str = ""
    n_ends: int = 0
    errors: list[str] = field(default_factory=list)


@dataclass
class ServedModel:
    """A running server and its cluster."""

    server: RunningServer
    cluster: Any
    nodes: list[Any]

    def ask(self, path: str, body: Any = None, **headers: str) -> Outcome:
        """Send a request; streams are read to their end."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=120)
        data = None if body is None else json.dumps(body)
        connection.request("POST" if body else "GET", path, data, headers)
        response = connection.getresponse()
        found = Outcome(response.status, response.getheader("X-Replica") or "")
        is_stream = "event-stream" in (response.getheader("Content-Type") or "")
        if is_stream:
            for line in response:
                take_event(found, line.decode())
        else:
            found.text = response.read().decode()
            if found.status != 200:
                found.errors.append(json.loads(found.text)["error"]["message"])
        connection.close()
        return found

    def statuses(self) -> dict[str, dict[str, Any]]:
        return {one["replica"]: one for one in self.server.statuses()}


def take_event(found: Outcome, line: str) -> None:
    data = line.removeprefix("data: ").strip()
    if data == "[DONE]":
        found.n_ends += 1
    elif line.startswith("data: "):
        event = json.loads(data)
        if "error" in event:
            found.errors.append(event["error"]["message"])
        elif event["choices"]:
            found.text += event["choices"][0]["text"]


def body(i: int, n: int = N_PREDICT) -> dict[str, Any]:
    return {"prompt": f"{i} is a number", "max_tokens": n, "temperature": 0,
            "ignore_eos": True, "stream": True}  # fmt: skip


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = Spec(n_ctx=2048, n_layer=3)
    return write_model(tmp_path_factory.mktemp("m") / "x.gguf", spec, random_weights(spec))


@pytest.fixture(scope="module")
def served(path: Path) -> Iterator[ServedModel]:
    arguments = {"model": str(path), "replicas": 2, "parallel": 2, "ctx_size": 2048, "drain_s": 60}
    options = ClusterOptions.from_arguments(arguments)
    (port,) = free_ports(1)
    with local_ray(n_nodes=1, n_cpus=1) as cluster:
        node = cluster.add_node(**node_arguments(1))
        with ray_session(cluster.address):
            server = RunningServer(options, port=port)
            server.start()
            yield ServedModel(server, cluster, [node])
            server.drain()


@pytest.fixture(scope="module")
def texts(path: Path) -> dict[int, str]:
    """The answers of an engine in this process."""
    from pyllama.engine import Engine, Request
    from pyllama.sampling import SamplingParams

    model = Model.load(path)
    context = Context(model, n_ctx=2048, n_threads=1, n_seq_max=1)
    found = {}
    for i in range(12):
        tokens = model.tokenizer.encode(body(i)["prompt"], True, True)
        params = SamplingParams(temp=0.0, ignore_eos=True)
        events = Engine(context).run(Request(tokens, params, max_tokens=N_PREDICT))
        found[i] = "".join(event.text for event in events)
    return found


def wait_for_replicas(served: ServedModel, n: int = 2) -> None:
    def are_there() -> bool:
        try:
            return len(served.statuses()) == n
        except Exception:  # one of them has just died
            return False

    until(are_there, 300)


def test_every_path_of_the_server(served: ServedModel) -> None:
    for get in ("/health", "/props", "/slots", "/v1/models", "/", "/api/version"):
        assert served.ask(get).status == 200
    for post, fields in (
        ("/completion", {"prompt": "a", "n_predict": 2}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}),
        ("/tokenize", {"content": "a b"}),
        ("/api/generate", {"prompt": "a", "options": {"num_predict": 2}, "stream": False}),
    ):
        assert served.ask(post, fields).status == 200
    assert served.ask("/v1/completions", {"prompt": 5}).status == 400
    assert served.ask("/nothing").status == 404


def test_streams_have_the_texts_of_an_engine(served: ServedModel, texts: dict[int, str]) -> None:
    with ThreadPoolExecutor(4) as threads:
        found = [*threads.map(lambda i: served.ask("/v1/completions", body(i)), range(4))]
    assert [one.text for one in found] == [texts[i] for i in range(4)]
    assert {one.n_ends for one in found} == {1}


def test_equal_prefixes_go_to_one_replica(served: ServedModel) -> None:
    begin = "A long text that all of these begin with. " * 20
    asked = [{"prompt": f"{begin}{i}", "max_tokens": 1} for i in range(6)]
    alike = {served.ask("/v1/completions", one).replica for one in asked}
    assert len(alike) == 1
    different = {served.ask("/v1/completions", body(i, 1)).replica for i in range(24)}
    assert len(different) == 2


def test_a_client_that_hangs_up_frees_its_slot(served: ServedModel) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", served.server.port, timeout=60)
    connection.request("POST", "/v1/completions", json.dumps(body(0, 1900)))
    connection.getresponse().read(100)
    assert sum(one["running"] for one in served.statuses().values()) == 1
    connection.sock.close()
    connection.close()
    until(lambda: not any(one["running"] for one in served.statuses().values()), 30)


def test_ray_listens_on_loopback_only(served: ServedModel) -> None:
    listening = set()
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[1].split(":")[0] not in LOOPBACK:
                listening.add(f"socket:[{words[9]}]")
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
            links = {os.readlink(link) for link in (process / "fd").iterdir()}
        except OSError:
            continue
        if b"ray::" in command or b"raylet" in command or b"gcs_server" in command:
            assert not links & listening, command[:200]


def under_load(served: ServedModel, n: int, fault: Any) -> list[Outcome]:
    """The outcomes of requests during which a fault happens once texts are generated."""
    found: list[Outcome | None] = [None] * n

    def ask(i: int) -> None:
        found[i] = served.ask("/v1/completions", body(i))

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(n)]
    for thread in threads:
        thread.start()
    until(lambda: all(one["running"] for one in served.statuses().values()), 30)
    fault()
    for thread in threads:
        thread.join(120)
    assert None not in found  # each has ended
    return [one for one in found if one is not None]


def check(outcomes: list[Outcome], texts: dict[int, str]) -> None:
    """Each request has its whole answer once, or one clear error."""
    for i, one in enumerate(outcomes):
        if one.errors:
            assert len(one.errors) == 1 and not one.n_ends
            assert "lost" in one.errors[0]
            if one.status == 200:
                assert texts[i].startswith(one.text.rstrip("\ufffd"))
            else:
                assert one.status == 503
        else:
            assert (one.status, one.text, one.n_ends) == (200, texts[i], 1)


def test_a_replica_is_killed_under_load(served: ServedModel, texts: dict[int, str]) -> None:
    before = served.statuses()
    victim, other = before

    outcomes = under_load(served, 12, lambda: os.kill(before[victim]["pid"], signal.SIGKILL))
    check(outcomes, texts)
    assert any(one.errors for one in outcomes) and any(not one.errors for one in outcomes)
    wait_for_replicas(served)
    after = served.statuses()
    assert victim not in after
    # none was computed twice: those of the living replicas are those that clients got from them
    n_served = sum(one["served"] for one in after.values()) - before[other]["served"]
    assert n_served == sum(one.replica in after for one in outcomes)
    with ThreadPoolExecutor(4) as threads:
        later = [*threads.map(lambda i: served.ask("/v1/completions", body(i)), range(8))]
    check(later, texts)
    assert not any(one.errors for one in later)


def test_a_node_is_lost_under_load(served: ServedModel, texts: dict[int, str]) -> None:
    wait_for_replicas(served)
    node = served.nodes.pop()
    outcomes = under_load(served, 8, lambda: served.cluster.remove_node(node, allow_graceful=False))
    check(outcomes, texts)
    later = [served.ask("/v1/completions", body(i)) for i in range(4)]
    assert not any(one.errors for one in later)
    served.nodes.append(served.cluster.add_node(**node_arguments(1)))
    wait_for_replicas(served)


def test_more_requests_than_replicas_take_wait(served: ServedModel, texts: dict[int, str]) -> None:
    with ThreadPoolExecutor(24) as threads:  # two replicas take four each
        asked = threads.map(lambda i: served.ask("/v1/completions", body(i % 12)), range(24))
        check([*asked], texts | {i: texts[i - 12] for i in range(12, 24)})


def test_the_end_drains(served: ServedModel, texts: dict[int, str]) -> None:
    """The last test of this server: running and waiting requests are answered, new ones refused."""
    found: list[Outcome | None] = [None] * 12

    def ask(i: int) -> None:
        found[i] = served.ask("/v1/completions", body(i))

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(12)]
    for thread in threads:
        thread.start()
    until(lambda: any(one["running"] for one in served.statuses().values()), 30)
    time.sleep(0.2)
    served.server.refuse()
    refused = served.ask("/v1/completions", body(0))
    assert (refused.status, refused.errors) == (503, ["the server is shutting down"])
    served.server.drain()
    for thread in threads:
        thread.join(60)
    for i, one in enumerate(found):
        assert one is not None and (one.status, one.text, one.n_ends) == (200, texts[i], 1)
