"""Responses: JSON bodies, and streams of server-sent events.

    body = await read_json(request, options)
    return await respond(request, stream, writer)  # streamed or whole, as the request says

A client that goes away closes its stream, so its slot is free after the running step, unless the
request has an ``X-Conversation-Id``. All pieces that have arrived are one write. Long JSON is read
and written in threads, so that the event loop goes on.
"""

from __future__ import annotations

import asyncio
import json
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ...inputs.bounded_json import parse_json
from ..request.errors import ApiError
from ..request.fields import Body
from ..request.limits import check_sizes
from ..request.options import ServerOptions
from ..worker.choice import Choice, Piece
from ..worker.kept_streams import KeptStreams, conversation_of, streams_of
from ..worker.preparing import CLIENT, disconnected, while_connected
from ..worker.stream import Pieces, Stream
from ..worker.threads import LANE, LARGE, SMALL
from .logs import BODY, TEXTS

_MAX_VALUES = 1 << 18  # of a body: prompts may be lists of tokens
_SHORT = 1 << 15  # bytes of a body that are parsed in a millisecond
_NESTED = (dict, list, tuple, Iterator)
_PART = 2048  # values in a part of a body, which takes about a millisecond to write
_CHARACTERS = 8  # of a string that count as one value
_BEGIN_S, _TURN_S = 0.005, 0.05  # in which a response is written in a thread
_JSON = "application/json; charset=utf-8"
PREFIX = "pyllama.api_prefix"
"""Key of the path before all routes in a request's ASGI scope, if the server has one."""
dump = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
"""Compact JSON."""


class ResponseWriter(ABC):
    """The format of an API's responses.

    Attributes:
        media_type: of a streamed response.
        end: text after its last piece.
    """

    media_type = "text/event-stream"
    end = ""

    @abstractmethod
    def piece(self, text: Choice, piece: Piece) -> str:
        """What is sent for a piece of a text; may be empty."""

    @abstractmethod
    def whole(self, texts: Sequence[Choice]) -> Any:
        """The body of a response that is not streamed."""


def data_line(value: Any) -> str:
    """A server-sent event with data alone."""
    return f"data: {dump(value)}\n\n"


def event_lines(event: str, value: Any) -> str:
    """A server-sent event with a name."""
    return f"event: {event}\ndata: {dump(value)}\n\n"


class JsonResponse(Response):
    """A JSON body; lone surrogates, which UTF-8 cannot have, become question marks."""

    media_type = _JSON

    def render(self, content: Any) -> bytes:
        """The bytes of the body."""
        return dump(content).encode("utf-8", "replace")


async def long_response(make: Callable[[], Any]) -> Response:
    """The response with a JSON body that may take long to make and to write, in threads.

    It begins in the thread of small requests. After 5 ms it goes on in that of large ones, before
    other work there: in turns with it, a response of a thousand texts took a minute.
    """
    body = bytearray()  # of parts in a list, a million would be freed at once, with the GIL
    parts: Iterator[str] = iter(())

    def begin() -> bytes | None:
        nonlocal parts
        parts = _parts(make())
        return write(_BEGIN_S)

    def write(limit_s: float) -> bytes | None:
        end = time.perf_counter() + limit_s
        for part in parts:
            body.extend(part.encode("utf-8", "replace"))
            if time.perf_counter() > end:
                return None
        return bytes(body)

    written = await SMALL.run(begin)
    while written is None:
        written = await LARGE.run(lambda: write(_TURN_S), ends=True)
    return Response(written, media_type=_JSON)


def _parts(value: Any) -> Iterator[str]:
    """The JSON of a value in parts, each of about a millisecond.

    `json` holds the GIL until it has encoded a whole value; between parts other threads run. An
    iterator is a list whose elements are made one after the other: thousands of objects that live
    at the same time make Python's garbage collections long, which stop all threads.
    """
    inner: Iterable[tuple[str, Iterable[str]]]
    if _size(value) <= _PART or not isinstance(value, _NESTED):
        yield dump(value)
        return
    if isinstance(value, dict):
        begin, end = "{", "}"
        inner = ((dump({key: 0})[1:-2], _parts(item)) for key, item in value.items())  # "key":
    else:
        begin, end = "[", "]"
        inner = _elements(value)
    sign = begin
    for text, parts in inner:
        yield sign + text
        yield from parts
        sign = ","
    yield end if sign == "," else begin + end


def _elements(items: Iterable[Any]) -> Iterator[tuple[str, Iterable[str]]]:
    """The JSON of a list's elements, as for `_parts`; some small ones at a time are one part."""
    small, room = list[Any](), _PART
    for item in items:
        size = _size(item)
        if small and size > room:
            yield dump(small)[1:-1], ()
            small, room = [], _PART
        if size > _PART:
            yield "", _parts(item)
        else:
            small.append(item)
            room -= size
    if small:
        yield dump(small)[1:-1], ()


def _size(value: Any, limit: int = _PART) -> int:
    """The number of values in a tree, where a long string counts as several.

    Counting ends above the limit. Iterators, whose values are not known, are above it.
    """
    if isinstance(value, str):
        return 1 + len(value) // _CHARACTERS
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return limit + 1 if isinstance(value, Iterator) else 1
    n = 1
    for item in value:
        n += _size(item, limit - n)
        if n > limit:
            break
    return n


def error_response(error: ApiError, scope: Scope) -> Response:
    """The response for an error, in the form of the API that was asked."""
    path = scope["path"].removeprefix(scope.get(PREFIX, ""))
    return JsonResponse(error.body(path), error.status, headers=error.headers)


def stream_error(error: ApiError, path: str, media_type: str) -> bytes:
    """An error in the format of a stream of an API; empty for a response that is no stream."""
    if media_type.startswith("application/x-ndjson"):
        text = dump(error.body("/api/")) + "\n"
    elif not media_type.startswith("text/event-stream"):
        text = ""
    elif path.endswith("/messages"):
        text = event_lines("error", error.body("/v1/messages"))
    elif path.endswith("/responses"):
        text = event_lines("error", {"type": "error", **error.body(), **error.fields})
    else:
        text = data_line(error.body())
    return text.encode("utf-8", "replace")


async def read_body(request: Request, options: ServerOptions) -> bytes:
    """The body of a request.

    Raises:
        ApiError: it is too large (413). One that is too slow ends the connection, see `listener`.
    """
    limit = options.max_body_bytes
    length = request.headers.get("content-length", "")
    if length.isdecimal() and (len(length) > 18 or int(length) > limit):
        raise ApiError(413, f"the body has {length:.20} bytes, at most {limit} are allowed")
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise ApiError(413, f"the body has more than {limit} bytes")
        parts.append(part)
    return b"".join(parts)


async def read_json(request: Request, options: ServerOptions) -> Body:
    """The JSON object in the body of a request. Raises: ApiError."""
    data = await read_body(request, options)
    body = Body(await parse_body(data))
    request.scope[BODY] = body
    CLIENT.set(request)
    LANE.set(SMALL if len(data) <= _SHORT else LARGE)
    return body


async def parse_body(data: bytes) -> dict[str, Any]:
    """The JSON object in a body that has been read. Raises: ApiError."""
    body = await parse_value(data)
    if not isinstance(body, dict):
        raise ApiError.invalid("the body must be a JSON object")
    return body


async def parse_value(data: bytes) -> Any:
    """The JSON value in a body that has been read. Raises: ApiError."""

    def parse() -> Any:
        found = parse_json(data, _MAX_VALUES, finite=True)
        check_sizes(found)
        return found

    try:
        return parse() if len(data) <= _SHORT else await LARGE.run(parse)
    except (ValueError, MemoryError) as error:
        raise ApiError.invalid(f"the body is not valid JSON: {error!s:.200}") from None


async def respond(request: Request, stream: Stream, writer: ResponseWriter) -> Response:
    """The response with the texts of a stream, whole or streamed as its options say.

    Raises:
        ApiError: a text failed before anything was sent.
        ClientDisconnect: the client has gone by then.
    """
    request.scope[TEXTS] = stream.texts
    if not stream.options.stream:
        await finished(request, stream)
        return await long_response(lambda: writer.whole(stream.texts))
    parts, id = _Body(request, stream, writer), conversation_of(request)
    if id:
        return await _respond_kept(streams_of(request), id, parts)
    try:
        await while_connected(request, asyncio.ensure_future(parts.begin()))
    except BaseException:
        stream.close()
        raise
    return _StreamResponse(parts)


async def _respond_kept(streams: KeptStreams, id: str, parts: _Body) -> Response:
    """The response of a stream that goes on when the client goes away."""
    try:
        kept = streams.open(id, parts.writer.media_type, parts.stream.close)
    except ApiError:
        parts.stream.close()
        raise
    try:
        await parts.begin()
    except BaseException:
        streams.drop(id)
        raise
    kept.feed(aiter(parts))
    headers = {"Cache-Control": "no-cache"}
    return StreamingResponse(kept.read(0), media_type=kept.media_type, headers=headers)


async def finished(request: Request, stream: Stream) -> None:
    """Wait for all texts of a stream.

    Raises:
        ApiError: a text failed.
        ClientDisconnect: the client has gone.
    """
    request.scope[TEXTS] = stream.texts
    try:
        await while_connected(request, asyncio.ensure_future(stream.wait()))
        if stream.is_closed:
            raise ClientDisconnect
    finally:
        stream.close()


class _Body:
    """The parts of a streamed response, as bytes.

    Attributes:
        is_whole: whether the last part has been made; False after the client went away.
    """

    def __init__(self, request: Request, stream: Stream, writer: ResponseWriter) -> None:
        ping_s = stream.options.sse_ping_s
        self.stream, self.writer, self._path = stream, writer, request.scope["path"]
        self._ping_s = ping_s if ping_s > 0 else None  # of silence, after which a comment is sent
        self.is_whole = False
        self._first: Pieces = []

    async def begin(self) -> None:
        """Wait for the first pieces, but not longer than for a comment.

        Raises:
            ApiError: a text failed.
        """
        try:
            async with asyncio.timeout(self._ping_s):
                self._first = await anext(self.stream, [])
        except TimeoutError:
            pass
        for text, _ in self._first:
            if text.error is not None:
                raise text.error

    async def __aiter__(self) -> AsyncIterator[bytes]:
        stream, writer = self.stream, self.writer
        pieces = self._first
        while True:
            parts: list[str] = []
            for text, piece in pieces:
                if text.error is not None:
                    path, media_type = self._path, writer.media_type
                    parts.append(stream_error(text.error, path, media_type).decode())
                else:
                    parts.append(writer.piece(text, piece))
            self.is_whole = stream.n_open == 0 and not stream.has_ready
            if self.is_whole:
                parts.append(writer.end)
            data = "".join(parts)
            if data:
                yield data.encode("utf-8", "replace")
            if self.is_whole or stream.is_closed:
                return
            while True:
                try:
                    async with asyncio.timeout(self._ping_s):
                        pieces = await anext(stream, [])
                    break
                except TimeoutError:
                    yield b":\n\n"


class _StreamResponse(Response):
    """Sends the texts of a stream as they arrive, and closes it at the end."""

    def __init__(self, parts: _Body) -> None:
        media_type = parts.writer.media_type
        super().__init__(media_type=media_type, headers={"Cache-Control": "no-cache"})
        del self.headers["content-length"]
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watch = asyncio.ensure_future(disconnected(Request(scope, receive)))
        watch.add_done_callback(lambda _: self._parts.stream.close())
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            more = True
            async for data in self._parts:
                more = not self._parts.is_whole
                await send({"type": "http.response.body", "body": data, "more_body": more})
            if more and self._parts.is_whole:  # the last part was empty
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            watch.cancel()
            self._parts.stream.close()
