"""Ctrl-C during a compute: a watcher thread that reads the signal wake-up pipe.

    with Watcher(on_signal):                       # around nogil code, cheap enough for each run
        ...

Python raises KeyboardInterrupt only between bytecodes, so nogil code would run to its end first.
While a compute runs in the main thread, the C-level handler writes to our pipe, and the watcher
calls ``on_signal`` at once. The pipe that was set before is restored and still gets its bytes.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable


class Watcher:
    """Calls ``on_signal`` (from another thread) when SIGINT arrives inside the ``with`` block."""

    def __init__(self, on_signal: Callable[[], None]) -> None:
        self._on_signal = on_signal
        self._pipe: tuple[socket.socket, socket.socket] | None = None
        self._before = -1
        self._depth = 0

    def __enter__(self) -> Watcher:
        if threading.current_thread() is threading.main_thread():
            if self._pipe is None:
                self._start()
            if self._pipe is None:
                return self
            try:
                before = signal.set_wakeup_fd(self._pipe[1].fileno(), warn_on_full_buffer=False)
            except ValueError:  # in a subinterpreter
                return self
            if before != self._pipe[1].fileno():  # it is where an interrupt cut __exit__ short
                self._before = before
            self._depth = 1
        return self

    def __exit__(self, *exc: object) -> None:
        if self._depth and threading.current_thread() is threading.main_thread():
            self._depth = 0
            signal.set_wakeup_fd(self._before, warn_on_full_buffer=False)

    def _start(self) -> None:
        read, write = socket.socketpair()
        write.setblocking(False)
        watch = threading.Thread(target=self._watch, args=(read,), daemon=True)
        watch.name = "pyggml-signal"
        try:
            watch.start()
        except RuntimeError:  # no more threads: Ctrl-C waits for the end of a compute
            read.close()
            write.close()
        else:
            self._pipe = read, write

    def _watch(self, read: socket.socket) -> None:
        while data := read.recv(64):
            if signal.SIGINT in data and signal.getsignal(signal.SIGINT) not in (
                signal.SIG_IGN,
                None,
            ):
                self._on_signal()
            if self._before >= 0:
                try:
                    os.write(self._before, data)
                except OSError:
                    continue
