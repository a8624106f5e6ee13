"""A model in this process, that answers requests without a socket.

    model = LoadedModel(options, "x.gguf")         # loads: seconds to minutes
    await model.start()                            # in the event loop that will serve it
    async for message in model.respond(call): ...  # ASGI messages, of any path of the server
    await model.close()                            # waits for running requests

It is the server's application (`pyllama.server.app.make_app`), so that replicas and batches give
its answers. One event loop; Ray is not imported.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.types import Message, Scope

from ..engine import Engine
from ..engine.prefix_store import PrefixStore
from ..errors import ClusterError
from ..runtime.context import Context
from ..runtime.model import Model
from ..server.app import make_app
from ..server.worker.lifecycle import Lifecycle
from ..server.worker.served import ServedModel
from ..server.worker.warm_up import compile_rest, warm_up
from .options import ReplicaOptions

_SCOPE = (
    "type", "asgi", "http_version", "method", "scheme", "path", "raw_path", "query_string",
    "root_path", "client", "server",
)  # fmt: skip  # what an application may need, without the objects of the process that listens


@dataclass(frozen=True)
class ReplicaCall:
    """A request on its way to a replica.

    Attributes:
        scope: of ASGI, without objects of a process.
        body: the whole body.
        model: name of the model.
    """

    scope: dict[str, Any]
    body: bytes
    model: str

    @classmethod
    def of(cls, scope: Scope, body: bytes, model: str) -> ReplicaCall:
        """The call for a request that has arrived."""
        kept = {name: scope[name] for name in _SCOPE if name in scope}
        kept["headers"] = [(bytes(k), bytes(v)) for k, v in scope["headers"]]
        return cls(kept, body, model)

    @classmethod
    def post(cls, path: str, body: bytes, model: str, headers: dict[str, str]) -> ReplicaCall:
        """The call for a request of this process."""
        fields = {"host": "localhost", "content-type": "application/json", **headers}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(k.encode(), v.encode()) for k, v in fields.items()],
        }
        return cls(scope, body, model)


@dataclass
class Answer:
    """A whole response."""

    status: int = 0
    body: bytes = b""


@dataclass(eq=False)
class LoadedModel:
    """A model with its engine and the server's application.

    Args:
        options: of the replica.
        name: of the model.

    Raises:
        ClusterError: there is no such model.
        PyllamaError, OSError: as loading a model does.
    """

    options: ReplicaOptions
    name: str
    n_running: int = 0
    served: ServedModel = field(init=False)
    _is_started: bool = False
    _is_closed: bool = False

    def __post_init__(self) -> None:
        self.served = _load(self.options, self.name)
        self._life = Lifecycle.of(self.served)
        self._app = make_app(self._life)

    async def start(self) -> None:
        """Let the engine's thread run, for the running event loop; the second call does nothing."""
        if not self._is_started:
            self._is_started = True
            self._life.begin()
            self._life.later(compile_rest)

    async def close(self) -> None:
        """Wait for the running requests, end the engine's thread, and free the memory."""
        while self.n_running:
            await asyncio.sleep(0.05)
        if not self._is_closed:
            self._is_closed = True
            if self._is_started:
                await self._life.end()

    async def check(self) -> None:
        """Wait until the engine's thread has run a job. Raises: ClusterError, it has ended."""
        if not self.served.runner.is_alive:
            raise ClusterError(f"{self.name}: the engine's thread has ended")
        await self.served.runner.call(lambda engine: None)

    async def respond(self, call: ReplicaCall) -> AsyncIterator[Message]:
        """Yield the messages of a response; a caller that stops early aborts the request."""
        messages: asyncio.Queue[Message | None] = asyncio.Queue()
        parts = [{"type": "http.request", "body": call.body, "more_body": False}]
        gone = asyncio.Event()

        async def receive() -> Message:
            if parts:
                return parts.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            messages.put_nowait(message)

        async def run() -> None:
            try:
                await self._app(dict(call.scope), receive, send)
            finally:
                messages.put_nowait(None)

        self.n_running += 1
        task = asyncio.create_task(run())
        try:
            while (message := await messages.get()) is not None:
                yield message
            await task
        finally:
            gone.set()
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task
            self.n_running -= 1

    async def answer(self, call: ReplicaCall) -> Answer:
        """The whole response."""
        found = Answer()
        async for message in self.respond(call):
            if message["type"] == "http.response.start":
                found.status = message["status"]
            else:
                found.body += message.get("body", b"")
        return found


def _load(options: ReplicaOptions, name: str) -> ServedModel:
    if name not in options.models:
        raise ClusterError(f"there is no model {name!r}; there are {', '.join(options.models)}")
    path = options.models[name]
    threads = options.context.get("n_threads")
    model = Model.load(path, n_threads=threads, **options.loading)
    context = Context(model, **options.context)
    server = replace(options.server, model_path=path, aliases=(name,))
    prefixes = PrefixStore(options.cache_bytes) if options.cache_bytes else None
    engine = Engine(context, prefixes=prefixes)
    served = ServedModel(engine, server)
    served.chat_format()  # a wrong template is found now
    warm_up(served)
    return served
