"""The way of a request's pieces to the task that writes its response.

    stream = Stream(texts, runner.forget)          # of `EngineRunner.submit`
    async for pieces in stream: ...                # [(text, piece), ...]; all that has arrived
    stream.close()                                 # aborts what still runs

For the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ...engine import Request
from ..request.request_options import CompletionOptions
from .choice import Choice, Piece

Pieces = list[tuple[Choice, Piece]]


@dataclass(eq=False)
class Stream:
    """The texts of one request.

    Attributes:
        texts: all of them, in order of their index.
        forget: called when it is closed.
        id: of the response, by which other requests can find it; empty for none.
        numbers: of the engine's requests so far.
        n_open: number of texts that have not ended.
        n_given: number of texts that the engine has got so far; changed with the runner's lock.
        waiting: the engine's requests that it does not have yet, and their texts.
    """

    texts: Sequence[Choice]
    forget: Callable[[Stream], None]
    id: str = ""
    numbers: list[int] = field(default_factory=list)
    n_open: int = 0
    n_given: int = 0
    waiting: deque[tuple[Request, Sequence[Choice]]] = field(default_factory=deque)
    is_closed: bool = False
    _ready: deque[tuple[Choice, Piece]] = field(default_factory=deque)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Pieces:
        """All pieces that have arrived, at least one."""
        while not self._ready:
            if not self.n_open or self.is_closed:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        pieces = list(self._ready)
        self._ready.clear()
        return pieces

    @property
    def n_fed(self) -> int:
        """The number of texts that the engine has now."""
        return self.n_given - (len(self.texts) - self.n_open)

    @property
    def options(self) -> CompletionOptions:
        """What the request asks of its texts."""
        return self.texts[0].options

    @property
    def has_ready(self) -> bool:
        """Whether pieces have arrived."""
        return bool(self._ready)

    def put(self, text: Choice, piece: Piece) -> None:
        """Add a piece; the waiting reader is woken by `wake`."""
        self._ready.append((text, piece))
        if piece.is_last:
            self.n_open -= 1

    def wake(self) -> None:
        """Let the reader go on."""
        self._changed.set()

    def close(self) -> None:
        """Abort the texts that have not ended; their slots are free after the running step."""
        if not self.is_closed:
            self.is_closed = True
            self.forget(self)
        self.wake()

    async def wait(self) -> None:
        """Wait for the end of all texts. Raises: ApiError, of the first text that failed."""
        async for _ in self:
            for text in self.texts:
                if text.error is not None:
                    raise text.error
