"""A lock that a forked child gets fresh, and that knows whether it was held by another thread then.

    lock = ForkLock("this context", advice="call reset()")
    with lock: ...

A child has the memory of its parent and only the thread that forked. What another thread was
changing under a lock is half changed for ever, and nobody is there to release the lock. So in the
child the first to take such a lock calls ``recover``, or gets ``Forked`` until ``renew()``.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from types import TracebackType

from ..errors import PyllamaError


class Forked(PyllamaError, RuntimeError):
    """The process was forked while another thread was using the object."""


class ForkLock:
    """A reentrant mutex.

    Args:
        what: the object that it guards, for messages.
        recover: makes the object usable again in a child, called with the lock held.
        advice: what to do where there is no ``recover``, for the message of ``Forked``.
    """

    def __init__(
        self, what: str, recover: Callable[[], None] | None = None, advice: str = ""
    ) -> None:
        self._what, self._recover, self._advice = what, recover, advice
        self._lock = threading.RLock()
        self._interrupted = False
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()
        if self._interrupted:
            try:
                self._mend()
            except BaseException:
                self._lock.release()
                raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._lock.release()

    def renew(self) -> None:
        """What the lock guards is whole again."""
        self._interrupted = False

    def _mend(self) -> None:
        if self._recover is None:
            raise Forked(
                f"{self._what} was in use by another thread when this process was forked; "
                f"{self._advice or 'make another one'}"
            )
        self._interrupted = False
        try:
            self._recover()
        except BaseException:
            self._interrupted = True
            raise

    def _after_fork(self) -> None:
        """In the child, where only this thread is left."""
        if self._lock.acquire(blocking=False):  # nobody had it, or this thread
            self._lock.release()
        else:
            self._lock, self._interrupted = threading.RLock(), True


_locks: weakref.WeakSet[ForkLock] = weakref.WeakSet()


def _renew_all() -> None:
    for lock in list(_locks):
        lock._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
