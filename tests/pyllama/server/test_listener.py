"""A server at a real socket: slow senders, clients that hang up, shutdown."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from pyllama import Model
from pyllama.server.app import make_app
from pyllama.server.http.listener import Listening, TimedProtocol, serve

from ...tiers import only
from ...waiting import WAIT_S, until
from .conftest import held, listening, make_served


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)


def post(port: int, path: str, body: Any) -> socket.socket:
    """A connection on which a request was sent."""
    data = json.dumps(body).encode()
    one = connect(port)
    one.sendall(
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n".encode()
        + data
    )
    return one


def everything(one: socket.socket) -> bytes:
    parts = []
    while part := one.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"", b"408"),
        (b"GET /health HTTP/1.1\r\nHost: local", b"408"),
        (b"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{", b"408"),
        (b"GET /health HTTP/1.1\r\nX: " + b"x" * 300_000, b"431"),
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 66_000 + b"\r\n\r\n", b"431"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: 12345\r\n" * 9_000 + b"\r\n", b"431"),
        (b"GET /" + b"x" * 66_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", b"431"),
        (
            b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nHost: a\r\n\r\n",
            b"400",
        ),
        (b"nonsense\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", b"400"),
    ],
)
def test_requests_that_never_end(model: Model, sent: bytes, status: bytes) -> None:
    seconds = 0.3 if status == b"408" else WAIT_S
    served = make_served(model)
    with listening(served, header_s=seconds, body_s=seconds) as port, connect(port) as one:
        one.sendall(sent)
        assert everything(one).startswith(b"HTTP/1.1 " + status)


@pytest.mark.skipif(sys.platform != "linux", reason="a socket option of Linux")
@pytest.mark.parametrize("reads", only([False, True], [True]))
def test_a_client_that_stops_reading_is_cut_off(
    model: Model, reads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that reads slowly gets the whole response."""
    text, is_lost = "a b " * 240_000, threading.Event()
    body_s = 2.0 if reads else 0.5
    lost = TimedProtocol.connection_lost

    def connection_lost(protocol: TimedProtocol, error: Exception | None) -> None:
        is_lost.set()
        lost(protocol, error)

    monkeypatch.setattr(TimedProtocol, "connection_lost", connection_lost)
    with listening(make_served(model), body_s=body_s) as port:
        with post(port, "/tokenize", {"content": text}) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)  # it shall not hold all
            data = one.recv(1 << 12)
            header, _, body = data.partition(b"\r\n\r\n")
            for part in header.splitlines():
                if part.lower().startswith(b"content-length:"):
                    n_left = int(part.split(b":")[1]) - len(body)
            assert n_left > 4 << 20
            if reads:
                end = time.monotonic() + 1.5 * body_s
                while time.monotonic() < end:
                    time.sleep(0.05)
                    n_left -= len(one.recv(1 << 16))
            else:
                assert is_lost.wait(WAIT_S)
            with contextlib.suppress(ConnectionResetError):
                while part := one.recv(1 << 20):
                    n_left -= len(part)
                    if not n_left:
                        break
        assert (n_left == 0) == reads


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_hangs_up_frees_its_slot(model: Model, stream: bool) -> None:
    served = make_served(model, n_slots=1, n_ctx=2048)
    body = {"prompt": "a", "n_predict": -1, "ignore_eos": True, "stream": stream}
    with listening(served) as port:
        with held(served), post(port, "/completion", body) as one:
            until(lambda: served.runner.n_processing)
            one.close()
            until(lambda: not served.runner.n_processing)
        assert served.runner.counts.n_aborted == 1
        with post(port, "/completion", {"prompt": "a", "n_predict": 1}) as two:
            assert two.recv(1 << 16).startswith(b"HTTP/1.1 200")


def test_health_is_fast_while_texts_are_generated(model: Model) -> None:
    served = make_served(model, n_slots=2, n_ctx=2048)
    body = {"prompt": "a", "n_predict": 900, "ignore_eos": True, "stream": True}
    with ExitStack() as stack:
        stack.enter_context(held(served))
        port = stack.enter_context(listening(served))
        for _ in range(2):
            stack.enter_context(post(port, "/completion", body))
        until(lambda: served.runner.n_processing == 2)
        with connect(port) as one:
            ask = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            one.sendall(ask)
            assert b'"status":"ok"' in everything(one)
            assert served.runner.n_processing == 2  # it did not wait for a slot


@pytest.mark.parametrize("n_predict", [20, 1900])  # within the time, and longer
def test_running_responses_end_at_shutdown(
    model: Model, n_predict: int, caplog: pytest.LogCaptureFixture
) -> None:
    served = make_served(model, n_slots=1, n_ctx=2048)
    is_long = n_predict > 1000
    body = {"prompt": "a", "n_predict": n_predict, "ignore_eos": True, "stream": True}
    with ExitStack() as stack:
        if is_long:
            stack.enter_context(held(served))
        with listening(served, shutdown_s=1 if is_long else WAIT_S) as port:
            one = post(port, "/completion", body)
            until(lambda: one.recv(1 << 16, socket.MSG_PEEK).count(b"data: ") > 1)  # it has begun
    with one:
        data = everything(one)
    assert (b"shutting down" if is_long else b'"stop":true') in data
    assert data.endswith(b"0\r\n\r\n")  # it was ended, not cut
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_path_with_a_slash_at_its_end_is_not_found(model: Model) -> None:
    with listening(make_served(model)) as port, post(port, "/completion/", {"prompt": "a"}) as one:
        assert one.recv(1 << 16).startswith(b"HTTP/1.1 404")


def test_busy_threads_give_the_event_loop_its_turn_soon(model: Model) -> None:
    before = sys.getswitchinterval()
    during: list[float] = []

    def listens(urls: Sequence[str], stop: Callable[[], None]) -> None:
        during.append(sys.getswitchinterval())
        stop()

    serve(make_app(make_served(model)), Listening(port=0), listens)
    assert during[0] <= 0.001 and sys.getswitchinterval() == before
