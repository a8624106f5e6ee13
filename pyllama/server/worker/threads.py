"""Threads for work that must not run in the event loop, and that do not keep the process alive.

    value = await LANE.get().run(work)             # in the event loop: the thread of this request
    future = SMALL.submit(work)                    # a `concurrent.futures.Future`
    workers = Workers(2, "forward")                # other threads
    workers.close()                                # work that has not begun is cancelled

All Python for requests is in two threads, `SMALL` and `LARGE`: each further one that computes would
take as much of the GIL as the engine gets, so that its steps would be longer by their number. Small
requests have a thread of their own so that they overtake large ones.

Python waits for the threads of a `ThreadPoolExecutor` when it ends, however long they take; those
of `asyncio.to_thread` are such.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import ContextVar
from itertools import count
from queue import PriorityQueue
from typing import Any, TypeVar

T = TypeVar("T")
_Task = tuple[Callable[[], Any], "Future[Any]"]
_MAX_REST_S = 0.05


class Workers:
    """Daemon threads that run work in the order of `submit`; the last work of a request overtakes.

    Args:
        n: number of threads; each begins when it is first needed.
        name: of the threads.
        rests: whether a thread rests after each task for as long as it took, up to 50 ms: `json`
            and `re` hold the GIL for so long in one call, and a step of the engine must fit between
            two of them.
    """

    def __init__(self, n: int, name: str, *, rests: bool = False) -> None:
        self._n, self._name, self._rests = n, name, rests
        self._tasks: PriorityQueue[tuple[bool, int, _Task | None]] = PriorityQueue()
        self._numbers = count()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._n_open = 0  # tasks that have not ended
        self._is_closed = False

    def submit(self, work: Callable[[], T], *, ends: bool = False) -> Future[T]:
        """Run work in one of the threads; cancelling the result keeps it from beginning.

        Args:
            ends: whether it is the last work of a request; it begins before all other work.

        Raises:
            RuntimeError: after `close`.
        """
        done: Future[T] = Future()
        with self._lock:
            if self._is_closed:
                raise RuntimeError(f"the threads {self._name!r} have been closed")
            self._n_open += 1
            self._tasks.put((not ends, next(self._numbers), (work, done)))
            if len(self._threads) < min(self._n, self._n_open):
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._threads.append(thread)
                thread.start()
        return done

    async def run(self, work: Callable[[], T], *, ends: bool = False) -> T:
        """The result of work in one of the threads: see `submit`.

        Raises:
            RuntimeError: after `close`.
        """
        return await asyncio.wrap_future(self.submit(work, ends=ends))

    @property
    def is_busy(self) -> bool:
        """Whether work has not ended."""
        return self._n_open > 0

    def close(self) -> None:
        """Cancel the work that has not begun; the threads end after what they run now."""
        with self._lock:
            self._is_closed = True
            while not self._tasks.empty():
                _, _, task = self._tasks.get()
                if task is not None:
                    task[1].cancel()
                    self._n_open -= 1
            for _ in self._threads:
                self._tasks.put((True, next(self._numbers), None))

    def _run(self) -> None:
        while (task := self._tasks.get()[2]) is not None:
            work, done = task
            begin_s = time.thread_time()
            if done.set_running_or_notify_cancel():
                try:
                    done.set_result(work())
                except BaseException as error:
                    done.set_exception(error)
            del task, work, done  # what waits for the next task keeps nothing alive
            with self._lock:
                self._n_open -= 1
            if self._rests:
                time.sleep(min(time.thread_time() - begin_s, _MAX_REST_S))


SMALL = Workers(1, "small")
"""For the work of most requests; each task takes milliseconds."""
LARGE = Workers(1, "large", rests=True)
"""For bodies, responses and other work that may take a second."""
LANE: ContextVar[Workers] = ContextVar("lane", default=SMALL)
"""The one of both for the running request, once its body has been read."""
