"""Forwards a request to the process of a model, and its response as it arrives.

    forwarder = Forwarder(pool)
    return forwarder.response(request, body, instance, autoload=True)
    await forwarder.close()

A streamed chunk is one read and one write: nothing is parsed or collected. A client that hangs up
closes the connection to the process, which frees its slot within a step. A stream with
``X-Conversation-Id`` goes on without its client: the process keeps it.

Source: llama.cpp, ``server_http_proxy``. docs/decisions/0031 says why the client is aiohttp.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

import aiohttp
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from ..http.logs import REQUEST_ID
from ..http.sse import error_response, stream_error
from ..request.errors import ApiError
from ..worker.preparing import disconnected
from .conversations import RoutedConversation
from .pool import Instance, Pool
from .process import ChildProcess

_KEEP_ALIVE_S = 15  # less than `Listening.keep_alive_s` of the process: no request meets its end
_CONNECT_S = 10
_FETCH_S = 5
_CANCELLED = "request cancelled by a stop while the model was loading"
_HOP = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding",
     b"upgrade")
)  # fmt: skip
_OURS = _HOP | {
    b"accept-encoding", b"authorization", b"content-length", b"cookie", b"expect", b"host",
    b"origin", b"proxy-authorization", b"sec-fetch-dest", b"sec-fetch-mode", b"sec-fetch-site",
    b"sec-fetch-user", b"x-api-key", b"x-request-id",
}  # fmt: skip
_THEIRS = _HOP | {b"server", b"date"}
_IN_QUERIES = "%!$&'()*+,-./:;=?@[]_~"
Headers = list[tuple[bytes, bytes]]


class Forwarder:
    """The connections to all processes of a pool.

    Args:
        pool: the models.
        prefix: of the router's paths, which those of the processes do not have.
    """

    def __init__(self, pool: Pool, prefix: str = "") -> None:
        self._pool, self._prefix = pool, prefix
        self._opened: aiohttp.ClientSession | None = None
        self._detached: set[asyncio.Future[Any]] = set()

    def response(
        self,
        request: Request,
        body: bytes | None,
        instance: Instance,
        *,
        autoload: bool,
        conversation: RoutedConversation | None = None,
    ) -> Response:
        """The response of a model to a request whose body has been read.

        Args:
            conversation: whose stream the process keeps, so that it goes on without its client.
        """
        return _Forwarded(self, request, body, instance, autoload, conversation)

    async def fetch(self, instance: Instance, path: str, body: Any) -> Any:
        """The JSON answer of a running model to a POST of the router's own; None if there is none.

        The model is neither loaded nor counted as used.
        """
        try:
            async with self._pool.use(instance, autoload=False, touch=False) as child:
                headers = {"Authorization": f"Bearer {child.key}"}
                url = f"http://127.0.0.1:{child.port}{path}"
                time = aiohttp.ClientTimeout(total=_FETCH_S)
                ask = self._session.post(url, json=body, headers=headers, timeout=time)
                async with ask as response:
                    return json.loads(await response.read()) if response.status == 200 else None
        except (ApiError, aiohttp.ClientError, OSError, ValueError):
            return None

    def detach(self, work: asyncio.Future[Any]) -> None:
        """Let a request without a client go on until the router ends."""
        self._detached.add(work)
        work.add_done_callback(self._detached.discard)

    async def close(self) -> None:
        """Close the connections."""
        for work in self._detached:
            work.cancel()
        if self._opened is not None:
            await self._opened.close()

    async def send(self, forwarded: _Forwarded, scope: Scope, send: _Sender) -> ApiError | None:
        """Send a response, or return the error that there is instead of one."""
        instance = forwarded.instance
        is_post = forwarded.data is not None
        for is_last in (False, True):
            try:
                async with self._pool.use(
                    instance, autoload=forwarded.autoload, touch=is_post
                ) as child:
                    try:
                        async with self._ask(forwarded, scope, child) as response:
                            await self._pass_on(response, scope, send)
                        return None
                    except (aiohttp.ClientError, OSError):
                        await self._pool.lost(instance, child)
                        raise
            except ApiError as error:
                return error
            except aiohttp.ClientConnectorError:
                if is_last:  # else nothing was sent, and the next process gets it
                    return _gone(instance)
            except (aiohttp.ClientError, OSError):
                break
        if send.media_type is None:
            return _gone(instance)
        tail = stream_error(_gone(instance), scope["path"], send.media_type)
        if tail:  # else the client sees that the response is cut
            await send({"type": "http.response.body", "body": tail})
        return None

    @property
    def _session(self) -> aiohttp.ClientSession:
        if self._opened is None:
            self._opened = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
            )
        return self._opened

    async def _pass_on(self, response: aiohttp.ClientResponse, scope: Scope, send: _Sender) -> None:
        headers = _kept(response.raw_headers, _THEIRS)
        headers = [pair for pair in headers if not pair[0].startswith(b"access-control-")]
        if REQUEST_ID in scope:  # `RequestLog` adds it
            headers = [pair for pair in headers if pair[0] != b"x-request-id"]
        start = {"type": "http.response.start", "status": response.status, "headers": headers}
        await send(start)
        send.media_type = response.headers.get("Content-Type", "")
        async for chunk in response.content.iter_any():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    def _ask(
        self, forwarded: _Forwarded, scope: Scope, child: ChildProcess
    ) -> aiohttp.client._RequestContextManager:
        """The request to the process, with its key in place of the client's."""
        target = target_of(scope, self._prefix, child.port)
        headers = [(k.decode(), v.decode("latin-1")) for k, v in _kept(scope["headers"], _OURS)]
        headers.append(("Authorization", f"Bearer {child.key}"))
        request_id = scope.get(REQUEST_ID) or Request(scope).headers.get("x-request-id")
        if request_id:
            headers.append(("X-Request-Id", request_id))
        return self._session.request(
            scope["method"], target, data=forwarded.data, headers=headers, allow_redirects=False
        )


def target_of(scope: Scope, prefix: str, port: int) -> str:
    """The address of a request at a child; what could end its line stays quoted."""
    path = quote(scope["path"].removeprefix(prefix))
    query = quote(scope["query_string"], safe=_IN_QUERIES)
    mark = "?" if query else ""
    return f"http://127.0.0.1:{port}{path}{mark}{query}"


def _gone(instance: Instance) -> ApiError:
    return ApiError(500, f"proxy error: model name={instance.name} ended before its response did")


class _ClientGone(Exception):
    """The client of a detached request does not get its response."""


class _Sender:
    """Sends messages to the client, as long as there is one.

    Attributes:
        media_type: of the response, once its headers have been sent.
    """

    media_type: str | None = None

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_begun = self.is_closed = False

    async def __call__(self, message: Message) -> None:
        """Send a message. Raises: _ClientGone."""
        if self.is_closed:
            raise _ClientGone
        self.has_begun = True
        await self._send(message)


class _Forwarded(Response):
    """A response of another process."""

    def __init__(
        self,
        forwarder: Forwarder,
        request: Request,
        body: bytes | None,
        instance: Instance,
        autoload: bool,
        conversation: RoutedConversation | None,
    ) -> None:
        super().__init__()
        self.forwarder, self.request = forwarder, request
        self.data, self.instance, self.autoload = body, instance, autoload
        self._conversation = conversation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sender = _Sender(send)
        work = asyncio.ensure_future(self.forwarder.send(self, scope, sender))
        work.add_done_callback(_retrieve)
        watch = asyncio.ensure_future(disconnected(Request(scope, receive)))
        if self._conversation is not None:
            self._conversation.work = work
        try:
            await asyncio.wait([work, watch], return_when=asyncio.FIRST_COMPLETED)
        finally:
            is_done = work.done()
            watch.cancel()
            if self._conversation is None or is_done or sender.has_begun:
                work.cancel()
                await asyncio.wait([work, watch])
            else:  # the process has not begun to keep the stream
                sender.is_closed = True
                self.forwarder.detach(work)
        if not is_done:
            return
        error = ApiError.invalid(_CANCELLED) if work.cancelled() else work.result()
        if error is not None:
            await error_response(error, scope)(scope, receive, send)


def _retrieve(work: asyncio.Future[Any]) -> None:
    """Look at the exception of a request, which nobody else does if it is detached."""
    if not work.cancelled():
        work.exception()


def _kept(headers: Iterable[tuple[bytes, bytes]], dropped: frozenset[bytes]) -> Headers:
    lower = ((name.lower(), value) for name, value in headers)
    return [(name, value) for name, value in lower if name not in dropped]
