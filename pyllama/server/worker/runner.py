"""The thread that steps an engine, and the streams by which the event loop gets its texts.

    runner = EngineRunner(engine)
    runner.start(loop)
    stream = runner.submit(requests, texts)        # from any thread
    async for pieces in stream: ...                # [(text, piece), ...]; all that has arrived
    stream.close()                                 # aborts what still runs
    n = await runner.call(lambda engine: ...)      # between two steps
    await runner.close(timeout_s)

All events of a step reach the event loop by one wake-up. Only the thread that steps touches the
context; everything else about a context, such as saving a slot, is a call for that thread.

A request is admitted or refused as a whole, by the number of requests that wait before it. The
engine gets a few of its texts at a time and further ones as those end, so the states of samplers
and grammars are bounded, and requests of few texts get a slot in the meantime. So that memory is
bounded too, a request of more texts than that is refused while many texts wait.

If a step fails, only the requests whose own steps fail end; if its drafter fails, texts go on
without drafts. If the thread cannot go on, all streams and calls end with an error, and further
ones are refused (`EngineDead`).
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ...engine import Engine, Event, Request
from ...errors import EngineDead, PyllamaError, QueueFull
from ..request.errors import ApiError, error_of, shutting_down
from .calls import EngineCalls
from .choice import Choice, Piece
from .metrics import Counts
from .stream import Stream
from .threads import SMALL

T = TypeVar("T")
_log = logging.getLogger("pyllama.server")
_IDLE_S = 60.0  # the longest wait for work; calls and requests end it
_MAX_FAILED_STEPS = 3  # in a row, after which the requests that make them fail are ended
_FED_PER_SLOT = 2  # texts of one request that the engine has at a time, for each slot
_SHORT = 8  # tokens of a short text


@dataclass
class Slot:
    """What ``/slots`` tells about a sequence.

    Attributes:
        text: the text that runs in it, or ran last; None before the first.
        task_id: number of that text, of those that slots began; -1 before the first.
    """

    id: int
    text: Choice | None = None
    task_id: int = -1

    @property
    def is_processing(self) -> bool:
        """Whether a text runs in it."""
        return self.text is not None and not self.text.is_done


Outbox = list[tuple[Stream, Choice, Event, float]]
"""Events of some texts on their way to the event loop, with their times."""


class EngineRunner:
    """Owns the thread that steps an engine.

    Args:
        engine: the engine; only this runner may step it.
        max_waiting: number of requests that may wait for a slot; while there are as many, others
            are refused. None for no limit.

    Attributes:
        slots: one for each sequence.
        loop: the event loop of the streams, once it has begun.
        counts: totals for ``/metrics``.
        refusal: why new requests are refused, None while they are not.
        on_dead: called in the event loop with the error if the thread has ended by itself.
    """

    def __init__(self, engine: Engine, max_waiting: int | None = None) -> None:
        self.engine, self.counts = engine, Counts()
        self.slots = [Slot(sequence.seq_id) for sequence in engine.sequences]
        self.refusal: ApiError | None = None
        self.on_dead: Callable[[EngineDead], object] = lambda error: None
        self.last_active_s = time.monotonic()
        self._max_waiting = max_waiting
        self._lock = threading.Lock()  # of what other threads than the event loop's use
        self._streams: dict[Stream, None] = {}  # in the order of their arrival
        self._calls = EngineCalls()
        self._outbox: Outbox = []
        self._stopped = threading.Event()
        self._n_tasks = 0
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to step; the streams belong to this event loop."""
        self.loop = loop
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs, or was not started yet."""
        return self._calls.error is None and (self._thread.ident is None or self._thread.is_alive())

    def check(self) -> None:
        """Raise ApiError (503) if the thread has ended."""
        if self._calls.error is not None:
            raise self._calls.error

    @property
    def n_processing(self) -> int:
        """Number of slots with a running text."""
        return sum(slot.is_processing for slot in self.slots)

    @property
    def n_deferred(self) -> int:
        """Number of texts that wait for a slot."""
        return max(0, self._n_open - self.n_processing)

    @property
    def _n_open(self) -> int:
        return sum(stream.n_open for stream in self._open_streams())

    @property
    def is_idle(self) -> bool:
        """Whether no request is open."""
        return not self._streams

    def submit(self, requests: Sequence[Request], texts: Sequence[Choice]) -> Stream:
        """Queue requests, whose texts follow each other in ``texts``; from any thread.

        Raises:
            ApiError: the server is shutting down, or its engine has ended.
            QueueFull: too many other requests wait already.
            PyllamaError: as ``Engine.submit``.
        """
        for request in requests:
            self.engine.check(request)
        stream, first = Stream(texts, self.forget, n_open=len(texts)), 0
        for request in requests:
            n = request.sampling.n
            stream.waiting.append((request, texts[first : first + n]))
            first += n
        now = time.perf_counter()
        for text in texts:
            text.queued_s = now
        with self._lock:
            if self.refusal is not None:
                raise self.refusal
            self._check_queue(len(texts))
            self._streams[stream] = None
        try:
            self._feed(stream)
        except BaseException:
            self.loop.call_soon_threadsafe(stream.close)
            raise
        return stream

    def _check_queue(self, n_texts: int) -> None:
        """Raise QueueFull if a request of so many texts must not wait; with the lock."""
        if self._max_waiting is None:
            return
        n_free, n_requests, n_waiting = len(self.slots), 0, 0
        for stream in self._streams:
            n_late = max(0, stream.n_open - n_free)
            n_free = max(0, n_free - stream.n_open)
            n_requests, n_waiting = n_requests + (n_late > 0), n_waiting + n_late
        is_large = n_texts > self._n_fed_at_once
        if (n_waiting if is_large else n_requests) >= self._max_waiting:
            what = f"{n_waiting} texts" if is_large else f"{n_requests} requests"
            raise QueueFull(f"{what} are waiting already; try again later")

    @property
    def _n_fed_at_once(self) -> int:
        """Texts of one request that the engine has at a time.

        Without causality a step takes as many as fit.
        """
        n, context = _FED_PER_SLOT * len(self.slots), self.engine.context
        return n if context.hparams.causal else max(n, context.n_ubatch // _SHORT)

    def _feed(self, stream: Stream) -> None:
        """Give the engine the next requests of a stream, up to a number of texts; in any thread.

        Raises: as ``Engine.submit``.
        """
        limit = self._n_fed_at_once
        while True:
            with self._lock:
                if stream not in self._streams or not stream.waiting or stream.n_fed >= limit:
                    return
                request, texts = stream.waiting.popleft()
                stream.n_given += len(texts)
            if request.deadline_s is not None:  # counts from the arrival of the whole request
                gone_s = time.perf_counter() - texts[0].queued_s
                request = replace(request, deadline_s=request.deadline_s - gone_s)
            runs = self.engine.make_runs(request, self._sink(stream, texts))
            with self._lock:
                if stream in self._streams:  # else it has ended in the meantime
                    stream.numbers.append(runs[0].number)
                    self.engine.enqueue(runs)

    def _feed_later(self, stream: Stream) -> None:
        """Give the engine further requests of a stream, by another thread."""

        def feed() -> None:
            try:
                self._feed(stream)
            except Exception as error:
                _log.exception("a text cannot be queued")
                self._in_loop(self._fail, stream, error_of(error))

        SMALL.submit(feed)

    def call(
        self,
        work: Callable[[Engine], T],
        may_run: Callable[[Engine], bool] = lambda engine: True,
    ) -> asyncio.Future[T]:
        """Run work in the thread that steps, between two steps.

        Args:
            may_run: asked between steps, in that thread; it waits until it returns true.

        Cancelling the result removes work that has not begun.

        Raises:
            ApiError: the server shuts down, or its engine ends, before it has run (503).
        """
        done = self._calls.add(work, may_run)
        self.engine.wake()
        return asyncio.wrap_future(done)

    def stream(self, id: str) -> Stream | None:
        """The open stream with an id, None if there is none."""
        return next((stream for stream in self._open_streams() if stream.id == id), None)

    def forget(self, stream: Stream) -> None:
        """Abort a stream's texts that have not ended."""
        if self._remove(stream):
            for text in stream.texts:
                if not text.is_done:
                    text.is_done, text.stop_type = True, "none"
                    self.counts.n_aborted += 1

    async def drain(self, timeout_s: float) -> None:
        """Refuse new requests, let the running ones go on for a time, and then end them."""
        with self._lock:
            self.refusal = self.refusal or shutting_down()
        end = time.monotonic() + timeout_s
        while self._streams and time.monotonic() < end:
            await asyncio.sleep(0.02)
        self._fail_all(shutting_down())

    async def close(self, timeout_s: float, abort_s: float | None = None) -> bool:
        """Drain, and stop the thread; returns whether it has ended.

        Args:
            abort_s: seconds that the running step or call gets to end; None for any.
        """
        await self.drain(timeout_s)
        self._stopped.set()
        self.engine.wake()
        end = None if abort_s is None else time.monotonic() + abort_s
        while self._thread.is_alive() and (end is None or time.monotonic() < end):
            if end is not None:
                self.engine.context.abort()
            await asyncio.sleep(0.01)
        return not self._thread.is_alive()

    # --- the thread that steps ------------------------------------------------------------------

    def _run(self) -> None:
        error = shutting_down()
        try:
            self._step_until_stopped()
        except BaseException as found:
            _log.critical("the engine's thread has ended", exc_info=found)
            dead = found
            if not isinstance(dead, EngineDead):
                kind = type(found).__name__
                dead = EngineDead(f"the engine has ended by an internal error: {kind}")
                dead.__cause__ = found
            error = error_of(dead)
            self._in_loop(self._die, dead, self._outbox)
        self._calls.end(error)

    def _step_until_stopped(self) -> None:
        """Step, and run calls between steps."""
        engine, n_failed, n_useless = self.engine, 0, 0
        while not self._stopped.is_set():
            self._calls.run(engine)
            try:
                if not engine.wait(_IDLE_S) or self._calls.has_new or self._stopped.is_set():
                    continue
                engine.step()
                n_failed = n_useless = 0
            except Exception as error:  # the requests stay, and the next step tries again
                if self._stopped.is_set():
                    return
                if engine.speculation is not None and engine.speculation.stop_if_failed(error):
                    continue
                n_failed += 1
                _log.exception("a step failed")
                if n_failed >= _MAX_FAILED_STEPS or not isinstance(error, PyllamaError):
                    engine.step_apart()
                    n_useless, n_failed = 0 if self._outbox else n_useless + 1, 0
                    if n_useless >= _MAX_FAILED_STEPS:
                        raise
            if self._outbox:
                outbox, self._outbox = self._outbox, []
                self._in_loop(self._deliver, outbox)

    def _in_loop(self, function: Callable[..., None], *args: Any) -> None:
        try:
            self.loop.call_soon_threadsafe(function, *args)
        except RuntimeError:  # the event loop has ended
            self._stopped.set()

    def _sink(self, stream: Stream, texts: Sequence[Choice]) -> Callable[[Event], None]:
        """Takes the events of one request, in the thread that steps."""
        clock = time.perf_counter

        def take(event: Event) -> None:
            text = texts[event.choice]
            # an error of `stamp` ends the text by an "error", which must arrive
            stamped = text.stamp(event) if event.kind == "tokens" else event
            # `self._outbox` is replaced after each step
            self._outbox.append((stream, text, stamped, clock()))

        return take

    # --- the event loop -------------------------------------------------------------------------

    def _deliver(self, outbox: Outbox) -> None:
        """Take the events of a step."""
        self.counts.n_decode += 1
        self.counts.n_busy_slots += self.n_processing
        self.last_active_s = time.monotonic()
        touched: dict[Stream, None] = {}
        for stream, text, event, time_s in outbox:
            if stream.is_closed or text.is_done:
                continue
            try:
                if self._take(stream, text, event, time_s):
                    touched[stream] = None
            except Exception as error:  # of this request alone
                _log.exception("an event cannot be delivered")
                self._fail(stream, error_of(error), text)
        for stream in touched:
            if not stream.n_open:
                self._discard(stream)
            elif stream.waiting:
                self._feed_later(stream)
            stream.wake()

    def _take(self, stream: Stream, text: Choice, event: Event, time_s: float) -> bool:
        """Take an event that occurred at some time; returns whether its stream has got a piece."""
        slot = text.slot
        pieces = text.take(event, time_s)
        if text.slot != slot and text.slot >= 0:
            entered = self.slots[text.slot]
            entered.text, entered.task_id = text, self._n_tasks
            self._n_tasks += 1
        for piece in pieces:
            if piece.is_last:
                self.counts.add(text)
            stream.put(text, piece)
        return bool(pieces)

    def _open_streams(self) -> list[Stream]:
        with self._lock:
            return list(self._streams)

    def _discard(self, stream: Stream) -> bool:
        """Let no more texts of a stream begin; returns whether it was open."""
        with self._lock:
            if stream not in self._streams:
                return False
            del self._streams[stream]
            stream.waiting.clear()
            return True

    def _remove(self, stream: Stream) -> bool:
        """Abort the texts of an open stream; returns whether it was open."""
        was_open = self._discard(stream)
        if was_open:
            for number in stream.numbers:
                self.engine.abort(number)
        return was_open

    def _fail(self, stream: Stream, error: ApiError, cause: Choice | None = None) -> None:
        """End an open stream's texts with an error, also the one that is its cause."""
        if not self._remove(stream):
            return
        for text in stream.texts:
            if text is cause or not text.is_done:
                text.is_done, text.error = True, error
                stream.put(text, Piece(is_last=True))
        stream.wake()

    def _fail_all(self, error: ApiError) -> None:
        for stream in self._open_streams():
            self._fail(stream, error)

    def _die(self, error: EngineDead, outbox: Outbox) -> None:
        """End all streams after the thread that steps, and its last events."""
        with self._lock:
            self.refusal = error_of(error)
        try:
            self._deliver(outbox)
        finally:
            self._fail_all(error_of(error))
            self.on_dead(error)
