"""A lock that survives fork(): the child gets a free one, marked if another thread held it.

    lock = ForkLock("this context", advice="call reset()")
    with lock: ...

A child process has its parent's memory, but only the thread that forked. If another thread held the
lock, the object that it guards may be half changed, and nothing will ever release the lock. So in
the child the first ``with`` calls ``recover``, or raises ``Forked`` until ``mark_consistent()``.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType

from ..errors import Forked


class ForkLock:
    """A reentrant mutex.

    Args:
        what: name of the guarded object, for messages.
        recover: makes the object usable in a child; called with the lock held.
        advice: next step for the message of ``Forked`` where there is no ``recover``.

    Attributes:
        mutex: ``with lock.mutex`` does the same as ``with lock``, in less time.
    """

    def __init__(
        self, what: str, recover: Callable[[], None] | None = None, advice: str = ""
    ) -> None:
        self._what, self._recover, self._advice = what, recover, advice
        self._lock = threading.RLock()
        self.mutex: AbstractContextManager[object] = self._lock
        _locks.add(self)

    def __enter__(self) -> None:
        self.mutex.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._lock.release()

    def mark_consistent(self) -> None:
        """Declare the guarded object consistent after an interrupted change."""
        self.mutex = self._lock

    def _after_fork(self) -> None:
        """Replace the lock in the child, where only this thread is left."""
        if self._lock.acquire(blocking=False):  # free, or held by this thread
            self._lock.release()
        else:
            self._lock, self.mutex = threading.RLock(), _Interrupted(self)


class _Interrupted:
    """The mutex in a child until the guarded object is consistent again."""

    def __init__(self, lock: ForkLock) -> None:
        self._owner = lock

    def __enter__(self) -> None:
        owner = self._owner
        owner._lock.acquire()
        try:
            if owner.mutex is self:  # else another thread recovered it meanwhile
                self._recover_or_raise()
        except BaseException:
            owner._lock.release()
            raise

    def __exit__(self, *error: object) -> None:
        self._owner._lock.release()

    def _recover_or_raise(self) -> None:
        owner = self._owner
        if owner._recover is None:
            raise Forked(
                f"{owner._what} was in use by another thread when this process was forked; "
                f"{owner._advice or 'make another one'}"
            )
        owner.mark_consistent()
        try:
            owner._recover()
        except BaseException:
            owner.mutex = self
            raise


_locks: weakref.WeakSet[ForkLock] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for lock in list(_locks):
        lock._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
