"""A mutex for an object with callbacks: a callback that calls the object gets an error.

lock = CallLock("this object")
with lock: ...                                 # a second thread waits here
for item in locked(lock, generator): ...       # holds the lock while an item is computed
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from types import TracebackType
from typing import TypeVar

from ..core.fork_lock import ForkLock
from ..errors import ReentrantCall

T = TypeVar("T")
Steps = Generator[T, Sequence[int] | None, None]


class CallLock(ForkLock):
    """A mutex that raises ReentrantCall if its holder acquires it again.

    Args:
        what: name of the object, for the message.
        recover: see ``ForkLock``.
    """

    def __init__(self, what: str, recover: Callable[[], None] | None = None) -> None:
        super().__init__(what, recover)
        self._holder: int | None = None  # thread

    def __enter__(self) -> None:
        me = threading.get_ident()
        if self._holder == me:
            raise ReentrantCall(
                f"{self._what} is running the call that invoked this callback; "
                "use the callback's arguments, or another object"
            )
        super().__enter__()
        self._holder = me

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._holder = None
        super().__exit__(kind, error, tb)


def locked(lock: CallLock, steps: Steps[T]) -> Steps[T]:
    """The items of a generator, each computed with the lock held."""
    sent: Sequence[int] | None = None
    while True:
        with lock:
            try:
                item = steps.send(sent)
            except StopIteration:
                return
        sent = yield item
