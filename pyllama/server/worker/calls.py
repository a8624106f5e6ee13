"""Calls for the thread that steps an engine, between two steps.

calls = EngineCalls()
future = calls.add(lambda engine: ...)         # from any thread
calls.run(engine)                              # those that may run now
calls.end(error)                               # the others, and all later ones
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from ...engine import Engine

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EngineCall:
    """A call for the thread that steps, and its result."""

    work: Callable[[Engine], Any]
    may_run: Callable[[Engine], bool]
    done: Future[Any]

    def run(self, engine: Engine) -> bool:
        """Run the call if it may run now. Returns False if it must be tried again later."""
        if self.done.cancelled():
            return True
        try:
            if not self.may_run(engine):
                return False
        except Exception as error:
            self.fail(error)
            return True
        if self.done.set_running_or_notify_cancel():
            try:
                self.done.set_result(self.work(engine))
            except BaseException as error:
                self.done.set_exception(error)
        return True

    def fail(self, error: Exception) -> None:
        """End the call with an error, unless nobody waits for it."""
        if self.done.set_running_or_notify_cancel():
            self.done.set_exception(error)


class EngineCalls:
    """The calls that have not run, in the order of `add`.

    Attributes:
        error: why no call runs any more; None while they do.
        has_new: whether calls have arrived since the last `run`.
    """

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.has_new = False
        self._lock = threading.Lock()
        self._calls: list[EngineCall] = []

    def add(self, work: Callable[[Engine], T], may_run: Callable[[Engine], bool]) -> Future[T]:
        """Run work when ``may_run`` returns true; cancelling the result removes it before.

        Raises: the error of `end`.
        """
        done: Future[T] = Future()
        with self._lock:
            if self.error is not None:
                raise self.error
            self._calls.append(EngineCall(work, may_run, done))
            self.has_new = True
        return done

    def run(self, engine: Engine) -> None:
        """Run the calls that may run now; in the thread that steps."""
        if self._calls:
            calls = self._take()
            late = [call for call in calls if not call.run(engine)]
            with self._lock:
                self._calls[:0] = late

    def end(self, error: Exception) -> None:
        """End all calls with an error; in the thread that steps."""
        with self._lock:
            self.error = error
        for call in self._take():
            call.fail(error)

    def _take(self) -> list[EngineCall]:
        with self._lock:
            calls, self._calls, self.has_new = self._calls, [], False
        return calls
