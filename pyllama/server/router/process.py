"""The process of a model, as the router sees it.

    child = await start(command, name, environment, report)
    child.port, child.key                          # once it has reported that it listens
    code = await child.wait()

A thread for each of its two pipes reads what it says; all callbacks run in the event loop. The
child's lines on stderr appear on ours with the model's name before them. It ends with the router,
however that ends, since it watches the pipe of its orders (`child`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from pyggml.visible import visible

from ..worker.threads import Workers
from .child import EXIT

Report = Callable[[dict[str, Any]], None]
_MAX_LINE = 1 << 16
_MAX_REASON = 500  # characters of the last line
_DRAIN_S = 0.5


class ChildProcess:
    """A server of one model that runs beside the router.

    Attributes:
        port: at 127.0.0.1.
        key: that its requests must have.
        last_line: the last line that it wrote on stderr.
    """

    def __init__(self, process: subprocess.Popen[bytes], name: str, report: Report) -> None:
        self.port, self.key, self.last_line = 0, secrets.token_urlsafe(32), ""
        self._process, self._report, self._name = process, report, name
        self._loop = asyncio.get_running_loop()
        self._exit: asyncio.Future[int] = self._loop.create_future()
        self._order(json.dumps({"key": self.key, "name": name}).encode())
        assert process.stdout is not None and process.stderr is not None
        lines = threading.Thread(target=self._pass_on, args=(process.stderr,), daemon=True)
        lines.start()
        threading.Thread(target=self._watch, args=(process.stdout, lines), daemon=True).start()

    def ask_exit(self) -> None:
        """Let it drain and end."""
        self._order(EXIT)

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    async def wait(self) -> int:
        """Its exit code, when it has ended."""
        return await asyncio.shield(self._exit)

    def _order(self, line: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # it has ended
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()

    def _watch(self, reports: IO[bytes], lines: threading.Thread) -> None:
        """Read the child's states, and its exit code after them; in a thread."""
        while line := reports.readline(_MAX_LINE):
            with contextlib.suppress(ValueError):
                self._call(self._told, json.loads(line))
        code = self._process.wait()
        lines.join(_DRAIN_S)  # a process that the child started may hold the pipe
        with contextlib.suppress(OSError):
            self._process.stdin.close()  # type: ignore[union-attr]
        reports.close()
        self._call(self._ended, code)

    def _told(self, state: dict[str, Any]) -> None:
        if state.get("state") == "listening":
            self.port = int(state["port"])
        else:
            self._report(state)

    def _ended(self, code: int) -> None:
        if not self._exit.done():
            self._exit.set_result(code)

    def _pass_on(self, errors: IO[bytes]) -> None:
        """Show what the child writes on stderr; in a thread."""
        prefix = f"[{visible(self._name)}] "
        with errors:
            while line := errors.readline(_MAX_LINE):
                text = line.decode("utf-8", "replace").rstrip()
                if text.startswith("{"):  # a record of --log-jsonl
                    _print(text, sys.stdout)
                elif text:
                    self.last_line = text[:_MAX_REASON]
                    _print(prefix + text, sys.stderr)

    def _call(self, function: Callable[..., None], *args: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(function, *args)


def _print(text: str, stream: Any) -> None:
    with contextlib.suppress(OSError, ValueError):
        stream.write(text + "\n")
        stream.flush()


async def start(
    command: Sequence[str], name: str, environment: Mapping[str, str], report: Report
) -> ChildProcess:
    """Start the process of a model.

    Args:
        command: the program and its arguments.
        name: of the model.
        environment: its variables.
        report: called with the states that it reports.

    Raises:
        OSError: the process cannot be started.
    """

    def begin() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment),
            start_new_session=True,  # Ctrl-C is the router's, which drains its children
        )

    workers = Workers(1, "start")
    try:
        process = await workers.run(begin)
    finally:
        workers.close()
    return ChildProcess(process, name, report)
