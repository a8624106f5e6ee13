"""A mutex for an object with callbacks: a callback that calls the object gets an error.

lock = CallLock("this object")
with lock.mutex: ...                           # a second thread waits here
for item in locked(lock, generator): ...       # holds the lock while an item is computed
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

from ..errors import ReentrantCall
from ..runtime.fork_lock import ForkLock

T = TypeVar("T")
Steps = Generator[T, Sequence[int] | None, None]


class CallLock(ForkLock):
    """A mutex that its holder cannot acquire again; arguments as of ``ForkLock``."""

    _is_lent = False

    @property
    def mutex(self) -> AbstractContextManager[object]:
        """The lock to hold in a ``with`` statement.

        Raises:
            ReentrantCall: this thread holds it.
        """
        if self._lock._is_owned() and not self._is_lent:  # type: ignore[attr-defined]
            raise ReentrantCall(
                f"{self._what} is running the call that invoked this callback; "
                "use the callback's arguments, or another object"
            )
        return super().mutex

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Within, the holder may acquire it again, to call a public method of its own object."""
        try:
            self._is_lent = True
            yield
        finally:
            self._is_lent = False


def locked(lock: CallLock, steps: Steps[T]) -> Steps[T]:
    """The items of a generator, each computed with the lock held."""
    sent: Sequence[int] | None = None
    while True:
        with lock.mutex:
            try:
                item = steps.send(sent)
            except StopIteration:
                return
        sent = yield item
