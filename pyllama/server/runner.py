"""The thread that steps an engine, and the streams by which the event loop gets its texts.

    runner = EngineRunner(engine)
    runner.start(loop)
    stream = runner.submit(requests, texts)        # from any thread
    async for pieces in stream: ...                # [(text, piece), ...]; all that has arrived
    stream.close()                                 # aborts what still runs
    n = await runner.call(lambda engine: ...)      # a job between two steps
    await runner.close(timeout_s)

All events of a step reach the event loop by one wake-up. Only the thread that steps touches the
context; everything else about a context, such as saving a slot, is a job for that thread.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..engine import Engine, Event, Request, TokenLogprob
from ..errors import PyllamaError
from .errors import ApiError, error_of
from .metrics import Counts
from .text import Piece, Text

T = TypeVar("T")
Pieces = list[tuple[Text, Piece]]
_log = logging.getLogger("pyllama.server")
_IDLE_S = 60.0  # the longest wait for work; jobs and requests end it
_MAX_FAILED_STEPS = 3  # in a row, after which all requests are ended


@dataclass(slots=True)
class _Outgoing:
    """An event on its way to the event loop."""

    stream: Stream
    text: Text
    event: Event
    time_s: float
    prob: TokenLogprob | None


@dataclass(frozen=True, slots=True)
class _Job:
    """A job for the thread that steps, and its result."""

    work: Callable[[Engine], Any]
    may_run: Callable[[Engine], bool]
    done: Future[Any]

    def run(self, engine: Engine) -> bool:
        """Run the job if it may run now. Returns False if it must be tried again later."""
        if self.done.cancelled():
            return True
        if not self.may_run(engine):
            return False
        if self.done.set_running_or_notify_cancel():
            try:
                self.done.set_result(self.work(engine))
            except BaseException as error:
                self.done.set_exception(error)
        return True


@dataclass
class Slot:
    """What ``/slots`` tells about a sequence.

    Attributes:
        text: the text that runs in it, or ran last; None before the first.
        n_tasks: number of texts that it began.
    """

    id: int
    text: Text | None = None
    task_id: int = -1

    @property
    def is_processing(self) -> bool:
        """Whether a text runs in it."""
        return self.text is not None and not self.text.is_done


@dataclass(eq=False)
class Stream:
    """The texts of one request.

    Attributes:
        texts: all of them, in order of their index.
        id: of the response, by which other requests can find it; empty for none.
    """

    runner: EngineRunner
    texts: Sequence[Text]
    id: str = ""
    numbers: list[int] = field(default_factory=list)
    n_open: int = 0
    is_closed: bool = False
    _ready: deque[tuple[Text, Piece]] = field(default_factory=deque)
    _waiter: asyncio.Future[None] | None = None

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Pieces:
        """All pieces that have arrived, at least one."""
        while not self._ready:
            if not self.n_open or self.is_closed:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        pieces = list(self._ready)
        self._ready.clear()
        return pieces

    @property
    def has_ready(self) -> bool:
        """Whether pieces have arrived."""
        return bool(self._ready)

    def put(self, text: Text, piece: Piece) -> None:
        """Add a piece; the waiting reader is woken by `wake`."""
        self._ready.append((text, piece))
        if piece.is_last:
            self.n_open -= 1

    def wake(self) -> None:
        """Let the reader go on."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def close(self) -> None:
        """Abort the texts that have not ended; their slots are free after the running step."""
        if not self.is_closed:
            self.is_closed = True
            self.runner.forget(self)
        self.wake()

    async def wait(self) -> None:
        """Wait for the end of all texts. Raises: ApiError, of the first text that failed."""
        async for _ in self:
            for text in self.texts:
                if text.error is not None:
                    raise text.error


class EngineRunner:
    """Owns the thread that steps an engine.

    Args:
        engine: the engine; only this runner may step it.

    Attributes:
        slots: one for each sequence.
        counts: totals for ``/metrics``.
        is_closing: whether new requests are refused.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine, self.counts = engine, Counts()
        self.slots = [Slot(sequence.seq_id) for sequence in engine.sequences]
        self.is_closing = False
        self.last_active_s = time.monotonic()
        self._streams: set[Stream] = set()
        self._outbox: list[_Outgoing] = []
        self._jobs: deque[_Job] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = threading.Event()
        self._n_tasks = 0
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to step; the streams belong to this event loop."""
        self._loop = loop
        self._thread.start()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the streams."""
        assert self._loop is not None
        return self._loop

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs, or was not started yet."""
        return self._loop is None or self._thread.is_alive()

    @property
    def n_processing(self) -> int:
        """Number of slots with a running text."""
        return sum(slot.is_processing for slot in self.slots)

    @property
    def n_deferred(self) -> int:
        """Number of texts that wait for a slot."""
        return max(0, sum(stream.n_open for stream in self._streams) - self.n_processing)

    @property
    def is_idle(self) -> bool:
        """Whether no request is open."""
        return not self._streams

    def submit(self, requests: Sequence[Request], texts: Sequence[Text]) -> Stream:
        """Queue requests, whose texts follow each other in ``texts``; from any thread.

        Raises:
            ApiError: the server is shutting down.
            PyllamaError: as ``Engine.submit``.
        """
        if self.is_closing:
            raise _shutting_down()
        stream = Stream(self, texts, n_open=len(texts))
        now, first = time.perf_counter(), 0
        self.loop.call_soon_threadsafe(self._streams.add, stream)
        try:
            for request in requests:
                n = request.sampling.n
                mine = texts[first : first + n]
                for text in mine:
                    text.queued_s = now
                stream.numbers.append(self.engine.submit(request, self._sink(stream, mine)))
                first += n
        except BaseException:
            self.loop.call_soon_threadsafe(stream.close)
            raise
        return stream

    def call(
        self,
        job: Callable[[Engine], T],
        may_run: Callable[[Engine], bool] = lambda engine: True,
    ) -> asyncio.Future[T]:
        """Run a job in the thread that steps, between two steps.

        Args:
            may_run: asked between steps, in that thread; the job waits until it returns true.

        Raises:
            ApiError: the server shuts down before the job has run (503).
        """
        if self._stopped.is_set():
            raise _shutting_down()
        done: Future[T] = Future()
        self._jobs.append(_Job(job, may_run, done))
        self.engine.wake()
        return asyncio.wrap_future(done)

    def stream(self, id: str) -> Stream | None:
        """The open stream with an id, None if there is none."""
        return next((stream for stream in self._streams if stream.id == id), None)

    def forget(self, stream: Stream) -> None:
        """Abort a stream's texts that have not ended."""
        self._streams.discard(stream)
        if stream.n_open:
            self._abort(stream)
            for text in stream.texts:
                if not text.is_done:
                    text.is_done, text.stop_type = True, "none"
                    self.counts.n_aborted += 1

    async def drain(self, timeout_s: float) -> None:
        """Refuse new requests, let the running ones go on for a time, and then end them."""
        self.is_closing = True
        end = time.monotonic() + timeout_s
        while self._streams and time.monotonic() < end:
            await asyncio.sleep(0.02)
        error = _shutting_down()
        for stream in list(self._streams):
            self._fail(stream, error)

    async def close(self, timeout_s: float) -> None:
        """Drain, and stop the thread."""
        await self.drain(timeout_s)
        self._stopped.set()
        self.engine.wake()
        while self._thread.is_alive():
            await asyncio.sleep(0.01)

    # --- the thread that steps ------------------------------------------------------------------

    def _run(self) -> None:
        engine, n_failed = self.engine, 0
        waiting: list[_Job] = []
        while not self._stopped.is_set():
            while self._jobs:
                waiting.append(self._jobs.popleft())
            waiting = [job for job in waiting if not job.run(engine)]
            if not engine.wait(_IDLE_S) or self._jobs or self._stopped.is_set():
                continue
            try:
                engine.step()
                n_failed = 0
            except Exception as error:  # the requests stay, and the next step tries again
                n_failed += 1
                _log.exception("a step failed")
                if n_failed >= _MAX_FAILED_STEPS or not isinstance(error, PyllamaError):
                    self._in_loop(self._fail_all, error_of(error))
                    n_failed = 0
                    time.sleep(0.05)  # until the aborts arrive
            if self._outbox:
                outbox, self._outbox = self._outbox, []
                self._in_loop(self._deliver, outbox)
        for job in (*waiting, *self._jobs):
            if job.done.set_running_or_notify_cancel():
                job.done.set_exception(_shutting_down())

    def _in_loop(self, function: Callable[..., None], *args: Any) -> None:
        try:
            self.loop.call_soon_threadsafe(function, *args)
        except RuntimeError:  # the event loop has ended
            self._stopped.set()

    def _sink(self, stream: Stream, texts: Sequence[Text]) -> Callable[[Event], None]:
        """Takes the events of one request, in the thread that steps."""
        clock = time.perf_counter

        def take(event: Event) -> None:
            text = texts[event.choice]
            # `self._outbox` is replaced after each step
            self._outbox.append(_Outgoing(stream, text, event, clock(), text.stamp(event)))

        return take

    # --- the event loop -------------------------------------------------------------------------

    def _deliver(self, outbox: list[_Outgoing]) -> None:
        """Take the events of a step."""
        self.counts.n_decode += 1
        self.counts.n_busy_slots += self.n_processing
        self.last_active_s = time.monotonic()
        touched: dict[Stream, None] = {}
        for out in outbox:
            stream, text = out.stream, out.text
            if stream.is_closed or text.is_done:
                continue
            slot = text.slot
            pieces = text.take(out.event, out.time_s, out.prob)
            if text.slot != slot and text.slot >= 0:
                self._enter(self.slots[text.slot], text)
            for piece in pieces:
                if piece.is_last:
                    self.counts.add(text)
                stream.put(text, piece)
                touched[stream] = None
            if text.is_over and not text.is_done:
                self._cut(stream, text)
        for stream in touched:
            if not stream.n_open:
                self._streams.discard(stream)
            stream.wake()

    def _enter(self, slot: Slot, text: Text) -> None:
        slot.text, slot.task_id = text, self._n_tasks
        self._n_tasks += 1

    def _cut(self, stream: Stream, text: Text) -> None:
        """End a text, as if its maximum length were reached."""
        request, choice = divmod(text.index, text.options.params.n)
        self.engine.abort(stream.numbers[request], choice)
        text.is_done, text.stop_type = True, "limit"
        self.counts.add(text)
        stream.put(text, Piece(is_last=True, n_generated=text.n_generated))

    def _abort(self, stream: Stream) -> None:
        for number in stream.numbers:
            self.engine.abort(number)

    def _fail_all(self, error: ApiError) -> None:
        for stream in list(self._streams):
            self._fail(stream, error)

    def _fail(self, stream: Stream, error: ApiError) -> None:
        self._abort(stream)
        self._streams.discard(stream)
        for text in stream.texts:
            if not text.is_done:
                text.is_done, text.error = True, error
                stream.put(text, Piece(is_last=True))
        stream.wake()


def _shutting_down() -> ApiError:
    return ApiError(503, "the server is shutting down", headers={"Retry-After": "5"})
