"""A server that a router started: its orders arrive on stdin, its states leave on stdout.

    link = RouterLink.open()                       # before anything slow is imported
    link.key, link.name                            # that its requests must have; its model's id
    link.report("listening", port=4711)

The end of stdin means that the router is gone, also when it was killed: the process ends at once.
What is printed on stdout goes to stderr.

Source: llama.cpp, ``server_child``.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from dataclasses import dataclass, field
from typing import Any

EXIT = b"exit"
"""The router's order to drain and end."""
_MAX_LINE = 1 << 16


@dataclass
class RouterLink:
    """The pipes to the router.

    Attributes:
        key: that requests must have.
        name: the model's id.
    """

    key: str
    name: str
    _reports: int
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def open(cls) -> RouterLink:
        """Read the first line of stdin, and watch it from then on.

        Raises:
            ValueError: it is not a router's.
        """
        # not sys.stdin: a thread that waits with its lock would abort the interpreter's exit
        first, _, rest = _read_line(0)
        try:
            orders = json.loads(first)
            key, name = str(orders["key"]), str(orders["name"])
        except (ValueError, TypeError, KeyError):
            raise ValueError("only a router starts a server in this mode") from None
        reports = os.dup(1)  # not inherited by programs that this process starts
        os.dup2(2, 1)
        threading.Thread(target=_obey, args=(0, rest), name="router", daemon=True).start()
        return cls(key, name, reports)

    def report(self, state: str, **more: Any) -> None:
        """Tell the router a state: listening, loaded, sleeping or failed."""
        line = json.dumps({"state": state, **more}).encode() + b"\n"
        with self._lock, contextlib.suppress(OSError):  # a router that is gone: stdin tells too
            while line:
                line = line[os.write(self._reports, line) :]


def _read_line(fd: int) -> tuple[bytes, bytes, bytes]:
    data = b""
    while b"\n" not in data and len(data) < _MAX_LINE:
        part = os.read(fd, 4096)
        if not part:
            break
        data += part
    return data.partition(b"\n")


def _obey(fd: int, rest: bytes) -> None:
    """Follow the router's orders; end with it."""
    while True:
        if EXIT in rest:
            os.kill(os.getpid(), signal.SIGTERM)
            rest = b""
        part = os.read(fd, 4096)
        if not part:
            os._exit(1)
        rest = part
