"""Locks that Ctrl-C leaves free, wherever it strikes."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest

from pyllama.engine.call_lock import CallLock, locked
from pyllama.errors import ReentrantCall
from pyllama.runtime.fork_lock import ForkLock

MAKE = [pytest.param(ForkLock, id="fork"), pytest.param(CallLock, id="call")]


@pytest.fixture
def is_free() -> Iterator[Callable[[ForkLock], bool]]:
    """A function that tells whether another thread could acquire a lock."""
    with ThreadPoolExecutor(1) as other:

        def free(lock: ForkLock) -> bool:
            def attempt() -> bool:
                acquired = lock._lock.acquire(blocking=False)
                if acquired:
                    lock._lock.release()
                return acquired

            return other.submit(attempt).result()

        yield free


def interrupted_at(n: int, run: Callable[[], None]) -> bool:
    """Run with KeyboardInterrupt at the n-th event of the locks' own code; False: it has fewer."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        if not frame.f_code.co_qualname.startswith(("ForkLock.", "CallLock.")):
            return None
        count += 1
        if count == n:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize("kind", MAKE)
def test_an_interrupt_in_the_lock_leaves_it_free(
    kind: type[ForkLock], is_free: Callable[[ForkLock], bool]
) -> None:
    """Python runs signal handlers between two lines, and at calls and returns of functions."""
    lock, n = kind("this"), 0

    def run() -> None:
        with lock.mutex:
            assert not is_free(lock)

    while interrupted_at(n := n + 1, run):
        assert is_free(lock)
        run()
    assert n > 3 and is_free(lock)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers")
@pytest.mark.parametrize("kind", MAKE)
def test_signals_leave_the_lock_free(
    kind: type[ForkLock], is_free: Callable[[ForkLock], bool]
) -> None:
    lock = kind("this")

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for i in range(200):
            with pytest.raises(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 1e-5 + i * 1e-7)
                while True:
                    with lock.mutex:
                        pass
            assert is_free(lock)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_the_holder_cannot_acquire_it_again(is_free: Callable[[ForkLock], bool]) -> None:
    lock = CallLock("this object")

    def steps() -> Iterator[int]:
        yield 1
        assert not is_free(lock)
        with lock.mutex:
            pass

    items = locked(lock, steps())  # type: ignore[arg-type]
    assert next(items) == 1 and is_free(lock)
    with pytest.raises(ReentrantCall, match="this object is running the call"):
        next(items)
    assert is_free(lock)
