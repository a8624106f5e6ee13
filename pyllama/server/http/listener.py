"""Listening and connections: uvicorn, with deadlines for requests that arrive slowly.

    serve(app, Listening(hosts=("127.0.0.1",), port=8080), print)

Blocks until SIGINT or SIGTERM. Then no connection is accepted any more, and the server ends within
``Listening.shutdown_s``, of which running responses get all but the last 0.75 s:

    signal           0.75 s left             0.5 s left        0.25 s left
      | texts go on  | they end by an error  | the others are  | the process ends,
      |              | that clients read     | cut             | whatever still runs

uvicorn has no deadline for a request's headers and body, nor for clients that stop reading, so
`TimedProtocol` adds them (the last on Linux only).
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from http import HTTPStatus
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ...parameters.serving import Listening
from ..request.errors import ApiError

MAX_HEADER_BYTES = 1 << 16
_TOO_LARGE = "the headers are too large"
_LINGER_S = 1.0  # a refused connection is read and closed after that time, or by the client
# Of the time at the end, see above; on a busy machine a thread runs some 0.1 s after its time.
_ERROR_S, _CUT_S, _LEAVE_S = 0.75, 0.5, 0.25
_BACKLOG = 2048  # connections that the system accepts before we do: uvicorn's default
# A write to a socket releases the GIL, and a busy thread returns it only after Python's 5 ms: with
# 16 streams the event loop would be 80 ms late in each step of the engine.
_SWITCH_S = 0.0005

Drain = Callable[[float], Awaitable[None]]
Leave = Callable[[], object]


class TimedProtocol(HttpToolsProtocol):
    """Closes connections whose headers or body arrive too slowly (408) or are too large (431)."""

    listening = Listening()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._deadline: asyncio.TimerHandle | None = None
        self._n_header_bytes = self._n_unfinished_bytes = 0
        self._in_headers, self._is_refused = True, False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        one = transport.get_extra_info("socket")
        if hasattr(socket, "TCP_USER_TIMEOUT") and one.family != socket.AF_UNIX:
            # Linux cuts off a client that reads nothing of what is waiting for so long
            milliseconds = round(self.listening.body_s * 1e3)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
        self._expect(self.listening.header_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused or self.transport.is_closing():
            return
        super().data_received(data)
        if self._in_headers:  # they have not ended, nor perhaps the last of them
            self._n_unfinished_bytes += len(data)
            if self._n_unfinished_bytes > MAX_HEADER_BYTES + len(data):
                self._refuse(431, _TOO_LARGE)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_headers, self._n_header_bytes, self._n_unfinished_bytes = True, 0, 0
        self._expect(self.listening.header_s)

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)  # a colon, a space and a line end
        super().on_header(name, value)

    def _count(self, n_bytes: int) -> None:
        """Count bytes of the headers. Raises: ValueError, which ends the parsing."""
        self._n_header_bytes += n_bytes
        if self._n_header_bytes > MAX_HEADER_BYTES:
            self._refuse(431, _TOO_LARGE)
            raise ValueError(_TOO_LARGE)

    def send_400_response(self, msg: str) -> None:
        """Report that parsing has failed, unless `_refuse` has ended it."""
        if not (self._is_refused or self.transport.is_closing()):
            super().send_400_response(msg)

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._expect(self.listening.body_s)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._expect(None)
        super().on_message_complete()

    def _expect(self, seconds: float | None) -> None:
        """Set the deadline for the next part of the request; None for none."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None
        if seconds is not None:
            self._deadline = self.loop.call_later(seconds, self._late)

    def _late(self) -> None:
        cycle = self.cycle
        if self._in_headers and cycle is not None and not cycle.response_complete:
            self._expect(self.listening.header_s)  # the response to an earlier request runs
        elif cycle is not None and not self._in_headers and cycle.response_started:
            self.transport.close()
        else:
            self._refuse(408, "the request has not arrived in time")

    def _refuse(self, status: int, message: str) -> None:
        body = json.dumps(ApiError(status, message, "timeout_error").body()).encode()
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
            "connection: close\r\n\r\n"
        )
        transport = self.transport
        if self._is_refused or transport.is_closing():
            return
        self._is_refused = True
        transport.write(head.encode() + body)
        if transport.can_write_eof():
            # closed at once, a connection with unread bytes is reset, and the response may be lost
            transport.write_eof()
            self._expect(None)
            self._deadline = self.loop.call_later(_LINGER_S, transport.close)
        else:
            transport.close()


class DrainingServer(uvicorn.Server):
    """Ends within a time after a signal.

    Args:
        drain: called with the seconds that running responses get.
        leave: ends the process at once; called in a thread if the server has not ended in time.
    """

    def __init__(
        self,
        app: ASGIApp,
        listening: Listening,
        drain: Drain | None = None,
        leave: Leave | None = None,
    ) -> None:
        super().__init__(configure(app, listening))
        self._drain, self._leave, self._seconds = drain, leave, listening.shutdown_s
        self._ends_at: float | None = None
        self._last: threading.Timer | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to end; the time counts from the first signal."""
        if self._ends_at is None:
            self._ends_at = time.monotonic() + self._seconds
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the listening sockets, and the connections when their responses have ended."""
        now = time.monotonic()
        left_s = self._seconds if self._ends_at is None else self._ends_at - now
        if self._leave is not None:
            self._last = threading.Timer(max(0.0, left_s - _LEAVE_S), self._leave)
            self._last.daemon = True
            self._last.start()
        draining = None
        if self._drain is not None:
            draining = asyncio.ensure_future(self._drain(max(0.0, left_s - _ERROR_S)))
        # uvicorn waits for the connections after a tenth of a second; the time may be a fraction
        cut_s = max(0.0, left_s - _CUT_S - 0.1)
        self.config.timeout_graceful_shutdown = cut_s  # type: ignore[assignment]
        await super().shutdown(sockets)
        if draining is not None:
            await draining

    def ended(self) -> None:
        """Let the process go on: the server has ended, and its event loop too."""
        if self._last is not None:
            self._last.cancel()


def serve(
    app: ASGIApp,
    listening: Listening,
    on_listening: Callable[[Sequence[str], Callable[[], None]], None],
    drain: Drain | None = None,
    leave: Leave | None = None,
) -> None:
    """Serve an application until a signal ends the process.

    Args:
        on_listening: called with the URLs, to which clients can connect from then on, and with a
            function that ends the server.
        drain, leave: see `DrainingServer`.

    Raises:
        OSError: an address cannot be listened at.
    """
    sockets = open_sockets(listening)
    scheme = "https" if listening.ssl_cert else "http"
    interval = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_S)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    # uvicorn raises the signal that ended it again: a server that has drained exits with 0
    before = {one: signal.signal(one, lambda *_: None) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        server = DrainingServer(app, listening, drain, leave)

        def stop() -> None:
            server.should_exit = True

        on_listening([_url(one, scheme) for one in sockets], stop)
        try:
            server.run(sockets=sockets)
        finally:
            server.ended()
    finally:
        sys.setswitchinterval(interval)
        for number, handler in before.items():
            signal.signal(number, handler)
        for one in sockets:
            one.close()


def configure(app: ASGIApp, listening: Listening) -> uvicorn.Config:
    """uvicorn's configuration: our protocol, no logs, no headers of its own."""
    protocol = type("Protocol", (TimedProtocol,), {"listening": listening})
    return uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        limit_concurrency=listening.max_connections,
        timeout_keep_alive=listening.keep_alive_s,
        ssl_keyfile=listening.ssl_key,
        ssl_certfile=listening.ssl_cert,
    )


def open_sockets(listening: Listening) -> list[socket.socket]:
    """A listening socket for each address. Raises: OSError."""
    with ExitStack() as stack:
        found = [stack.enter_context(_open(host, listening)) for host in listening.hosts]
        stack.pop_all()
        return found


def _open(host: str, listening: Listening) -> socket.socket:
    if host.endswith(".sock"):
        one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        one.bind(host)
        one.listen(_BACKLOG)
        return one
    family, _, _, _, address = socket.getaddrinfo(
        host, listening.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    try:
        return socket.create_server(
            address, family=family, backlog=_BACKLOG, reuse_port=listening.reuse_port
        )
    except OSError as error:
        why = os.strerror(error.errno or 0)
        message = f"cannot listen at {host}, port {listening.port}: {why}"
        raise OSError(error.errno, message) from None


def _url(one: socket.socket, scheme: str) -> str:
    name = one.getsockname()
    if isinstance(name, str):
        return f"unix:{name}"
    host = f"[{name[0]}]" if ":" in name[0] else name[0]
    return f"{scheme}://{host}:{name[1]}"
