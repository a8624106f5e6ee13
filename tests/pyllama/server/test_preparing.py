"""The work of requests ends with its client."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request

from pyllama.server.request.errors import ApiError
from pyllama.server.worker.preparing import CLIENT, Preparing, check_wanted
from pyllama.server.worker.threads import LANE, LARGE, SMALL

from ...waiting import WAIT_S


class Client:
    """A client that can go away."""

    def __init__(self, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        self.gone = asyncio.Event()
        self._headers = headers

    async def _receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    def begin(self) -> None:
        """Make it the client of the running task."""
        scope = {"type": "http", "headers": self._headers}
        CLIENT.set(Request(scope, self._receive))


def run(test: Callable[[Preparing, list[Any]], Awaitable[None]]) -> None:
    discarded: list[Any] = []
    preparing = Preparing(discarded.append)
    try:
        asyncio.run(asyncio.wait_for(test(preparing, discarded), WAIT_S))
    finally:
        preparing.close()


def test_results_and_errors() -> None:
    async def test(preparing: Preparing, discarded: list[Any]) -> None:
        Client().begin()
        assert await preparing.run(lambda: 3) == 3
        with pytest.raises(ZeroDivisionError):
            await preparing.run(lambda: 1 // 0)
        assert not discarded and not preparing.is_busy

    run(test)


def test_running_work_ends_with_its_client() -> None:
    async def test(preparing: Preparing, discarded: list[Any]) -> None:
        client, has_begun, has_ended = Client(), threading.Event(), threading.Event()
        client.begin()

        def work() -> None:
            has_begun.set()
            try:
                while True:
                    check_wanted()
            finally:
                has_ended.set()

        task = asyncio.ensure_future(preparing.run(work))
        await asyncio.to_thread(has_begun.wait)
        client.gone.set()
        with pytest.raises(ClientDisconnect):
            await task
        await asyncio.to_thread(has_ended.wait)
        assert not discarded

    run(test)


def test_work_that_waits_is_dropped_and_its_result_is_discarded() -> None:
    async def test(preparing: Preparing, discarded: list[Any]) -> None:
        go, n_begun = threading.Event(), threading.Semaphore(0)

        def blocking() -> str:
            n_begun.release()
            go.wait()
            return "made"

        client = Client()
        client.begin()
        running = []
        for lane in (SMALL, LARGE):
            LANE.set(lane)
            running.append(asyncio.ensure_future(preparing.run(blocking)))
            await asyncio.to_thread(n_begun.acquire)
        waiting = asyncio.ensure_future(preparing.run(blocking))
        await asyncio.sleep(0)
        client.gone.set()
        for task in (*running, waiting):
            with pytest.raises(ClientDisconnect):
                await task
        go.set()
        Client().begin()
        await preparing.run(lambda: None)
        while len(discarded) < 2:
            await asyncio.sleep(0)
        assert discarded == ["made", "made"] and not n_begun.acquire(blocking=False)

    run(test)


def test_a_stream_that_is_kept_is_prepared_without_its_client() -> None:
    async def test(preparing: Preparing, discarded: list[Any]) -> None:
        client = Client(((b"x-conversation-id", b"a"),))
        client.begin()
        client.gone.set()
        assert await preparing.run(lambda: 5) == 5

    run(test)


def test_small_requests_overtake_large_ones_which_take_turns() -> None:
    async def test(preparing: Preparing, discarded: list[Any]) -> None:
        may_end, order = threading.Event(), list[str]()
        LANE.set(LARGE)
        large = asyncio.ensure_future(
            preparing.run(lambda: (may_end.wait(), order.append("large")))
        )
        other = asyncio.ensure_future(preparing.run(lambda: order.append("other")))
        LANE.set(SMALL)
        assert await preparing.run(lambda: threading.current_thread().name) == "small"
        assert not order
        may_end.set()
        await large
        await other
        assert order == ["large", "other"]

    run(test)


def test_a_server_that_ends_waits_for_no_work() -> None:
    async def test(preparing: Preparing, discarded: list[Any]) -> None:
        has_begun, may_end = threading.Event(), threading.Event()

        def work() -> None:
            has_begun.set()
            may_end.wait()

        tasks = [asyncio.ensure_future(preparing.run(work)) for _ in range(4)]
        await asyncio.to_thread(has_begun.wait)
        preparing.refuse()
        for task in tasks:
            with pytest.raises(ApiError, match="shutting down"):
                await task
        assert preparing.is_busy
        may_end.set()

    run(test)


def test_closing_ends_running_work() -> None:
    async def test(preparing: Preparing, discarded: list[Any]) -> None:
        has_begun = threading.Event()

        def work() -> None:
            has_begun.set()
            while True:
                check_wanted()

        task = asyncio.ensure_future(preparing.run(work))
        await asyncio.to_thread(has_begun.wait)
        preparing.close()
        with pytest.raises(ClientDisconnect):
            await task

    run(test)
