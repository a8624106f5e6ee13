"""Threads for work that must not run in the event loop, and that do not keep the process alive.

    workers = Workers(2, "prepare")
    future = workers.submit(work)                  # a `concurrent.futures.Future`
    value = await workers.run(work)                # in the event loop
    workers.close()                                # work that has not begun is cancelled

Python waits for the threads of a `ThreadPoolExecutor` when it ends, however long they take; those
of `asyncio.to_thread` are such.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
_Task = tuple[Callable[[], Any], "Future[Any]"]


class Workers:
    """Daemon threads that run work in the order of `submit`.

    Args:
        n: number of threads; each begins when it is first needed.
        name: of the threads.
    """

    def __init__(self, n: int, name: str) -> None:
        self._n, self._name = n, name
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._n_open = 0  # tasks that have not ended
        self._is_closed = False

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Run work in one of the threads; cancelling the result keeps it from beginning.

        Raises:
            RuntimeError: after `close`.
        """
        done: Future[T] = Future()
        with self._lock:
            if self._is_closed:
                raise RuntimeError(f"the threads {self._name!r} have been closed")
            self._n_open += 1
            self._tasks.put((work, done))
            if len(self._threads) < min(self._n, self._n_open):
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._threads.append(thread)
                thread.start()
        return done

    async def run(self, work: Callable[[], T]) -> T:
        """The result of work in one of the threads.

        Raises:
            RuntimeError: after `close`.
        """
        return await asyncio.wrap_future(self.submit(work))

    @property
    def is_busy(self) -> bool:
        """Whether work has not ended."""
        return self._n_open > 0

    def close(self) -> None:
        """Cancel the work that has not begun; the threads end after what they run now."""
        with self._lock:
            self._is_closed = True
            while not self._tasks.empty():
                task = self._tasks.get()
                if task is not None:
                    task[1].cancel()
                    self._n_open -= 1
            for _ in self._threads:
                self._tasks.put(None)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            work, done = task
            if done.set_running_or_notify_cancel():
                try:
                    done.set_result(work())
                except BaseException as error:
                    done.set_exception(error)
            del task, work, done  # what waits for the next task keeps nothing alive
            with self._lock:
                self._n_open -= 1
