"""How far compiling has come: n of the m functions that are known to be missing.

    progress.expect(3)                             # before the first of them is compiled
    with progress.compiling(): ...                 # one of them; or one more, if none is left
    progress.now()                                 # Compiling(n=1, of=3, elapsed_s=4.0, ...)
    str(progress.now())                            # "compiling kernels, 1 of 3 (4 s of about 12 s)"

Counts the functions of this process and of the children that test its instruction set, since the
process began. A machine compiles once, so m is not known before: it grows with each graph. The time
is that in which something was missing, without the breaks. Any thread may ask for ``now``.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Compiling:
    """A moment of compiling.

    Attributes:
        n, of: functions that are compiled, and those and the missing ones.
        elapsed_s: the time taken so far.
        expected_s: the time that all of them take, by their number; None before the first is done.
    """

    n: int
    of: int
    elapsed_s: float
    expected_s: float | None

    @property
    def is_running(self) -> bool:
        """Whether a function is missing."""
        return self.n < self.of

    def __str__(self) -> str:
        about = "" if self.expected_s is None else f" of about {self.expected_s:.0f} s"
        return f"compiling kernels, {self.n} of {self.of} ({self.elapsed_s:.0f} s{about})"


class CompileProgress:
    """The counts. Those of this process change only while its compile lock is held.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._n = self._of = self._running = 0
        self._children: dict[object, tuple[int, int]] = {}
        self._elapsed_s, self._since = 0.0, 0.0
        self._is_busy = False
        self.lock = threading.Lock()  # children are reported by several threads

    def expect(self, n: int) -> None:
        """Count functions that will be compiled."""
        self._of += n
        self._tick()

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Count a function that is compiled within the block; one that fails does not count."""
        self._running += 1
        self._of = max(self._of, self._n + self._running)
        self._tick()
        try:
            yield
            self._n += 1
        except BaseException:
            self._of -= 1
            raise
        finally:
            self._running -= 1
            self._tick()

    def child(self, child: object, n: int, of: int) -> None:
        """Set the counts of a child process."""
        self._children[child] = n, of
        self._tick()

    def end_child(self, child: object) -> None:
        """Note the end of a child: what it has not compiled no longer counts as missing."""
        n, _ = self._children.get(child, (0, 0))
        self.child(child, n, n)

    def now(self) -> Compiling:
        """What is known now."""
        n, of = self.counts()
        elapsed = self._elapsed_s
        if self._is_busy:
            elapsed += self._clock() - self._since
        return Compiling(n, of, elapsed, elapsed / n * of if n else None)

    def counts(self) -> tuple[int, int]:
        """The functions that are compiled, and those and the missing ones."""
        children = list(self._children.values())
        return self._n + sum(n for n, _ in children), self._of + sum(of for _, of in children)

    def _tick(self) -> None:
        """Start or stop the clock."""
        with self.lock:
            n, of = self.counts()
            if self._is_busy == (n < of):
                return
            if self._is_busy:
                self._elapsed_s += self._clock() - self._since
            else:
                self._since = self._clock()
            self._is_busy = n < of


progress = CompileProgress()
"""That of this process."""


def _after_fork() -> None:
    progress.lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
