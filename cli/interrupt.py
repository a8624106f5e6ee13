"""Makes Ctrl-C end a program with exit code 130 and no traceback, at any time.

    interrupt.begin()                              # first statement of a program
    with interrupt.raised():                       # inside, Ctrl-C raises KeyboardInterrupt
        ...

Inside ``raised`` the first Ctrl-C raises KeyboardInterrupt, so that open files are closed; further
ones are ignored for two seconds, after that the process exits at once. Outside of it, and during
imports (an exception would leave modules half initialised), Ctrl-C exits at once.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

INTERRUPTED = 130  # the exit code
_CLEANUP_S = 2.0  # time for the clean-up after the first Ctrl-C
_IMPORT = "<frozen importlib"  # file name of the import system's frames

before_exit: list[Callable[[], None]] = []
"""Called before the process exits at once, such as to restore the terminal."""


class _Handler:
    """The handler of SIGINT.

    Attributes:
        active: whether a ``raised`` block is running.
        since: time at which KeyboardInterrupt was raised, 0 if it was not.
        pending: whether the exception was lost and will be raised again shortly.
    """

    active, since, pending = False, 0.0, False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.active and not self.since and not _imports(frame):
            self.since, self.pending = time.monotonic(), False
            raise KeyboardInterrupt
        if not self.active or not self.since or time.monotonic() - self.since > _CLEANUP_S:
            _leave()

    def lost(self, unraisable: Any) -> None:
        """Raise SIGINT again 10 ms after an interrupt in a destructor, which cannot raise.

        ``sys.unraisablehook`` while the handler is installed.
        """
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            if not happened():  # errors after an interrupt are its consequences
                sys.__unraisablehook__(unraisable)
            return
        import threading

        self.since, self.pending = 0.0, True
        main = threading.get_ident()  # handlers run in the main thread only

        def send() -> None:
            if hasattr(signal, "pthread_kill"):  # it also ends a call in which that thread waits
                signal.pthread_kill(main, signal.SIGINT)
            else:
                signal.raise_signal(signal.SIGINT)

        again = threading.Timer(0.01, send)
        again.daemon = True
        again.start()


_handler = _Handler()


def begin() -> None:
    """Install the handler until the end of the process, unless another handler is installed."""
    if _install():
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)  # atexit runs it last


@contextlib.contextmanager
def raised() -> Iterator[None]:
    """Raise KeyboardInterrupt, once, for Ctrl-C inside the block (a context manager)."""
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
    """Return whether Ctrl-C was pressed in the current ``raised`` block."""
    return _handler.since > 0 or _handler.pending


def _install() -> bool:
    """Install the handler and return True.

    Returns False in a thread, and if SIGINT is ignored or has another handler.
    """
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
    for last in (*before_exit, sys.stdout.flush, sys.stderr.flush):
        with contextlib.suppress(Exception):
            last()
    os._exit(INTERRUPTED)
