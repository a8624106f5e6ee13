"""A lock that survives fork(): the child gets a free one, marked if another thread held it.

    lock = ForkLock("this context", advice="call reset()")
    with lock.mutex: ...

A child process has its parent's memory, but only the thread that forked. If another thread held the
lock, the object that it guards may be half changed, and nothing will ever release the lock. So in
the child the first ``mutex`` calls ``recover``, or raises ``Forked`` until ``mark_consistent()``.

The ``with`` statement gets Python's own lock: Ctrl-C raises an error between two bytecodes, which
``__enter__`` and ``__exit__`` written in Python would consist of, and the lock would stay locked.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager

from ..errors import Forked


class ForkLock:
    """A reentrant mutex.

    Args:
        what: name of the guarded object, for messages.
        recover: makes the object usable in a child; called with the lock held.
        advice: next step for the message of ``Forked`` where there is no ``recover``.
    """

    def __init__(
        self, what: str, recover: Callable[[], None] | None = None, advice: str = ""
    ) -> None:
        self._what, self._recover, self._advice = what, recover, advice
        self._lock = threading.RLock()
        self._interrupted = False  # by a fork, while another thread held the lock
        _locks.add(self)

    @property
    def mutex(self) -> AbstractContextManager[object]:
        """The lock to hold in a ``with`` statement. Raises: Forked, or errors of ``recover``."""
        if self._interrupted:
            self._recover_or_raise()
        return self._lock

    def mark_consistent(self) -> None:
        """Declare the guarded object consistent after an interrupted change."""
        self._interrupted = False

    def _recover_or_raise(self) -> None:
        with self._lock:
            if not self._interrupted:  # another thread recovered it meanwhile
                return
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
        """Replace the lock in the child, where only this thread is left."""
        if self._lock.acquire(blocking=False):  # free, or held by this thread
            self._lock.release()
        else:
            self._lock, self._interrupted = threading.RLock(), True


_locks: weakref.WeakSet[ForkLock] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for lock in list(_locks):
        lock._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
