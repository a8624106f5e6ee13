"""Streams that go on without their client, and can be read again: ``X-Conversation-Id``.

    kept = streams.open(id, media_type, stream.close)  # a request with that header
    kept.feed(chunks)                              # a task appends the bytes of the response
    async for data in kept.read(0): ...            # the first reader, and any later one
    streams.drop(id)                               # aborts the text, and forgets the bytes

Bounds: `MAX_STREAMS` streams; of each, the last `MAX_BYTES`; ended ones for `KEEP_S` seconds, and
running ones that nobody has read for so long are aborted. All of it runs in the event loop.

Source: llama.cpp, tools/server/server-stream.cpp.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable

from starlette.requests import Request

from ..request.errors import ApiError

MAX_STREAMS = 64
MAX_BYTES = 4 << 20
KEEP_S = 300.0
_MAX_ID = 512  # characters
_HEADER = "x-conversation-id"


class KeptStream:
    """The last bytes of one response.

    Args:
        id: of the conversation.
        media_type: of the response.
        abort: ends the text.

    Attributes:
        n_dropped: bytes at the beginning that are not kept any more.
        started_s, completed_s: Unix times; ``completed_s`` is 0 while it runs.
        is_done: whether no more bytes come.
    """

    def __init__(self, id: str, media_type: str, abort: Callable[[], None]) -> None:
        self.id, self.media_type, self._abort = id, media_type, abort
        self.n_dropped, self.started_s, self.completed_s = 0, int(time.time()), 0
        self.is_done = False
        self._data = bytearray()
        self._changed = asyncio.Event()
        self._n_readers, self._idle_since = 0, time.monotonic()
        self._task: asyncio.Task[None] | None = None

    @property
    def n_bytes(self) -> int:
        """Number of bytes that the response has so far."""
        return self.n_dropped + len(self._data)

    @property
    def idle_s(self) -> float:
        """Seconds for which nobody has read, or since the end if that was later."""
        return 0.0 if self._n_readers else time.monotonic() - self._idle_since

    def feed(self, chunks: AsyncIterator[bytes]) -> None:
        """Begin to append the chunks of a response."""
        self._task = asyncio.create_task(self._feed(chunks))

    async def _feed(self, chunks: AsyncIterator[bytes]) -> None:
        try:
            async for chunk in chunks:
                self.append(chunk)
        finally:
            self._abort()
            self.finish()

    def append(self, chunk: bytes) -> None:
        """Add bytes; those at the beginning are dropped if there are too many."""
        self._data += chunk
        n = max(0, len(self._data) - MAX_BYTES)
        del self._data[:n]
        self.n_dropped += n
        self._wake()

    def finish(self) -> None:
        """No more bytes come."""
        if not self.is_done:
            self.is_done, self.completed_s = True, int(time.time())
            self._idle_since = time.monotonic()
            self._wake()

    def cancel(self) -> None:
        """Abort the text; readers end."""
        self._abort()
        self.finish()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def read(self, begin: int) -> AsyncIterator[bytes]:
        """The bytes from ``begin`` on, until the end; a reader that is too slow is left behind."""
        self._n_readers += 1
        try:
            while begin >= self.n_dropped:
                chunk = bytes(self._data[begin - self.n_dropped :])
                begin += len(chunk)
                if chunk:
                    yield chunk
                elif self.is_done:
                    return
                else:
                    await self._changed.wait()
        finally:
            self._n_readers -= 1
            self._idle_since = time.monotonic()


class KeptStreams:
    """The streams of a server by the id of their conversation, of which each has one at most."""

    def __init__(self) -> None:
        self._streams: dict[str, KeptStream] = {}

    def open(self, id: str, media_type: str, abort: Callable[[], None]) -> KeptStream:
        """A new stream; one with the same id is aborted.

        Raises:
            ApiError: the id is too long; or there are too many running streams (429).
        """
        if len(id) > _MAX_ID:
            raise ApiError.invalid(f"X-Conversation-Id has more than {_MAX_ID} characters")
        self.drop(id)
        self._expire()
        if len(self._streams) >= MAX_STREAMS:
            oldest = next((one.id for one in self._streams.values() if one.is_done), None)
            if oldest is None:
                raise ApiError(
                    429,
                    f"{MAX_STREAMS} streams with X-Conversation-Id are running already",
                    headers={"Retry-After": "1"},
                )
            self.drop(oldest)
        stream = self._streams[id] = KeptStream(id, media_type, abort)
        return stream

    def get(self, id: str) -> KeptStream | None:
        """The stream of a conversation, None if there is none any more."""
        self._expire()
        return self._streams.get(id)

    def drop(self, id: str) -> None:
        """Abort and forget a stream, if there is one."""
        stream = self._streams.pop(id, None)
        if stream is not None:
            stream.cancel()

    def found(self, ids: Iterable[str]) -> list[KeptStream]:
        """The streams of some ids, and those of ``ID::MODEL`` for each."""
        self._expire()
        return [
            stream
            for id in ids
            for stream in self._streams.values()
            if stream.id == id or stream.id.startswith(f"{id}::")
        ]

    def close(self) -> None:
        """Abort all streams."""
        for id in list(self._streams):
            self.drop(id)

    async def watch(self) -> None:
        """Drop what has expired, now and then, until cancelled."""
        while True:
            await asyncio.sleep(KEEP_S / 5)
            self._expire()

    def _expire(self) -> None:
        for stream in [one for one in self._streams.values() if one.idle_s > KEEP_S]:
            self.drop(stream.id)


def streams_of(request: Request) -> KeptStreams:
    """The streams of the application that serves a request."""
    found: KeptStreams = request.app.state.kept_streams
    return found


def conversation_of(request: Request) -> str:
    """The id of the conversation that a request's stream is kept for; empty for none."""
    return request.headers.get(_HEADER, "")
