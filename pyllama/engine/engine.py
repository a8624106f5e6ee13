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
import sys
import time
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import (
    BatchError,
    ContextFull,
    EngineDead,
    GrammarError,
    QueueFull,
    ReentrantCall,
    SamplingError,
    StateError,
    TextComplete,
)
from ..grammar import Grammar
from ..hparams import POOLINGS
from ..runtime.batch import Batch
from ..runtime.state import dump_state, restore_state
from ..sampling import SamplingParams, apply_logits_processors, chain_for
from ..speculative import Speculation
from .best_of import BestOf
from .drafting import DraftStep, Verification
from .job import Job
from .logprobs import PromptLogprobs, token_logprob
from .pooling import PooledRows
from .prefix_store import PrefixStore
from .request import (
    EndReason,
    Event,
    Kind,
    Policy,
    Request,
    Run,
    TokenLogprob,
    check_prompt,
)
from .sequence import UNKNOWN, Row, Sequence, batch_of, n_common
from .text import TextAssembler
from .timings import Timings

if TYPE_CHECKING:
    from ..runtime.context import Context

_LAST = [-1]
_NO_REQUEST = -1


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
    """

    def __init__(
        self,
        context: Context,
        *,
        policy: Policy | None = None,
        timings: Timings | None = None,
        sequences: Seq[int] | None = None,
        speculation: Speculation | None = None,
        prefixes: PrefixStore | None = None,
    ) -> None:
        self.prefixes = prefixes
        self.context, self.policy = context, policy or Policy()
        self.timings, self.speculation = timings or Timings(), speculation
        numbers = range(context.kv.n_seq_max) if sequences is None else sequences
        self._sequences = [Sequence(context, s) for s in numbers]
        # jobs to add, requests or texts to abort, leases to end; destructors put here too
        self._inbox: SimpleQueue[Job | int | tuple[int, int] | Sequence] = SimpleQueue()
        self._arriving: set[Job] = set()  # jobs in the inbox
        self._jobs: dict[int, list[Job]] = {}
        self._waiting: list[Job] = []
        self._running: list[Job] = []
        self._events: list[Event] = []
        self._numbers, self._arrivals = itertools.count(), itertools.count()
        self._n_steps = 0
        self._any_deadline = False
        self._busy = False  # within a step
        self._needs_resync = False  # a step was interrupted: cache and sequences may differ
        if speculation is not None:
            context.reserve(speculation.sizes(1), build=False)
        self._logits_of: Sequence | None = None  # the sequence of the context's last logits
        self._logits_at = 0  # its number of tokens at that decode
        self._logits_rows = _LAST  # the logits' rows of its last tokens

    # --- requests -------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether a step has anything to do."""
        if self._events or not self._inbox.empty():
            return True
        return not all(job.paused for job in (*self._running, *self._waiting))

    def submit(self, request: Request, sink: Callable[[Event], None] | None = None) -> int:
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
        return self.enqueue(self.make_jobs(request, sink))

    def make_jobs(self, request: Request, sink: Callable[[Event], None] | None = None) -> list[Job]:
        """The texts of a request, for `enqueue`; from any thread.

        Their number is known before the first event can come, so that they can be aborted.

        Raises: as `submit`, but QueueFull.
        """
        if all(sequence.leased for sequence in self._sequences):
            raise BatchError("all sequences of the context are leased; use a larger `n_seq_max`")
        jobs = self._make_jobs(request, list(map(int, request.tokens)))
        self._connect(jobs, sink)
        return jobs

    def enqueue(self, jobs: Seq[Job]) -> int:
        """Add the texts of a request to the queue; returns its number."""
        for job in jobs:
            self._arriving.add(job)
            self._inbox.put(job)
        return jobs[0].number

    @property
    def sequences(self) -> Seq[Sequence]:
        """The sequences, for the thread that steps; those with an owner belong to a request."""
        return self._sequences

    @property
    def n_waiting(self) -> int:
        """Number of texts that wait for a sequence or cells."""
        return len(self._waiting) + len(self._arriving)

    def check_pooled(self, tokens: Seq[int], pooling: str) -> None:
        """Raise the error that `submit` raises for a request with a pooling."""
        context = self.context
        if not len(tokens):
            raise BatchError("there are no tokens to embed: the text is empty")
        if pooling not in POOLINGS:
            raise BatchError(f"pooling is {pooling!r}, want one of {', '.join(POOLINGS)}")
        check_prompt(len(tokens), 0, context.n_ctx_seq, min_room=0)
        if not context.hparams.causal and len(tokens) > context.n_ubatch:
            raise BatchError(
                f"the text has {len(tokens)} tokens, which attend to later ones, so it must fit "
                f"into one ubatch of {context.n_ubatch}; use `n_ubatch={len(tokens)}` or more"
            )
        _check_ids(tokens, context.model.hparams.n_vocab)
        if pooling == "rank":
            context.check_classifier()

    def check(self, request: Request) -> None:
        """Raise the error that `submit` raises for a request's tokens, without making its jobs."""
        if request.pooling is not None:
            self.check_pooled(request.tokens, request.pooling)
        else:
            self._check_text(request, request.tokens)

    def abort(self, number: int, choice: int | None = None) -> None:
        """End a request if it is waiting or running; its cells are freed after the current step.

        Args:
            choice: index of the text to end; None for all.
        """
        self._inbox.put(number if choice is None else (number, choice))

    def end_reasoning(self, numbers: frozenset[int]) -> None:
        """End the reasoning of some requests with their next tokens; for the thread that steps.

        Texts without a reasoning budget, or that do not reason now, are left alone.
        """
        for job in self._running:
            if job.number in numbers and job.chain.reasoning is not None:
                job.chain.reasoning.force()

    def wake(self) -> None:
        """Make a `wait` in another thread return."""
        self._inbox.put(_NO_REQUEST)

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

        Raises:
            As `submit`; exceptions of callbacks; errors of the decode, such as Aborted.
        """
        return self._run(self._make_jobs(request, list(map(int, request.tokens))))

    def take_sequence(self, *, keep: bool = False) -> Sequence:
        """Reserve a sequence for a `Lease`.

        Args:
            keep: keep the tokens that it holds; else it is cleared.

        Raises:
            BatchError: requests or leases use all sequences.
        """
        if not self._busy:
            self._take_all()  # leases may have ended
        free = self._free()
        if not free:
            raise BatchError(
                f"all {len(self._sequences)} sequences are in use; use a larger `n_seq_max`"
            )
        sequence = min(free, key=lambda s: (s.n_tokens, s.seq_id))
        sequence.leased = True
        if not keep:
            sequence.clear()
        return sequence

    def drop_prefixes(self) -> None:
        """Remove the tokens of all sequences that no request and no lease uses."""
        for sequence in self._free():
            sequence.clear()

    def recover(self) -> None:
        """Reset the context in a child process that was forked during a step.

        Requests are evaluated again, except one whose `run` was making the step: its thread does
        not exist in the child.
        """
        self.context.reset()
        self._busy = self._needs_resync = False
        for sequence in self._sequences:
            sequence.adopt(())
            sequence.owner = None
        self._jobs = {
            number: jobs
            for number, jobs in self._jobs.items()
            if not any(job.is_run and not job.paused for job in jobs)
        }
        self._running, self._waiting = [], [job for jobs in self._jobs.values() for job in jobs]
        for job in self._waiting:
            job.sequence, job.n_shared_cells, job.saved = None, 0, b""

    # --- a step ---------------------------------------------------------------------------------

    def step(self) -> list[Event]:
        """Evaluate one batch, sample the next tokens, and return the events.

        Raises:
            ReentrantCall: called from a callback.
            Aborted, ComputeError, GGUFError: the decode stopped. Requests stay, and the next step
                tries again; call `abort` for those to be dropped, or `step_apart`.
        """
        if self._busy:
            raise ReentrantCall("this engine is running the step that invoked this callback")
        self._busy = True
        try:
            if not self._inbox.empty():
                self._take_all()
            self._step()
        finally:
            self._busy = False
        events = self._events
        if events:
            self._events = []
            return events
        return []

    def _step(self) -> None:
        """A step without the inbox."""
        if self._needs_resync:
            self._resync()
        self._needs_resync = True
        self._n_steps += 1
        if self._any_deadline:
            self._expire()
        if self._waiting:
            self._admit()
        drafted = self.speculation is not None and self._step_drafted(self.speculation)
        if not (drafted or self._step_single() or self._step_tokens()):
            self._step_mixed()
        self._needs_resync = False

    def step_apart(self) -> list[Event]:
        """Find the requests whose steps fail, by steps of each without the others; returns events.

        They end with their error. For the thread that steps, after a `step` that raised.

        Raises:
            EngineDead: all requests failed, and so does one of a single token.
        """
        if self._busy:
            raise ReentrantCall("this engine is running the step that invoked this callback")
        self._busy = True
        requests = [jobs[:] for jobs in self._jobs.values() if not any(j.paused for j in jobs)]
        everyone = [job for jobs in requests for job in jobs]
        try:
            for job in everyone:
                job.paused = True
            n_good, errors = self._end_failing(requests)
            if errors and not n_good and self._free():
                self._check_alive(errors[-1])
        finally:
            for job in everyone:
                job.paused = False
            self._busy = False
        events, self._events = self._events, []
        return events

    def _end_failing(self, requests: Seq[list[Job]]) -> tuple[int, list[Exception]]:
        """End those of some paused requests that fail; returns the number of others that ran.

        First each running request has a step alone. If none fails, waiting ones are added to them,
        one after the other.
        """
        errors: list[Exception] = []
        started = [jobs for jobs in requests if any(job.sequence is not None for job in jobs)]
        waiting = [jobs for jobs in requests if jobs not in started]
        for jobs in started:
            running = [job for job in jobs if job.sequence is not None]
            error = self._step_with(running)
            if error is not None:
                errors.append(error)
                self._fail_all(jobs, error)
            for job in running:
                job.paused = True
        n_good = len(started) - len(errors)
        running = [job for jobs in started for job in jobs]
        if errors or self._step_with(running) is not None:
            return n_good, errors
        for jobs in sorted(waiting, key=lambda jobs: jobs[0].rank):
            error = self._step_with(jobs)
            if error is not None:
                errors.append(error)
                self._fail_all(jobs, error)
            elif all(job.sequence is None and job in self._waiting for job in jobs):
                break  # there is no place for it, nor for later ones
            else:
                n_good += 1
        return n_good, errors

    def _step_with(self, jobs: Seq[Job]) -> Exception | None:
        """A step with some paused texts, which are no longer paused; returns its error."""
        for job in jobs:
            job.paused = False
        try:
            self._step()
        except Exception as error:
            return error
        return None

    def _fail_all(self, jobs: Seq[Job], error: Exception) -> None:
        for job in jobs:
            self._fail(job, error)

    def _check_alive(self, error: Exception) -> None:
        """Raise EngineDead if a request of one token fails; all others are paused or ended."""
        causal = self.context.hparams.causal
        request = Request([0], max_tokens=1, text=False, pooling=None if causal else "last")
        found: list[Event] = []
        try:
            for job in self.make_jobs(request, found.append):
                self._take(job)
            while not (found and found[-1].kind in ("end", "error")):
                self._step()
        except Exception as last:
            raise EngineDead(f"no request can be evaluated any more: {last}") from last
        if found[-1].error is not None:
            raise EngineDead(f"no request can be evaluated any more: {error}") from error

    def decode(self, rows: Seq[Row]) -> None:
        """Evaluate tokens of leased sequences as one batch. Raises: as `Context.decode`."""
        if self._busy:
            raise ReentrantCall("this engine is running the step that invoked this callback")
        if self._needs_resync:
            self._resync()
        while True:
            self._needs_resync = True
            try:
                self._decode(rows)
                break
            except ContextFull:
                if not self._make_room():
                    self._needs_resync = False  # nothing has changed
                    raise
        self._needs_resync = False

    def _step_single(self) -> bool:
        """A step with one running request and one token to evaluate, the most frequent case.

        Has the least Python, see `Context.decode_token`. Returns False if it does not apply.
        """
        running, context = self._running, self.context
        if len(running) != 1:
            return False
        job = running[0]
        sequence = job.sequence
        assert sequence is not None
        n = sequence.n_tokens
        if not job.is_steady(sequence, n) or n >= context.n_ctx_seq:
            return False
        clock, n_reused = time.perf_counter, context.n_reused
        start = clock()
        try:
            context.decode_token(job.tokens[n], sequence.seq_id)
        except ContextFull:
            return False  # nothing has changed
        decoded = clock()
        sequence.id_items[n] = job.tokens[n]
        sequence.n_tokens = self._logits_at = n + 1
        self._logits_of, self._logits_rows = sequence, _LAST
        if sequence.on_logits is not None:
            sequence.on_logits(n, context.logits[:1])
        self._sample(job, sequence, 0)
        n_reused, sample_s = context.n_reused - n_reused, clock() - decoded
        self.timings.count_decode(1, decoded - start, n_reused, 1, sample_s)
        if self.speculation is not None:
            self.speculation.count_step(1, 0, 1, decoded - start, sample_s)
        return True

    def _step_tokens(self) -> bool:
        """A step with one token to evaluate for each of several running requests.

        Returns False if it does not apply.
        """
        running, context = self._running, self.context
        if not 1 < len(running) <= context.n_batch:
            return False
        tokens: list[int] = []
        sequences: list[Sequence] = []
        for job in running:
            sequence = job.sequence
            assert sequence is not None
            n = sequence.n_tokens
            if not job.is_steady(sequence, n) or n >= context.n_ctx_seq:
                return False
            tokens.append(job.tokens[n])
            sequences.append(sequence)
        clock, n_reused, build_s = time.perf_counter, context.n_reused, context.build_s
        start = clock()
        try:
            context.decode(Batch(tokens, seq_id=[s.seq_id for s in sequences], logits="all"))
        except ContextFull:
            return False  # nothing has changed
        decoded = clock()
        for i, (token, sequence) in enumerate(zip(tokens, sequences, strict=True)):
            n = sequence.n_tokens
            sequence.id_items[n] = token
            sequence.n_tokens = n + 1
            if sequence.on_logits is not None:
                sequence.on_logits(n, context.logits[i : i + 1])
        self._logits_of, self._logits_at = sequences[-1], sequences[-1].n_tokens
        self._logits_rows = _LAST
        for output, job in enumerate(running[:]):
            self._sample(job, sequences[output], output)
        n, n_reused, sample_s = len(tokens), context.n_reused - n_reused, clock() - decoded
        self.timings.count_decode(n, decoded - start, n_reused, n, sample_s)
        if self.speculation is not None and context.build_s == build_s:
            self.speculation.count_step(n, 0, n, decoded - start, sample_s)
        return True

    def _step_drafted(self, speculation: Speculation) -> bool:
        """A step that verifies drafts, with one token to evaluate for each running request.

        Returns False if it does not apply, or nothing was drafted.
        """
        context, jobs = self.context, [job for job in self._running if not job.paused]
        room = context.n_ubatch
        if context.kv.unified:
            room = min(room, context.kv.n_cells - context.kv.n_used)
        room = room // max(len(jobs), 1) - 1
        limits = []
        for job in jobs:
            sequence = job.sequence
            assert sequence is not None
            n = sequence.n_tokens
            if not job.is_steady(sequence, n) or n >= context.n_ctx_seq:
                return False
            free = min(context.n_ctx_seq - n, job.n_left) - 1
            limits.append(max(0, min(free, room, job.max_draft)))
        try:
            drafts = speculation.propose(jobs, limits) if any(limits) else None
            step = None if drafts is None else DraftStep(context, jobs, drafts)
        except Exception as error:
            speculation.failed(error)
            raise
        if step is None:
            return False
        clock, n_reused, build_s = time.perf_counter, context.n_reused, context.build_s
        start = clock()
        try:
            context.decode(step.batch)
        except ContextFull:
            return False  # nothing has changed
        decoded = clock()
        n_tokens, self._logits_of = 0, None
        for i, (job, draft) in enumerate(zip(jobs, step.drafts, strict=True)):
            got = step.verify(i)
            job.n_drafted += 0 if draft is None else len(draft)
            if draft is not None and got.error is None:
                speculation.verified(job, draft, got.path)
            self._take_verified(job, got)
            n_tokens += len(got.tokens)
        n, n_reused, sample_s = len(jobs), context.n_reused - n_reused, clock() - decoded
        self.timings.count_drafted(n_tokens, decoded - start, n_reused, sample_s)
        decode_s = decoded - start - (context.build_s - build_s)
        speculation.count_step(n, len(step.batch.tokens) - n, n_tokens, decode_s, sample_s)
        return True

    def _take_verified(self, job: Job, got: Verification) -> None:
        """Add the tokens of a step with drafts to a job; in a `run` all but the first wait."""
        sequence, rows = job.sequence, got.rows
        assert sequence is not None
        self._logits_of, self._logits_at, self._logits_rows = sequence, sequence.n_tokens, rows
        if sequence.on_logits is not None:
            sequence.on_logits(sequence.n_tokens - len(rows), self.context.logits[rows])
        job.verified.extend(got.tokens)
        self._publish(job)
        while job.verified and not (job.is_run and got.error is None):
            self._publish(job)
        if got.error is not None and job.sequence is not None:
            self._fail(job, got.error)

    def _publish(self, job: Job) -> bool:
        """Add the next verified token of a job, and emit its events; False if there is none."""
        if not job.verified:
            return False
        one = job.verified.popleft()
        job.mark = one.mark
        try:
            if one.token is None:
                self._end(job, "stop")
            else:
                self._add_token(job, one.token, one.logprob, one.drafted)
        except Exception as error:
            self._fail(job, error)
        return True

    def _step_mixed(self) -> None:
        """A step with any mix of prompt chunks and single tokens."""
        while True:
            active = [job for job in self._running if not job.paused]
            plan = self._plan(active)
            if not plan:
                return
            try:
                self._decode([row for _, row in plan])
                break
            except ContextFull as error:
                jobs = sorted((job for job, _ in plan), key=lambda job: job.rank)
                if not self._make_room(jobs[0]):
                    self._shift_or_end(jobs[-1], error)
        start, output, n_chosen, n_embedded = time.perf_counter(), -1, 0, 0
        for job, row in plan:
            output += row.n_outputs
            n_embedded += row.n_embedded
            job.last_step = self._n_steps
            try:
                n_chosen += self._take_outputs(job, row, output, n_embedded)
            except Exception as error:
                self._fail(job, error)
        self.timings.count_sample(time.perf_counter() - start, n_chosen)

    def _take_outputs(self, job: Job, row: Row, output: int, n_embedded: int) -> bool:
        """Take the outputs of a row that was evaluated; returns whether a token was sampled.

        Args:
            output: index of its last logits.
            n_embedded: number of embeddings up to its last one.
        """
        if job.pooled is not None:
            self._add_rows(job, job.pooled, row, n_embedded)
            return False
        if job.prompt_logprobs is not None:
            self._add_prompt_logprobs(job, job.prompt_logprobs, row, output)
        if job.sequence is None:
            return False  # with max_tokens=0 it has ended
        if row.sequence.n_tokens == len(job.tokens):
            self._sample(job, row.sequence, output)
            return True
        if job.request.progress:
            self._emit(job, "progress", usage=job.usage)
        return False

    def _plan(self, active: Seq[Job]) -> list[tuple[Job, Row]]:
        """The rows of the next batch: single tokens first, then chunks of prompts.

        Prompt chunks are limited by the policy's ``max_prompt_tokens``.
        """
        ones: list[Job] = []
        longer: list[Job] = []
        for job in active:
            n_pending = self._n_pending(job)
            if n_pending:
                (ones if n_pending == 1 else longer).append(job)
        whole = not self.context.hparams.causal  # texts cannot be cut
        n_batch = self.context.n_ubatch if whole else self.context.n_batch
        if len(ones) > n_batch:
            ones = sorted(ones, key=lambda job: job.last_step)[:n_batch]
        room = n_batch - len(ones)
        if ones and not whole:
            room = min(room, self.policy.max_prompt_tokens)
        plan = [(job, self._row(job, 1)) for job in ones if job.sequence is not None]
        for job in sorted(longer, key=lambda job: job.rank):
            if room and job.sequence is not None:
                if whole and len(job.tokens) > room:
                    break  # keep the order
                row = self._row(job, room)
                plan.append((job, row))
                room -= len(row.tokens)
        return plan

    def _n_pending(self, job: Job) -> int:
        """Number of tokens to evaluate for a running job; 0 if it no longer runs."""
        sequence, tokens = job.sequence, job.tokens
        if sequence is None:  # preempted for an earlier job of this step
            return 0
        if sequence.owner is not job.key:  # a lease or another job used the sequence
            self._assign(job, sequence)
        if len(tokens) > self.context.n_ctx_seq and not self._shift(job, sequence):
            return 0
        if sequence.n_tokens >= len(tokens):  # evaluate the last token again for its logits
            sequence.keep(tokens)
        return len(tokens) - sequence.n_tokens

    def _row(self, job: Job, room: int) -> Row:
        sequence = job.sequence
        assert sequence is not None
        n = sequence.n_tokens
        if job.prompt_logprobs is not None:  # bounds the memory of the logits
            room = min(room, self.context.n_ubatch)
        part = job.tokens[n : n + room]
        if job.pooled is not None:
            return Row(sequence, part, "none", job.pooled.wanted(n, len(part)))
        outputs = "last" if n + len(part) == len(job.tokens) else "none"
        wants_all = sequence.on_logits is not None or job.prompt_logprobs is not None
        return Row(sequence, part, "all" if wants_all else outputs)

    def _decode(self, rows: Seq[Row]) -> None:
        """Evaluate rows as one batch. Raises: as `Context.decode`."""
        context, first = self.context, rows[0]
        n_reused, build_s, start = context.n_reused, context.build_s, time.perf_counter()
        if len(rows) == 1 and len(first.tokens) == 1 and first.outputs == "last":
            n_tokens = 1
            context.decode_token(first.tokens[0], first.sequence.seq_id)
        else:
            batch = batch_of(rows)
            n_tokens = len(batch.tokens)
            context.decode(batch)
        decode_s = time.perf_counter() - start
        self.timings.count_decode(n_tokens, decode_s, context.n_reused - n_reused)
        if self.speculation is not None:
            self.speculation.count_prompt(n_tokens, decode_s - (context.build_s - build_s))
        output = 0
        self._logits_of = None
        for row in rows:
            sequence, n = row.sequence, row.n_outputs
            sequence.append(row.tokens)
            if sequence.on_logits is not None:
                at = sequence.n_tokens - len(row.tokens)
                sequence.on_logits(at, context.logits[output : output + n])
            output += n
        last = rows[-1]
        if last.wants_last:
            self._logits_of, self._logits_at = last.sequence, last.sequence.n_tokens
            self._logits_rows = _LAST

    def _sample(self, job: Job, sequence: Sequence, output: int) -> None:
        """Sample the next token of a job from an output of the last decode; emits its events."""
        context, request = self.context, job.request
        try:
            logits = context.logits_ith(output)
            if request.processors:
                edited = apply_logits_processors(request.processors, sequence.tokens(), logits)
                token = job.chain.sample(edited)
            else:
                token = job.chain.sample(logits, context.argmax_ith(output))
            job.chain.accept(token)
            if request.criteria:
                ids = sequence.tokens()
                if any(stop(ids, logits) for stop in request.criteria):
                    self._end(job, "stop")
                    return
            n = job.n_logprobs
            self._add_token(job, token, None if n is None else token_logprob(logits, token, n))
        except Exception as error:
            self._fail(job, error)

    def _add_token(
        self, job: Job, token: int, logprob: TokenLogprob | None, drafted: bool = False
    ) -> None:
        """Append a sampled token to a job, and emit its events."""
        request = job.request
        job.tokens.append(token)
        job.n_generated += 1
        job.n_left -= 1
        ends = job.ends.get(token)
        if ends is None:
            is_full = request.n_keep is None and len(job.tokens) > self.context.n_ctx_seq
            ends = "length" if not job.n_left or is_full else None
        if job.text is None and job.n_logprobs is None:
            event = Event(
                job.number, job.choice, "tokens", (token,), drafted=drafted, n_drafted=job.n_drafted
            )
            if job.sink is None:
                self._events.append(event)
            else:
                job.sink(event)
            if ends:
                self._end(job, ends, token if ends == "stop" else None)
            return
        self._emit_token(job, token, ends, logprob, drafted)

    def _emit_token(
        self,
        job: Job,
        token: int,
        ends: EndReason | None,
        logprob: TokenLogprob | None,
        drafted: bool,
    ) -> None:
        """Emit the events of a token with text or log-probabilities."""
        text, request, shown, rest = job.text, job.request, "", ""
        stop: str | int | None = token if ends == "stop" else None
        if text is not None:
            shows_stop = request.special or request.sampling.include_stop_str_in_output
            hides = ends == "eog" or (ends == "stop" and not shows_stop)
            shown = text.flush() if hides else text.push(token)
            if text.stop is not None:
                ends, stop, rest = "stop", text.stop, text.rest
        logprobs: tuple[TokenLogprob, ...] = ()
        if logprob is not None:
            job.logprob += logprob.logprob
            logprobs = () if request.sampling.logprobs is None else (logprob,)
        n_held = 0 if text is None else text.n_held
        self._emit(
            job, "tokens", tokens=(token,), text=shown, rest=rest, n_held=n_held,
            logprobs=logprobs, drafted=drafted, n_drafted=job.n_drafted,
        )  # fmt: skip
        if ends:
            self._end(job, ends, stop, token)

    def _add_prompt_logprobs(self, job: Job, prompt: PromptLogprobs, row: Row, output: int) -> None:
        """Take the logits of a chunk of the prompt; ``output`` is the index of its last ones."""
        first = row.sequence.n_tokens - len(row.tokens)
        prompt.add(first, self.context.logits[output + 1 - row.n_outputs : output + 1])
        if prompt.is_complete:
            self._end_prompt(job, prompt)

    def _end_prompt(self, job: Job, prompt: PromptLogprobs) -> None:
        job.prompt_logprobs = None
        self._emit(job, "prompt", prompt_logprobs=tuple(prompt.found), usage=job.usage)
        if job.n_left <= 0:
            self._end(job, "length")

    def _add_rows(self, job: Job, pooled: PooledRows, row: Row, end: int) -> None:
        """Take the embeddings of a chunk of a text; ``end`` is the index after its last one."""
        rows = self.context.scores if pooled.pooling == "rank" else self.context.embeddings
        n = row.sequence.n_tokens
        pooled.add(n - len(row.tokens), rows[end - row.n_embedded : end])
        if n == len(job.tokens):
            self._emit(job, "embedding", embedding=pooled.result(), usage=job.usage)
            self._end(job, "length")
        elif job.request.progress:
            self._emit(job, "progress", usage=job.usage)

    # --- ends -----------------------------------------------------------------------------------

    def _end(
        self, job: Job, reason: EndReason, stop: str | int | None = None, token: int | None = None
    ) -> None:
        usage, rest, sequence = job.usage, "", job.sequence
        try:
            if job.verified and sequence is not None:  # a stop string within verified tokens
                job.verified.clear()
                sequence.truncate(len(job.tokens) - 1)
            if job.text is not None and reason == "eog" and token is not None:
                rest = job.text.piece(token)
            elif job.text is not None and job.text.stop is None:
                rest = job.text.flush()
            self._remove(job)
            if reason == "abort" and sequence is not None and not sequence.leased:
                sequence.clear()
        except Exception as error:
            return self._fail(job, error)
        logprob = None if job.n_logprobs is None else job.logprob
        self._emit(
            job, "end", text=rest, usage=usage, reason=reason, stop=stop, cumulative_logprob=logprob
        )

    def _fail(self, job: Job, error: Exception) -> None:
        """End a job by an error of a callback or a grammar, or for lack of a place."""
        if isinstance(error, TextComplete):
            return self._end(job, "stop")
        try:
            self._remove(job)
        finally:
            self._emit(job, "error", usage=job.usage, error=error)

    def _remove(self, job: Job) -> None:
        """Remove a job, unless it was removed before; its evaluated tokens stay as a prefix."""
        siblings = self._jobs.get(job.number, [])
        if job not in siblings:
            return
        siblings.remove(job)
        if not siblings:
            del self._jobs[job.number]
        if job.sequence is not None:
            self._unassign(job)
        else:
            self._waiting.remove(job)
        if self.speculation is not None:
            self.speculation.release(job)

    def _expire(self) -> None:
        now, self._any_deadline = time.perf_counter(), False
        for job in [*self._running, *self._waiting]:
            if job.deadline is not None and now > job.deadline:
                self._end(job, "deadline")
            elif job.deadline is not None:
                self._any_deadline = True

    def _emit(self, job: Job, kind: Kind, **values: Any) -> None:
        self._put(job, Event(job.number, job.choice, kind, **values))

    def _put(self, job: Job, event: Event) -> None:
        if job.sink is None:
            self._events.append(event)
        else:
            job.sink(event)

    # --- sequences and cells --------------------------------------------------------------------

    def _assign(self, job: Job, sequence: Sequence) -> None:
        """Run a job in a sequence, and reuse the common prefix of their tokens."""
        if job.sequence is None:
            self._waiting.remove(job)
            self._running.append(job)
        job.sequence, sequence.owner = sequence, job.key
        sequence.last_used = self._n_steps
        if self.prefixes is not None and job.n_cached < 0:
            if 2 * sequence.n_shared(job.tokens) < sequence.n_tokens:
                self.prefixes.save(sequence)
            if self.prefixes.save_idle:
                self.prefixes.save_unused(self._free(), self.context)
        n = self._restore(job, sequence) if job.saved else sequence.keep(job.reusable)
        if job.n_cached < 0:
            job.n_cached = n
        if job.request.progress:
            self._emit(job, "progress", usage=job.usage._replace(n_cached=n))

    def _unassign(self, job: Job) -> None:
        sequence = job.sequence
        assert sequence is not None
        self._running.remove(job)
        if sequence.owner is job.key:
            sequence.owner = None
        sequence.last_used = self._n_steps
        job.sequence, job.n_shared_cells = None, 0

    def _preempt(self, job: Job) -> None:
        """Move a running job back to the queue; its tokens will be the same.

        Its cache is saved if it was shifted, since evaluating the tokens again would give other
        bits.
        """
        sequence = job.sequence
        assert sequence is not None
        if sequence.owner is job.key and sequence.n_exact < sequence.n_tokens <= len(job.tokens):
            job.saved = b"".join(
                part.tobytes() for part in dump_state(self.context, seq=sequence.seq_id)
            )
            job.n_saved, job.n_exact = sequence.n_tokens, sequence.n_exact
        self._unassign(job)
        self._waiting.append(job)

    def _restore(self, job: Job, sequence: Sequence) -> int:
        """Restore the saved cache of a preempted job; returns the number of tokens in memory."""
        saved, job.saved = job.saved, b""
        while True:
            try:
                restore_state(self.context, saved, seq=sequence.seq_id)
            except StateError:
                if self._make_room(job):
                    continue
                return sequence.keep(job.tokens)  # too few cells: evaluate the tokens again
            sequence.adopt(job.tokens[: job.n_saved])
            sequence.n_exact = job.n_exact
            return job.n_saved

    def _admit(self) -> None:
        """Start waiting jobs while there are sequences and cells for them."""
        self._waiting.sort(key=lambda job: job.rank)
        for job in list(self._waiting):
            if job.paused:
                continue
            if job.lease is not None:
                users = [other for other in self._running if other.sequence is job.lease]
                if all(other.paused for other in users):
                    for other in users:
                        self._preempt(other)
                    self._assign(job, job.lease)
                continue
            if all(sequence.leased for sequence in self._sequences):
                self._fail(job, BatchError("all sequences of the context are leased"))
                continue
            if not self._free() and not self._preemptible(job):
                return
            if job.seq_id is not None:
                wanted = next((s for s in self._free() if s.seq_id == job.seq_id), None)
                if wanted is not None and self._make_place(job, wanted.n_shared(job.reusable)):
                    self._assign(job, wanted)
                continue
            source, n = self._best_prefix(job.reusable)
            if len(job.reusable) == len(job.tokens) and self._will_share_prefix(job, n):
                continue
            if not self._make_place(job, 0 if source in self._free() else n):
                return  # keep the order: later jobs do not overtake this one
            self._assign(job, self._restored(job, n) or self._sequence_for(job, source, n))

    def _free(self) -> list[Sequence]:
        """Sequences without a job or lease; they may hold an idle prefix."""
        return [s for s in self._sequences if s.owner is None and not s.leased]

    def _preemptible(self, job: Job) -> list[Job]:
        """Running jobs that may be preempted for this one."""
        return [
            other
            for other in self._running
            if other.lease is None
            and (other.paused or other.request.priority < job.request.priority)
        ]

    def _best_prefix(self, tokens: Seq[int]) -> tuple[Sequence | None, int]:
        """The sequence with the longest common prefix with ``tokens``, and its length."""
        source, length = None, 0
        ids = np.array(tokens, np.intc)
        for sequence in self._sequences:
            n = min(sequence.n_shared(ids), sequence.n_exact)
            if n > length:
                source, length = sequence, n
        return source, length

    def _will_share_prefix(self, job: Job, n: int) -> bool:
        """Whether a running job is evaluating a common prefix much longer than ``n``.

        For texts of one request any longer one will do.
        """
        for other in self._running:
            if other.paused or other.sequence is None or other.n_generated:
                continue
            min_length = n + (1 if other.number == job.number else self.policy.min_shared)
            tokens = other.tokens[: len(job.tokens) - 1]
            if len(tokens) >= min_length and n_common(tokens, job.tokens) >= min_length:
                return True
        return False

    def _make_place(self, job: Job, n_shared: int) -> bool:
        """Whether a sequence and cells are free for a job, after preempting lower priorities."""
        running = [other for other in self._running if other.lease is None]
        victims = self._preemptible(job)
        if not self._fits(job, n_shared, [other for other in running if other not in victims]):
            return False
        for other in sorted(victims, key=_preemption_key, reverse=True):
            if self._free() and self._fits(job, n_shared, running):
                break
            self._preempt(other)
            running.remove(other)
        return bool(self._free())

    def _fits(self, job: Job, n_shared: int, running: Seq[Job]) -> bool:
        """Whether there are cells for a job and the policy's reserve beside the running jobs."""
        if not running or not self.context.kv.unified:
            return True
        leased = sum(s.n_tokens for s in self._sequences if s.leased)
        used = sum(self._n_cells(other) - other.n_shared_cells for other in running)
        return leased + used + self._n_cells(job) - n_shared <= self.context.n_ctx

    def _n_cells(self, job: Job) -> int:
        return len(job.tokens) + min(job.n_left, self.policy.n_reserve)

    def _sequence_for(self, job: Job, source: Sequence | None, n: int) -> Sequence:
        """A free sequence, with the first ``n`` tokens of ``source`` if given."""
        free = self._free()
        if source is not None and source in free and (source.n_tokens <= n + 1 or len(free) == 1):
            return source
        target = min(
            (s for s in free if s is not source), key=lambda s: (s.n_tokens > 0, s.last_used)
        )
        if source is not None:
            try:
                target.fork(source, n)
                job.n_shared_cells = n
            except ContextFull:
                target.clear()
        return target

    def _restored(self, job: Job, n: int) -> Sequence | None:
        """A free sequence with a saved prefix of a job longer than ``n``; None without one."""
        if self.prefixes is None or not job.request.reuse or job.saved:
            return None
        saved, n_saved = self.prefixes.longest(np.array(job.tokens, np.intc))
        if saved is None or n_saved <= n:
            return None
        target = self._sequence_for(job, None, 0)
        self.prefixes.save(target)
        return target if self.prefixes.restore(saved, target) else None

    def _make_room(self, protected: Job | None = None) -> bool:
        """Free cells of the least recently used idle prefix, else preempt the lowest priority."""
        idle = [sequence for sequence in self._free() if sequence.n_tokens]
        if idle:
            oldest = min(idle, key=lambda s: s.last_used)
            if self.prefixes is not None:
                self.prefixes.save(oldest)
            oldest.clear()
            return True
        others = [job for job in self._running if job is not protected and job.lease is None]
        if others:
            self._preempt(max(others, key=_preemption_key))
        return bool(others)

    def _shift_or_end(self, job: Job, error: ContextFull) -> None:
        """Shift the context of a job that finds no cells, or end the job."""
        sequence = job.sequence
        assert sequence is not None
        n_keep = job.request.n_keep
        if n_keep is not None and job.prompt_logprobs is None and sequence.n_tokens - n_keep >= 2:
            self._shift(job, sequence)
        elif job.n_generated:
            self._end(job, "length")
        else:
            self._fail(job, error)

    def _shift(self, job: Job, sequence: Sequence) -> bool:
        """Remove tokens from the middle until the job fits; returns False if it ended instead."""
        n_keep = job.request.n_keep
        if n_keep is None:
            self._end(job, "length")
            return False
        while True:
            try:
                n = sequence.make_room(job.tokens, n_keep, n_discard=job.request.n_discard)
            except ContextFull as error:
                self._fail(job, error)
                return False
            self._logits_of = None
            self._emit(job, "shift", removed=(n_keep, n))
            if len(job.tokens) <= self.context.n_ctx_seq:
                return True

    def _resync(self) -> None:
        """Remove the tokens of an interrupted decode, so that cache and sequences agree."""
        for sequence in self._sequences:
            held = self.context.kv.seq_pos_max(sequence.seq_id) + 1
            if held < sequence.n_tokens:
                sequence.truncate(held)
                sequence.owner = None
            elif held > sequence.n_tokens:
                sequence.truncate()
        self._needs_resync = False

    # --- the inbox ------------------------------------------------------------------------------

    def _take_all(self) -> None:
        while True:
            try:
                self._take(self._inbox.get_nowait())
            except Empty:
                return

    def _take(self, item: Job | int | tuple[int, int] | Sequence) -> None:
        if isinstance(item, Job):
            self._jobs.setdefault(item.number, []).append(item)
            self._waiting.append(item)
            self._arriving.discard(item)
            self._any_deadline |= item.deadline is not None
            if item.prompt_logprobs is not None:
                if item.prompt_logprobs.is_complete:  # a prompt of one token
                    self._end_prompt(item, item.prompt_logprobs)
            elif item.n_left <= 0 and item.pooled is None:
                self._end(item, "length")
        elif isinstance(item, int):
            for job in list(self._jobs.get(item, ())):
                self._end(job, "abort")
        elif isinstance(item, tuple):
            for job in [one for one in self._jobs.get(item[0], ()) if one.choice == item[1]]:
                self._end(job, "abort")
        else:
            for job in [*self._running, *self._waiting]:
                if job.lease is item:
                    self._end(job, "abort")
            item.leased, item.on_logits = False, None

    def _check_text(
        self, request: Request, tokens: Seq[int], lease: Sequence | None = None
    ) -> None:
        """Raise an error for a request that can never run; its chain checks its sampling."""
        context, params, grammar = self.context, request.sampling, request.grammar
        if not context.hparams.causal:
            raise BatchError(
                "tokens of this context attend to later ones (non-causal attention): it computes "
                "embeddings, no texts"
            )
        stop: object = request.stop
        if isinstance(stop, str):
            raise SamplingError(f"stop: got {stop!r}, want a tuple of texts")
        if not (grammar is None or isinstance(grammar, Grammar)):
            raise GrammarError(
                f"grammar: got a value of type {type(grammar).__name__}, want Grammar(...) of it"
            )
        scores_prompt = params.prompt_logprobs is not None
        if request.seq_id is not None and all(s.seq_id != request.seq_id for s in self._sequences):
            raise BatchError(f"seq_id: {request.seq_id} is not a sequence of this engine")
        if request.n_keep is None or scores_prompt:
            check_prompt(len(tokens), 0, context.n_ctx_seq, min_room=0)
        else:
            check_prompt(min(len(tokens), 1), 0, 1, min_room=0)
        if request.n_keep is not None:
            context.kv.check_shift()
        least = 0 if lease is None or scores_prompt else UNKNOWN
        _check_ids(tokens, context.model.hparams.n_vocab, least)

    def _make_jobs(
        self, request: Request, tokens: list[int], lease: Sequence | None = None
    ) -> list[Job]:
        if request.pooling is not None:
            return [self._make_pooled_job(request, request.pooling, tokens, lease)]
        self._check_text(request, tokens, lease)
        context, tokenizer = self.context, self.context.model.tokenizer
        n_vocab = context.model.hparams.n_vocab
        params, grammar = request.sampling, request.grammar
        ends: dict[int, EndReason] = dict.fromkeys(params.stop_token_ids, "stop")
        if request.stop_at_eog:
            ends |= dict.fromkeys(tokenizer.eog, "eog")
        n_logprobs = params.logprobs
        if n_logprobs is None and params.n_texts > params.n:
            n_logprobs = 0  # to compare the texts
        max_draft = sys.maxsize if request.max_draft is None else request.max_draft
        if min(tokens) < 0:  # unknown tokens
            max_draft = 0
        number, jobs = next(self._numbers), []
        for i in range(params.n_texts):
            chain = chain_for(params.for_text(i), n_vocab, tokenizer, grammar)
            chain.accept_prompt([token for token in tokens if token >= 0])
            text = None
            if request.text:
                text = TextAssembler(
                    tokenizer,
                    request.stop,
                    special=request.special,
                    include_stop=params.include_stop_str_in_output,
                    drop_unfinished=request.drop_unfinished,
                )
            prompt_logprobs = None
            if params.prompt_logprobs is not None and i == 0:
                prompt_logprobs = PromptLogprobs(tokens, params.prompt_logprobs)
            jobs.append(
                Job(
                    request, number, i, list(tokens), chain, text,
                    ends,
                    n_left=sys.maxsize if request.max_tokens is None else request.max_tokens,
                    arrival=next(self._arrivals),
                    lease=lease,
                    deadline=_deadline(request),
                    n_prompt=len(tokens),
                    n_logprobs=n_logprobs,
                    prompt_logprobs=prompt_logprobs,
                    max_draft=max_draft,
                )
            )  # fmt: skip
        return jobs

    def _make_pooled_job(
        self, request: Request, pooling: str, tokens: list[int], lease: Sequence | None
    ) -> Job:
        self.check_pooled(tokens, pooling)
        model, causal = self.context.model, self.context.hparams.causal
        return Job(
            replace(request, sampling=SamplingParams()), next(self._numbers), 0, tokens,
            chain_for(SamplingParams(), model.hparams.n_vocab, model.tokenizer, None), None, {},
            n_left=0,
            arrival=next(self._arrivals),
            lease=lease,
            deadline=_deadline(request),
            n_prompt=len(tokens),
            pooled=PooledRows(pooling, len(tokens), causal),
        )  # fmt: skip

    def _connect(self, jobs: Seq[Job], sink: Callable[[Event], None] | None) -> None:
        """Send the events of a request's texts to a sink; None for the result of `step`."""
        n, number = jobs[0].request.sampling.n, jobs[0].number
        if len(jobs) > n:
            out = sink or (lambda event: self._events.append(event))
            sink = BestOf(n, len(jobs), out, lambda: self.abort(number)).take
        for job in jobs:
            job.sink = sink

    def _run(self, jobs: list[Job], holder: object = None) -> Run:
        """The generator of `run`; ``holder`` keeps a lease alive while it runs."""
        mailbox: deque[Event] = deque()
        self._connect(jobs, mailbox.append)
        for job in jobs:
            job.is_run = job.paused = True
        self.enqueue(jobs)
        n_open = jobs[0].request.sampling.n
        try:
            while n_open:
                for job in jobs:
                    job.paused = False
                while not mailbox:
                    if not any(map(self._publish, jobs)):
                        self.step()
                for job in jobs:
                    job.paused = True
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
                        _insert(jobs[event.choice], sent)
        finally:
            if n_open:
                self.abort(jobs[0].number)


def _check_ids(tokens: Seq[int], n_vocab: int, least: int = 0) -> None:
    """Raise BatchError for a token that is not in the vocabulary."""
    if min(tokens) < least or max(tokens) >= n_vocab:
        bad = next(t for t in tokens if not least <= t < n_vocab)
        raise BatchError(f"token id {bad} is not in the vocabulary of 0 to {n_vocab - 1}")


def _deadline(request: Request) -> float | None:
    """The time at which a request ends in any case."""
    return None if request.deadline_s is None else time.perf_counter() + request.deadline_s


def _insert(job: Job, tokens: Seq[int]) -> None:
    """Append tokens to a job that were not sampled; drops verified tokens that would follow."""
    if job.verified and job.verifier is not None and job.mark is not None:
        job.verified.clear()
        job.verifier.rollback(job.mark)
    job.tokens.extend(tokens)


def _preemption_key(job: Job) -> tuple[bool, int, int]:
    """Sort key of jobs; the job with the largest key is preempted first."""
    return job.paused, *job.rank
