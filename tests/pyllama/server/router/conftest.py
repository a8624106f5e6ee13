"""Children without processes: for the pool alone, and with a small HTTP server in the same loop."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack
from types import MappingProxyType
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("aiohttp")

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from pyllama.server.http.listener import Listening, open_sockets
from pyllama.server.request.options import ServerOptions
from pyllama.server.router.app import make_router
from pyllama.server.router.catalog import CatalogEntry
from pyllama.server.router.pool import Pool
from pyllama.server.router.process import Report

from ....waiting import WAIT_S

INFO = {"id": "?", "meta": {"n_params": 7, "size": 1234, "desc": "llama 7B Q4_0"}}


class FakeChild:
    """A child that does what the test says.

    Attributes:
        orders: what it was told, ``exit`` or ``kill``.
        obeys: whether it ends when it is asked to.
    """

    def __init__(self, entry: CatalogEntry, report: Report) -> None:
        self.entry, self.report = entry, report
        self.port, self.key, self.last_line = 0, f"key of {entry.name}", ""
        self.orders: list[str] = []
        self.obeys = True
        self.exit: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def ready(self) -> None:
        self.report({"state": "loaded", "info": INFO})

    def end(self, code: int, last_line: str = "") -> None:
        self.last_line = last_line
        if not self.exit.done():
            self.exit.set_result(code)

    def ask_exit(self) -> None:
        self.orders.append("exit")
        if self.obeys:
            self.end(0)

    def kill(self) -> None:
        self.orders.append("kill")
        self.end(-9)

    async def wait(self) -> int:
        return await asyncio.shield(self.exit)


class HttpChild(FakeChild):
    """A child that answers requests by what their prompt says, in the loop of the router.

    Attributes:
        seen: the headers of the requests.
        n_aborted: streams that were closed early.
        go: lets a slow answer or stream go on.
    """

    def __init__(self, entry: CatalogEntry, report: Report) -> None:
        super().__init__(entry, report)
        self.seen: list[dict[str, str]] = []
        self.n_aborted = 0
        self.go = asyncio.Event()
        any_path = Route("/{path:path}", self.answer, methods=["GET", "POST", "DELETE"])
        sockets = open_sockets(Listening(port=0))
        self.port = sockets[0].getsockname()[1]
        app = Starlette(routes=[any_path])
        config = uvicorn.Config(app, lifespan="off", log_config=None, access_log=False, ws="none")
        self.server = uvicorn.Server(config)
        self._serving = asyncio.create_task(self.server._serve(sockets))
        self._starting = asyncio.create_task(self.begin())

    async def begin(self) -> None:
        while not self.server.started:
            await asyncio.sleep(0.001)
        if "broken" in self.entry.name:
            self.end(1, "error: no such file")
        else:
            self.ready()

    def end(self, code: int, last_line: str = "") -> None:
        self.server.should_exit = self.server.force_exit = True
        if code != 0:  # as a process that dies: nobody listens any more
            for one in self.server.servers:
                one.close()
            for connection in list(self.server.server_state.connections):
                connection.transport.abort()
        super().end(code, last_line)

    async def wait(self) -> int:
        code = await super().wait()
        self._starting.cancel()
        await asyncio.wait([self._serving, self._starting])
        return code

    async def answer(self, request: Request) -> Response:
        self.seen.append(dict(request.headers))
        if request.headers.get("authorization") != f"Bearer {self.key}":
            return JSONResponse({"error": {"code": 401, "message": "Invalid API Key"}}, 401)
        body = await request.json() if request.method == "POST" else {}
        if request.url.path == "/v1/streams/lookup":
            return JSONResponse([{"by": self.entry.name, "asked": body}])
        prompt = body.get("prompt", "")
        if prompt == "busy":
            headers = {"Retry-After": "7", "X-Request-Id": "of-the-child"}
            return JSONResponse({"error": {"code": 429}}, 429, headers=headers)
        if prompt == "slow":
            await self.go.wait()
        if body.get("stream"):
            kind = body.get("media_type", "text/event-stream")
            return StreamingResponse(self.stream(prompt), media_type=kind)
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return JSONResponse(
            {"by": self.entry.name, "target": target, "body": body},
            headers={"Access-Control-Allow-Origin": "https://child.example", "X-Own": "1"},
        )

    async def stream(self, prompt: str) -> AsyncIterator[str]:
        done = False
        try:
            yield "data: 0\n\n"
            if prompt == "die":
                self.end(1)
                return
            for i in itertools.count(1) if prompt == "endless" else range(1, 3):
                if prompt == "step":
                    await self.go.wait()
                    self.go.clear()
                await asyncio.sleep(0.01 if prompt == "endless" else 0)
                yield f"data: {i}\n\n"
            done = True
        finally:
            self.n_aborted += not done


class Fleet:
    """The children of a router by name, in the order of their start."""

    def __init__(self, kind: Callable[[CatalogEntry, Report], FakeChild] = HttpChild) -> None:
        self.kind = kind
        self.children: list[Any] = []

    async def spawn(self, entry: CatalogEntry, report: Report) -> FakeChild:
        child = self.kind(entry, report)
        self.children.append(child)
        return child

    def names(self) -> list[str]:
        return [child.entry.name for child in self.children]


NAMES = ("a", "b", "c", "broken")
StartRouter = Callable[..., TestClient]


def entries(*names: str, **options: Any) -> list[CatalogEntry]:
    return [CatalogEntry(name, ("--model", f"{name}.gguf"), **options) for name in names]


def router(fleet: Fleet, found: list[CatalogEntry], autoload: bool = True, **options: Any) -> Any:
    """The application of a router over fake children."""
    pool = Pool(found, fleet.spawn, options.pop("max_models", 4))
    return make_router(pool, ServerOptions(**options), lambda: found, autoload=autoload)


@pytest.fixture
def route() -> Iterator[StartRouter]:
    """A function that starts a router in this process; ``client.fleet`` has its children."""
    with ExitStack() as stack:

        def start(found: list[CatalogEntry] | None = None, **options: Any) -> TestClient:
            fleet = Fleet()
            app = router(fleet, entries(*NAMES) if found is None else found, **options)
            client = TestClient(app, base_url="http://localhost")
            client.fleet = fleet  # type: ignore[attr-defined]
            return stack.enter_context(client)

        yield start


def ask(
    port: int,
    body: dict[str, Any],
    path: str = "/completion",
    headers: Mapping[str, str] = MappingProxyType({}),
) -> socket.socket:
    """Send a POST; the response is left to the caller."""
    data = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(data)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    head = "\r\n".join([*lines, "", ""])
    one = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
    one.sendall(head.encode() + data)
    return one
