"""When the model of a server is loaded: after the port is open, in a thread.

    life = Lifecycle(load, options)                # load() returns a `Served`
    app = make_app(life)                           # its lifespan begins to load
    served = life.get()                      # ApiError 503 until the model is loaded

All methods but the call of ``load`` run in the event loop, which is never blocked.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from .errors import ApiError
from .options import ServerOptions
from .served import Served

T = TypeVar("T")


class Lifecycle:
    """The model of a server, which is loaded while the server already answers.

    Args:
        load: loads the model; called in a thread.
        options: of the server, as far as they are known without the model.

    Attributes:
        on_ready: called when the model has been loaded.
        on_failed: called when it cannot be loaded.
        error: why it could not be loaded.
    """

    def __init__(self, load: Callable[[], Served], options: ServerOptions) -> None:
        self.options = options
        self.error: BaseException | None = None
        self.on_ready: Callable[[Served], object] = _ignore
        self.on_failed: Callable[[BaseException], object] = _ignore
        self._load = load
        self._served: Served | None = None
        self._loading: asyncio.Task[None] | None = None

    @classmethod
    def of(cls, served: Served) -> Lifecycle:
        """The lifecycle of a model that is loaded already."""

        def load() -> Served:
            return served

        life = cls(load, served.options)
        life._served = served
        return life

    def begin(self) -> None:
        """Begin to load."""
        if self._served is not None:
            self._served.runner.start(asyncio.get_running_loop())
        else:
            self._loading = asyncio.create_task(self._first())

    async def end(self) -> None:
        """Free the model; one that is still being loaded is not waited for."""
        if self._loading is not None:
            self._loading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._loading
        if self._served is not None:
            await self._served.runner.close(0.0)
            self._served.close()

    def get(self) -> Served:
        """The model. Raises: ApiError, it is not loaded yet (503)."""
        if self._served is None:
            raise ApiError(503, "Loading model")
        return self._served

    async def _first(self) -> None:
        try:
            served = await _in_thread(self._load)
        except Exception as error:
            self.error = error
            self.on_failed(error)
            return
        served.runner.start(asyncio.get_running_loop())
        self._served = served
        self.on_ready(served)


def _in_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    """Run work in a thread that does not keep the process from ending."""
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name="load", daemon=True).start()
    return asyncio.wrap_future(done)


def _ignore(value: Any) -> None:
    pass
