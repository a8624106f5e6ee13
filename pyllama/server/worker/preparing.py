"""The work of requests before they wait for the engine: templates, grammars, tokens, samplers.

    preparing = Preparing()
    made = await preparing.run(work)               # in its lane; ends when its client goes away
    check_wanted()                                 # in ``work``, between its parts

Work takes milliseconds to seconds, so it never runs in the event loop, but in one of the two
threads of `threads`. What waits for its thread is dropped when its client has gone; what runs ends
at the next `check_wanted`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import ContextVar
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from ..request.errors import shutting_down
from .kept_streams import conversation_of
from .threads import LANE

T = TypeVar("T")
CLIENT: ContextVar[Request | None] = ContextVar("client", default=None)
"""The request of the running task, once its body has been read."""
_of_thread = threading.local()


class Preparing:
    """Runs the work of requests in threads.

    Args:
        discard: takes what work returns after its client has gone; called in its thread.
    """

    def __init__(self, discard: Callable[[Any], None]) -> None:
        self._discard = discard
        self._open: dict[Future[Any], threading.Event] = {}  # work, and whether it is unwanted
        self._results: set[asyncio.Future[Any]] = set()  # that somebody waits for
        self._refuses = False

    async def run(self, work: Callable[[], T]) -> T:
        """Run work in a thread.

        Raises:
            ClientDisconnect: the client has gone, and nobody reads its stream later.
            ApiError: the server ends (503).
        """
        unwanted, request = threading.Event(), CLIENT.get()
        future = LANE.get().submit(lambda: _run(work, unwanted))
        self._open[future] = unwanted
        future.add_done_callback(self._open.pop)
        done = asyncio.wrap_future(future)
        self._results.add(done)
        try:
            kept = request is None or bool(conversation_of(request))
            return await while_connected(None if kept else request, done)
        except BaseException as error:
            unwanted.set()
            future.add_done_callback(self._ended_unwanted)
            if self._refuses and isinstance(error, asyncio.CancelledError):
                raise shutting_down() from None
            raise
        finally:
            self._results.discard(done)

    def refuse(self) -> None:
        """Let no request wait any longer for work that has not ended; from the event loop."""
        self._refuses = True
        for done in self._results:
            done.cancel()

    @property
    def is_busy(self) -> bool:
        """Whether work has not ended."""
        return bool(self._open)

    def _ended_unwanted(self, future: Future[Any]) -> None:
        if not future.cancelled() and future.exception() is None:
            self._discard(future.result())

    def close(self) -> None:
        """Drop what waits; running work ends at its next `check_wanted`."""
        for future, unwanted in list(self._open.items()):
            future.cancel()
            unwanted.set()


def check_wanted() -> None:
    """Raise ClientDisconnect if the client of the work in this thread has gone."""
    unwanted: threading.Event | None = getattr(_of_thread, "unwanted", None)
    if unwanted is not None and unwanted.is_set():
        raise ClientDisconnect


async def while_connected(request: Request | None, done: asyncio.Future[T]) -> T:
    """Wait for a result, unless the client of a request goes away; None for no client.

    Raises:
        ClientDisconnect: it has gone; ``done`` is cancelled.
    """
    waited: list[asyncio.Future[Any]] = [done]
    if request is not None:
        waited.append(asyncio.ensure_future(disconnected(request)))
    try:
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if not done.done():
            raise ClientDisconnect
        return done.result()
    finally:
        for one in waited:
            one.cancel()


async def disconnected(request: Request) -> None:
    """Return when the client has closed the connection; what is left of the body is dropped."""
    try:
        while (await request.receive())["type"] != "http.disconnect":
            pass
    except ClientDisconnect:
        pass


def _run(work: Callable[[], T], unwanted: threading.Event) -> T:
    _of_thread.unwanted = unwanted
    try:
        check_wanted()
        return work()
    finally:
        _of_thread.unwanted = None
