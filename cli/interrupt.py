"""Ctrl-C ends a program quietly, whenever it comes and however often: exit code 130, no traceback.

    interrupt.begin()                              # as the first thing that a program does
    with interrupt.raised():                       # here it is a KeyboardInterrupt
        ...

One Ctrl-C raises KeyboardInterrupt, once, so that what is open is closed; further ones are ignored
while that goes on, for two seconds at most. Where nothing is open yet or any more, and during an
import, which an exception would leave half done, the process ends at once.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

INTERRUPTED = 130  # the exit code
_PATIENCE_S = 2.0
_IMPORT = "<frozen importlib"  # of the file names of its frames


class _Handler:
    """Of SIGINT, while a program runs.

    Attributes:
        active: whether ``raised`` is there to catch a KeyboardInterrupt.
        since: when one was raised; 0 before.
        pending: whether one was lost, and will be raised a moment later.
    """

    active, since, pending = False, 0.0, False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.active and not self.since and not _imports(frame):
            self.since, self.pending = time.monotonic(), False
            raise KeyboardInterrupt
        if not self.active or not self.since or time.monotonic() - self.since > _PATIENCE_S:
            _leave()

    def lost(self, unraisable: Any) -> None:
        """Where no exception can be raised, as in a destructor, it is raised a little later."""
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            if not happened():  # else it is a consequence, as of an object that is half made
                sys.__unraisablehook__(unraisable)
            return
        import threading

        self.since, self.pending = 0.0, True
        again = threading.Timer(0.01, signal.raise_signal, (signal.SIGINT,))
        again.daemon = True
        again.start()


_handler = _Handler()


def begin() -> None:
    """Obey Ctrl-C as above from here to the end of the process, if nobody else looks after it."""
    if _install():
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)  # the last to be called


@contextlib.contextmanager
def raised() -> Iterator[None]:
    """Within, Ctrl-C is a KeyboardInterrupt; it leaves the block once, whatever the block does."""
    installed = _install()
    _handler.since, _handler.pending = 0.0, False
    try:
        _handler.active = True
        yield
    finally:
        _handler.active = False
        if installed:
            sys.unraisablehook = sys.__unraisablehook__
            signal.signal(signal.SIGINT, signal.default_int_handler)


def happened() -> bool:
    """Whether Ctrl-C was raised: what goes wrong after that is a consequence."""
    return _handler.since > 0 or _handler.pending


def _install() -> bool:
    """Whether it was done: not beside another handler, in a thread, or where SIGINT is ignored."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return False
    try:
        signal.signal(signal.SIGINT, _handler)
    except ValueError:  # not the main thread
        return False
    sys.unraisablehook = _handler.lost
    return True


def _imports(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith(_IMPORT):
            return True
        frame = frame.f_back
    return False


def _leave() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(INTERRUPTED)
