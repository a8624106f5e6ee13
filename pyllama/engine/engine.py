"""The engine: shares one context between requests, with one batch per step.

    engine = Engine(context)
    number = engine.submit(Request(tokens, max_tokens=64))
    other = engine.submit(Request(tokens, pooling="mean"))
    while engine.has_work:
        for event in engine.step(): ...

    for event in engine.run(Request(tokens)): ...  # makes the steps; closing it aborts
    lease = Lease(engine)                          # direct control of one sequence
    lease.evaluate(tokens)

One thread steps. `submit`, `abort` and `wait` may be called from any thread, and take effect at the
next step. A request's tokens do not depend on other requests or on preemption.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from ..errors import BatchError, EngineDead, QueueFull, ReentrantCall
from ..speculative import Speculation
from .best_of import BestOf
from .jobs import End, Sink, TextRun, check_request, make_runs
from .prefix_store import PrefixStore
from .request import Event, Policy, Request, Run
from .rows import Row
from .scheduler import Scheduler
from .sequence import CacheSequence
from .step import Stepper
from .timings import Timings

if TYPE_CHECKING:
    from ..runtime.context import Context


class Engine:
    """Runs requests on a context.

    Args:
        context: the context; only the engine may use these sequences.
        policy: limits for sharing the context.
        timings: counts decodes and sampled tokens.
        sequences: ids of the sequences to use; None for all.
        speculation: how texts are drafted; None for no drafts. Its tokens are those without, or
            have their distribution, see `docs/speculation.md`.
        prefixes: keeps prompts that the sequences drop; None for none.

    Attributes:
        scheduler: the texts and sequences, for the thread that steps.
        stepper: makes the steps, for the same thread.
    """

    def __init__(
        self,
        context: Context,
        *,
        policy: Policy | None = None,
        timings: Timings | None = None,
        sequences: Sequence[int] | None = None,
        speculation: Speculation | None = None,
        prefixes: PrefixStore | None = None,
    ) -> None:
        numbers = range(context.kv.n_seq_max) if sequences is None else sequences
        self.context, self.policy, self.timings = context, policy or Policy(), timings or Timings()
        held = [CacheSequence(context, s) for s in numbers]
        self.scheduler = Scheduler(context, self.policy, held, speculation, prefixes)
        self.stepper = Stepper(context, self.scheduler, self.timings)
        # a method of the engine and its arguments; destructors put here too, and without the
        # engine itself, which would keep it alive
        self._inbox: SimpleQueue[tuple[Any, ...]] = SimpleQueue()
        self._arriving: set[TextRun] = set()  # in the inbox
        self._events, self._busy = list[Event](), False  # busy: within a step
        self._numbers, self._ids = itertools.count(), itertools.count()
        if speculation is not None:
            context.check_drafts()
            context.reserve(speculation.sizes(1), build=False)

    # --- requests -------------------------------------------------------------------------------

    @property
    def speculation(self) -> Speculation | None:
        """How texts are drafted; another may be assigned between steps, once all have ended."""
        return self.scheduler.speculation

    @speculation.setter
    def speculation(self, speculation: Speculation | None) -> None:
        self.scheduler.speculation = speculation

    @property
    def sequences(self) -> list[CacheSequence]:
        """The sequences, for the thread that steps; those with an owner belong to a request."""
        return self.scheduler.sequences

    @property
    def has_work(self) -> bool:
        """Whether a step has anything to do."""
        if self._events or not self._inbox.empty():
            return True
        return not all(r.paused for r in (*self.scheduler.running, *self.scheduler.waiting))

    @property
    def n_waiting(self) -> int:
        """Number of texts that wait for a sequence or cells."""
        return len(self.scheduler.waiting) + len(self._arriving)

    def submit(self, request: Request, sink: Sink | None = None) -> int:
        """Add a request to the queue; returns its number, which its events carry.

        Args:
            sink: called with each event of the request by the thread that steps; `step` then does
                not return them.

        Raises:
            ContextFull: the prompt does not fit into an empty context.
            BatchError: no tokens, an unknown token, all sequences are leased, a context shift
                of a model with learned positions, an unknown pooling; with non-causal attention a
                text to generate, or to embed that does not fit into a ubatch.
            ModelError: pooling ``rank`` of a model without classification head.
            SamplingError: see ``Chain`` and ``TextAssembler``.
            GrammarError: see ``Grammar.matcher``.
            QueueFull: see the policy's ``max_waiting``.
        """
        max_waiting = self.policy.max_waiting
        if max_waiting is not None and self.n_waiting >= max_waiting:
            raise QueueFull(f"{max_waiting} requests are waiting already; try again later")
        return self.enqueue(self.make_runs(request, sink))

    def make_runs(self, request: Request, sink: Sink | None = None) -> list[TextRun]:
        """The texts of a request, for `enqueue`; from any thread.

        Their number is known before the first event can come, so that they can be aborted.

        Raises: as `submit`, but QueueFull.
        """
        if all(sequence.leased for sequence in self.sequences):
            raise BatchError("all sequences of the context are leased; use a larger `n_seq_max`")
        return self._make_runs(request, list(map(int, request.tokens)), sink)

    def _make_runs(
        self,
        request: Request,
        tokens: list[int],
        sink: Sink | None = None,
        lease: CacheSequence | None = None,
    ) -> list[TextRun]:
        self._check_seq_id(request)
        number, params = next(self._numbers), request.sampling
        sink = sink or self._events.append
        if request.pooling is None and params.n_texts > params.n:
            sink = BestOf(params.n, params.n_texts, sink, lambda: self.abort(number)).take
        return make_runs(
            self.context, request, tokens, number=number, ids=self._ids, sink=sink, lease=lease
        )

    def enqueue(self, runs: Sequence[TextRun]) -> int:
        """Add the texts of a request to the queue; returns its number."""
        for run in runs:
            self._arriving.add(run)
            self._inbox.put((Engine._add, run))
        return runs[0].number

    def check(self, request: Request) -> None:
        """Raise the error that `submit` raises for a request's tokens, without making its texts."""
        self._check_seq_id(request)
        check_request(self.context, request, request.tokens)

    def _check_seq_id(self, request: Request) -> None:
        seq_id = request.seq_id
        if seq_id is not None and all(s.seq_id != seq_id for s in self.sequences):
            raise BatchError(f"seq_id: {seq_id} is not a sequence of this engine")

    def abort(self, number: int, choice: int | None = None) -> None:
        """End a request if it is waiting or running; its cells are freed after the current step.

        Args:
            choice: index of the text to end; None for all.
        """
        self._inbox.put((Engine._abort, number, choice))

    def end_reasoning(self, numbers: frozenset[int]) -> None:
        """End the reasoning of some requests with their next tokens; for the thread that steps.

        Texts without a reasoning budget, or that do not reason now, are left alone.
        """
        for run in self.scheduler.running:
            if run.number in numbers and run.chain.reasoning is not None:
                run.chain.reasoning.force()

    def wake(self) -> None:
        """Make a `wait` in another thread return."""
        self._inbox.put(WAKE)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block the stepping thread until there is work; returns False after the timeout."""
        if not self.has_work:
            try:
                self._take(self._inbox.get(timeout=timeout_s))
            except Empty:
                return False
        return True

    def run(self, request: Request) -> Run:
        """A generator of the events of one request, which makes steps as needed.

        Tokens sent to the generator are appended after the last one it yielded.

        Raises: as `submit`; exceptions of callbacks; errors of the decode, such as Aborted.
        """
        return self.run_in(None, request, list(map(int, request.tokens)))

    def run_in(
        self,
        lease: CacheSequence | None,
        request: Request,
        tokens: list[int],
        holder: object = None,
    ) -> Run:
        """`run` in a leased sequence, with other tokens; ``holder`` is kept alive while it runs."""
        mailbox: deque[Event] = deque()
        runs = self._make_runs(request, tokens, mailbox.append, lease)
        return self._run(runs, mailbox, holder)

    def _run(self, runs: list[TextRun], mailbox: deque[Event], holder: object) -> Run:
        for run in runs:
            run.is_run = run.paused = True
        self.enqueue(runs)
        n_open = runs[0].request.sampling.n
        try:
            while n_open:
                for run in runs:
                    run.paused = False
                while not mailbox:
                    if not any(map(self.stepper.emit_next_verified, runs)):
                        self.step()
                for run in runs:
                    run.paused = True
                while mailbox:
                    event = mailbox.popleft()
                    if event.kind == "tokens":
                        pass
                    elif event.kind == "end":
                        n_open -= 1
                    elif event.error is not None:
                        raise event.error
                    sent = yield event
                    if sent:
                        runs[event.choice].insert(sent)
        finally:
            if n_open:
                self.abort(runs[0].number)

    # --- leases ---------------------------------------------------------------------------------

    def take_sequence(self, *, keep: bool = False) -> CacheSequence:
        """Reserve a sequence for a `Lease`.

        Args:
            keep: keep the tokens that it holds; else it is cleared.

        Raises:
            BatchError: requests or leases use all sequences.
        """
        if not self._busy:
            self._take_all()  # leases may have ended
        free = self.scheduler.free()
        if not free:
            raise BatchError(
                f"all {len(self.sequences)} sequences are in use; use a larger `n_seq_max`"
            )
        sequence = min(free, key=lambda s: (s.n_tokens, s.seq_id))
        sequence.leased = True
        if not keep:
            sequence.clear()
        return sequence

    def release(self, sequence: CacheSequence) -> None:
        """Return a leased sequence at the next step; from any thread."""
        self._inbox.put((Engine._release, sequence))

    def decode(self, rows: Sequence[Row]) -> None:
        """Evaluate tokens of leased sequences as one batch. Raises: as `Context.decode`."""
        self._check_idle()
        self.stepper.decode(rows)

    def drop_prefixes(self) -> None:
        """Remove the tokens of all sequences that no request and no lease uses."""
        for sequence in self.scheduler.free():
            sequence.clear()

    def recover(self) -> None:
        """Reset the context in a child process that was forked during a step.

        Requests are evaluated again, except one whose `run` was making the step: its thread does
        not exist in the child.
        """
        self.context.reset()
        self._busy = False
        self.stepper.reset()
        self.scheduler.forget_all()

    # --- steps ----------------------------------------------------------------------------------

    def step(self) -> list[Event]:
        """Evaluate one batch, sample the next tokens, and return the events.

        Raises:
            ReentrantCall: called from a callback.
            Aborted, ComputeError, GGUFError: the decode stopped. Requests stay, and the next step
                tries again; call `abort` for those to be dropped, or `step_apart`.
        """
        self._check_idle()
        self._busy = True
        try:
            if not self._inbox.empty():
                self._take_all()
            self.stepper.step()
        finally:
            self._busy = False
        return self._take_events() if self._events else []

    def step_apart(self) -> list[Event]:
        """Find the requests whose steps fail, by steps of each without the others; returns events.

        They end with their error. For the thread that steps, after a `step` that raised.

        Raises:
            EngineDead: all requests failed, and so does one of a single token.
        """
        self._check_idle()
        self._busy = True
        requests = [r[:] for r in self.scheduler.runs.values() if not any(run.paused for run in r)]
        everyone = [run for runs in requests for run in runs]
        try:
            for run in everyone:
                run.paused = True
            n_good, errors = self._end_failing(requests)
            if errors and not n_good and self.scheduler.free():
                self._check_alive(errors[-1])
        finally:
            for run in everyone:
                run.paused = False
            self._busy = False
        return self._take_events()

    def _end_failing(self, requests: Sequence[list[TextRun]]) -> tuple[int, list[Exception]]:
        """End those of some paused requests that fail; returns the number of others that ran.

        First each running request has a step alone. If none fails, waiting ones are added to them,
        one after the other.
        """
        errors: list[Exception] = []
        started = [runs for runs in requests if any(run.sequence is not None for run in runs)]
        waiting = [runs for runs in requests if runs not in started]
        for runs in started:
            running = [run for run in runs if run.sequence is not None]
            if error := self._step_with(running, runs):
                errors.append(error)
            for run in running:
                run.paused = True
        n_good = len(started) - len(errors)
        running = [run for runs in started for run in runs]
        if errors or self._step_with(running):
            return n_good, errors
        for runs in sorted(waiting, key=lambda runs: runs[0].rank):
            if error := self._step_with(runs, runs):
                errors.append(error)
            elif all(run.sequence is None and run in self.scheduler.waiting for run in runs):
                break  # there is no place for it, nor for later ones
            else:
                n_good += 1
        return n_good, errors

    def _step_with(
        self, runs: Sequence[TextRun], blamed: Sequence[TextRun] = ()
    ) -> Exception | None:
        """A step with some paused texts, which are no longer paused.

        Returns its error, with which the texts end that are to blame for it.
        """
        for run in runs:
            run.paused = False
        try:
            self.stepper.step()
        except Exception as error:
            for run in blamed:
                self.scheduler.fail(run, error)
            return error
        return None

    def _check_alive(self, error: Exception) -> None:
        """Raise EngineDead if a request of one token fails; all others are paused or ended."""
        causal = self.context.hparams.causal
        request = Request([0], max_tokens=1, text=False, pooling=None if causal else "last")
        found: list[Event] = []
        try:
            for run in self.make_runs(request, found.append):
                self.scheduler.add(run)
            while not (found and found[-1].kind in ("end", "error")):
                self.stepper.step()
        except Exception as last:
            raise EngineDead(f"no request can be evaluated any more: {last}") from last
        if found[-1].error is not None:
            raise EngineDead(f"no request can be evaluated any more: {error}") from error

    def _check_idle(self) -> None:
        if self._busy:
            raise ReentrantCall("this engine is running the step that invoked this callback")

    def _take_events(self) -> list[Event]:
        events, self._events[:] = self._events[:], []
        return events

    # --- the inbox ------------------------------------------------------------------------------

    def _take_all(self) -> None:
        while True:
            try:
                self._take(self._inbox.get_nowait())
            except Empty:
                return

    def _take(self, item: tuple[Any, ...]) -> None:
        item[0](self, *item[1:])

    def _add(self, run: TextRun) -> None:
        self._arriving.discard(run)
        self.scheduler.add(run)

    def _abort(self, number: int, choice: int | None) -> None:
        for run in list(self.scheduler.runs.get(number, ())):
            if choice is None or run.choice == choice:
                self.scheduler.end(run, End("abort"))

    def _release(self, sequence: CacheSequence) -> None:
        for run in [*self.scheduler.running, *self.scheduler.waiting]:
            if run.lease is sequence:
                self.scheduler.end(run, End("abort"))
        sequence.leased, sequence.on_logits = False, None

    def _nothing(self) -> None:
        """Wakes the thread that waits."""


WAKE = (Engine._nothing,)
"""Put into the inbox by `Engine.wake`."""
