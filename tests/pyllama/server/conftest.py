"""Fixtures: servers of a tiny model, in the process and at a real socket."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from starlette.testclient import TestClient

from pyllama import Context, Model
from pyllama.engine import Engine
from pyllama.sampling import SamplingParams
from pyllama.server.app import make_app
from pyllama.server.http.listener import Drain, DrainingServer, Listening, open_sockets
from pyllama.server.request.options import ServerOptions
from pyllama.server.worker.lifecycle import Lifecycle
from pyllama.server.worker.served import ServedModel
from pyllama.speculative import Speculation

from ...waiting import until

Serve = Callable[..., TestClient]
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(20)).decode()


def make_served(
    model: Model,
    n_slots: int = 2,
    n_ctx: int = 1024,
    unified: bool = True,
    speculation: Speculation | None = None,
    **options: Any,
) -> ServedModel:
    """A served model; ``options`` are those of `ServerOptions`."""
    context = Context(model, n_ctx=n_ctx, n_threads=1, n_seq_max=n_slots, unified=unified)
    options.setdefault("sampling", SamplingParams(seed=1))
    settings = ServerOptions(**options)
    return ServedModel(Engine(context, speculation=speculation), settings)


@pytest.fixture
def serve(model: Model) -> Iterator[Serve]:
    """A function that starts a server in this process and returns its client."""
    with ExitStack() as stack:

        def start(**options: Any) -> TestClient:
            served = make_served(model, **options)
            client = TestClient(make_app(served), base_url="http://localhost")
            client.served = served  # type: ignore[attr-defined]
            return stack.enter_context(client)

        yield start


@pytest.fixture
def client(serve: Serve) -> TestClient:
    """The client of a server with the default options."""
    return serve()


@contextmanager
def held(served: ServedModel, n_steps: int = 4) -> Iterator[threading.Event]:
    """Once all texts have a slot and some steps, none makes progress until the event; jobs run."""
    go_on, step = threading.Event(), served.engine.step
    left = iter(range(n_steps))

    def held_step() -> list[Any]:
        is_free = go_on.is_set() or served.runner.n_deferred or next(left, None) is not None
        return step() if is_free or go_on.wait(0.001) else []

    served.engine.step = held_step  # type: ignore[method-assign]
    try:
        yield go_on
    finally:
        go_on.set()


@contextmanager
def at_a_socket(app: Any, drain: Drain | None = None, **options: Any) -> Iterator[int]:
    """Serve an application at a real socket in a thread; yields the port.

    Args:
        options: those of `Listening`.
    """
    where = Listening(port=0, **{"shutdown_s": 1, **options})
    sockets = open_sockets(where)
    server = DrainingServer(app, where, drain)
    thread = threading.Thread(target=server.run, kwargs={"sockets": sockets})
    thread.start()
    try:
        until(lambda: server.started or not thread.is_alive())
        yield sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
        for one in sockets:
            one.close()


@contextmanager
def listening(served: ServedModel, **options: Any) -> Iterator[int]:
    """Serve a model at a real socket in a thread; yields the port."""
    life = Lifecycle.of(served)
    with at_a_socket(make_app(life), life.drain, **options) as port:
        yield port


def events(text: str) -> list[dict[str, Any]]:
    """The data of server-sent events; ``[DONE]`` must be the last."""
    found = []
    for block in text.split("\n\n"):
        lines = [line for line in block.split("\n") if line.startswith("data: ")]
        found += [line.removeprefix("data: ") for line in lines]
    assert "[DONE]" not in found[:-1]
    return [json.loads(line) for line in found if line != "[DONE]"]
