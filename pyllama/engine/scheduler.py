"""Decides which texts run, in which sequences, and which tokens the next batch has.

    scheduler = Scheduler(context, Policy(), sequences)
    scheduler.add(run)
    scheduler.begin_step()                         # deadlines, then admission
    rows = scheduler.plan()                        # tokens that are still to compute

There is no phase of a prompt and none of generation: each running text has tokens that its sequence
does not hold yet, one of them or many. For the thread that steps.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..errors import BatchError, ContextFull, StateError, TextComplete
from ..runtime.adapters import n_alike
from ..runtime.checkpoints import prompt_checkpoints
from ..runtime.state import dump_state, restore_state
from ..speculative import Draft, Speculation
from .jobs import End, TextRun
from .prefix_store import PrefixStore, drop_oldest
from .request import Policy
from .rows import Row
from .sequence import CacheSequence, n_common

if TYPE_CHECKING:
    from ..runtime.context import Context


class Scheduler:
    """The sequences of a context, and the texts that wait for one or run in one.

    Args:
        context: of the sequences.
        policy: limits for sharing them.
        sequences: those of the engine.
        speculation: is told of texts that end; None for none.
        prefixes: keeps prompts that the sequences drop; None for none.

    Attributes:
        runs: all texts that have not ended, by the number of their request.
        n_steps: number of steps so far.
    """

    def __init__(
        self, context: Context, policy: Policy, sequences: list[CacheSequence],
        speculation: Speculation | None = None, prefixes: PrefixStore | None = None,
    ) -> None:  # fmt: skip
        self.context, self.policy, self.sequences = context, policy, sequences
        self.speculation, self.prefixes = speculation, prefixes
        self.runs: dict[int, list[TextRun]] = {}
        self.waiting, self.running = list[TextRun](), list[TextRun]()
        self.n_steps = 0
        self._any_deadline = False

    # --- texts ----------------------------------------------------------------------------------

    def add(self, run: TextRun) -> None:
        """Add a text to those that wait, unless nothing is to be computed for it."""
        self.runs.setdefault(run.number, []).append(run)
        self.waiting.append(run)
        self._any_deadline |= run.deadline is not None
        if run.prompt_logprobs is not None:
            if run.prompt_logprobs.is_complete:  # a prompt of one token
                self.end_prompt(run)
        elif run.n_left <= 0 and run.pooled is None:
            self.end(run, End("length"))

    def end_prompt(self, run: TextRun) -> None:
        """Report the log-probabilities of a text's prompt."""
        prompt, run.prompt_logprobs = run.prompt_logprobs, None
        assert prompt is not None
        run.emit("prompt", prompt_logprobs=tuple(prompt.found), usage=run.usage)
        if run.n_left <= 0:
            self.end(run, End("length"))

    def end(self, run: TextRun, end: End) -> None:
        """End a text; its evaluated tokens stay as a prefix, unless it was aborted."""
        usage, sequence = run.usage, run.sequence
        try:
            if run.verified and sequence is not None:  # a stop string within verified tokens
                run.verified.clear()
                sequence.truncate(len(run.tokens) - 1)
            rest = run.rest(end)
            self._remove(run)
            if end.reason == "abort" and sequence is not None and not sequence.leased:
                sequence.clear()
        except Exception as error:
            return self.fail(run, error)
        run.emit(
            "end", text=rest, usage=usage, reason=end.reason, stop=end.stop,
            n_cut=0 if run.lines is None else run.lines.n_cut,
            cumulative_logprob=None if run.n_logprobs is None else run.logprob,
        )  # fmt: skip

    def fail(self, run: TextRun, error: Exception) -> None:
        """End a text by an error of a callback or a grammar, or for lack of a place."""
        if isinstance(error, TextComplete):
            return self.end(run, End("stop"))
        try:
            self._remove(run)
        finally:
            run.emit("error", usage=run.usage, error=error)

    def _remove(self, run: TextRun) -> None:
        """Remove a text, unless it was removed before."""
        siblings = self.runs.get(run.number, [])
        if run not in siblings:
            return
        siblings.remove(run)
        if not siblings:
            del self.runs[run.number]
        if run.sequence is not None:
            self._unassign(run)
        else:
            self.waiting.remove(run)
        if self.speculation is not None:
            self.speculation.release(run)

    def forget_all(self) -> None:
        """Evaluate all texts again, in a child process that was forked during a step.

        One whose generator was making the step is dropped: its thread does not exist here.
        """
        for sequence in self.sequences:
            sequence.adopt(())
            sequence.owner = None
        for number, runs in list(self.runs.items()):
            if any(run.is_run and not run.paused for run in runs):
                del self.runs[number]
        self.running, self.waiting = [], [run for runs in self.runs.values() for run in runs]
        for run in self.waiting:
            run.sequence, run.n_shared_cells, run.saved = None, 0, b""

    # --- the tokens of a step -------------------------------------------------------------------

    def begin_step(self) -> None:
        """End texts whose deadline is over, and start waiting ones."""
        self.n_steps += 1
        if self._any_deadline:
            now, timed = time.perf_counter(), [*self.running, *self.waiting]
            for run in timed:
                if run.deadline is not None and now > run.deadline:
                    self.end(run, End("deadline"))
            self._any_deadline = any(run.deadline is not None for run in timed)
        if self.waiting and self.context.hparams.causal:
            self._admit()

    def plan(self, drafts: Sequence[Draft | None] | None = None) -> list[Row]:
        """The rows of the next batch: single tokens first, then chunks of prompts.

        Chunks of prompts are limited by the policy's ``max_prompt_tokens`` if others generate.

        Args:
            drafts: of the texts that are not paused, each of which needs one token; None without.
        """
        active = [run for run in self.running if not run.paused]
        if drafts is not None:
            return [self._row(*pair) for pair in zip(active, drafts, strict=True)]
        ones, longer = list[TextRun](), list[TextRun]()
        for run in active:
            n = self.n_to_compute(run)
            if n:
                (ones if n == 1 else longer).append(run)
        n_batch = self.context.n_batch
        if len(ones) > n_batch:
            ones = sorted(ones, key=lambda run: run.last_step)[:n_batch]
        room = n_batch - len(ones)
        if ones:
            room = min(room, self.policy.max_prompt_tokens)
        rows = [self._row(run) for run in ones if run.sequence is not None]
        for run in sorted(longer, key=lambda run: run.rank):
            if room and run.sequence is not None:
                rows.append(self._row(run, room=room))
                room -= len(rows[-1].tokens)
        return rows

    def n_to_compute(self, run: TextRun) -> int:
        """Number of tokens to evaluate for a running text; 0 if it no longer runs."""
        sequence, tokens = run.sequence, run.tokens
        if sequence is None:  # preempted for an earlier text of this step
            return 0
        if sequence.owner is not run.key:  # a lease or another text used the sequence
            self._assign(run, sequence)
        if len(tokens) > self.context.n_ctx_seq and not self._shift(run, sequence):
            return 0
        if sequence.n_tokens >= len(tokens):  # evaluate the last token again for its logits
            sequence.keep(tokens)
        return len(tokens) - sequence.n_tokens

    def _row(self, run: TextRun, draft: Draft | None = None, room: int = 1) -> Row:
        sequence = run.sequence
        assert sequence is not None
        n = sequence.n_tokens
        run.last_step = self.n_steps
        if run.prompt_logprobs is not None:  # bounds the memory of the logits
            room = min(room, self.context.n_ubatch)
        part = run.tokens[n : n + room]
        if run.pooled is not None:
            return Row(sequence, part, "none", run.pooled.wanted(n, len(part)), run)
        if draft is not None:
            return Row(sequence, [*part, *draft.tokens], "all", run=run, draft=draft)
        outputs = "last" if n + len(part) == len(run.tokens) else "none"
        if sequence.on_logits is not None or run.prompt_logprobs is not None:
            outputs = "all"
        return Row(sequence, part, outputs, run=run, checkpoints=run.kept_in(n, len(part)))

    # --- sequences ------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Start waiting texts while there are sequences and cells for them."""
        self.waiting.sort(key=lambda run: run.rank)
        generates = any(run.n_generated for run in self.running)
        most = len(self.running) + (self.policy.max_admitted if generates else len(self.waiting))
        for run in list(self.waiting):
            if run.paused or (run.pooled is not None and self.context.hparams.has_encoder):
                continue
            if run.lease is not None:
                users = [other for other in self.running if other.sequence is run.lease]
                if all(other.paused for other in users):
                    for other in users:
                        self._preempt(other)
                    self._assign(run, run.lease)
                continue
            if all(sequence.leased for sequence in self.sequences):
                self.fail(run, BatchError("all sequences of the context are leased"))
                continue
            if len(self.running) >= most or not (self.free() or self._preemptible(run)):
                return
            if run.seq_id is not None:
                asked = next((s for s in self.free() if s.seq_id == run.seq_id), None)
                if asked is not None and self._make_place(run, asked.n_reusable(*run.wanted)):
                    self._assign(run, asked)
                continue
            source, n = self._best_prefix(run)
            if len(run.reusable) == len(run.tokens) and self._will_share_prefix(run, n):
                continue
            if not self._make_place(run, 0 if source in self.free() else n):
                return  # keep the order: later texts do not overtake this one
            self._assign(run, self._restored(run, n) or self._sequence_for(run, source, n))

    def free(self) -> list[CacheSequence]:
        """Sequences without a text or lease; they may hold an idle prefix."""
        return [s for s in self.sequences if s.owner is None and not s.leased]

    def _preemptible(self, run: TextRun) -> list[TextRun]:
        """Running texts that may be preempted for this one."""
        return [
            other
            for other in self.running
            if other.lease is None
            and (other.paused or other.request.priority < run.request.priority)
        ]

    def _best_prefix(self, run: TextRun) -> tuple[CacheSequence | None, int]:
        """The sequence with the longest common prefix with a text, and its length."""
        source, length, ids = None, 0, np.array(run.reusable, np.intc)
        for sequence in (one for one in self.sequences if one.n_text == run.n_text):
            n = min(sequence.n_reusable(ids, run.adapters), sequence.n_unshifted)
            if n > length:
                source, length = sequence, n
                if n == len(ids) - 1:  # no other can have more
                    break
        return source, length

    def _will_share_prefix(self, run: TextRun, n: int) -> bool:
        """Whether a running text is evaluating a common prefix much longer than ``n``.

        For texts of one request any longer one will do.
        """
        for other in self.running:
            if other.paused or other.sequence is None or other.n_generated:
                continue
            min_length = n + (1 if other.number == run.number else self.policy.min_shared)
            tokens = other.tokens[: min(len(run.tokens) - 1, n_alike(other.adapters, run.adapters))]
            if len(tokens) >= min_length and n_common(tokens, run.tokens) >= min_length:
                return True
        return False

    def _sequence_for(self, run: TextRun, source: CacheSequence | None, n: int) -> CacheSequence:
        """A free sequence, with the first ``n`` tokens of ``source`` if given."""
        free = self.free()
        if source is not None and source in free and (source.n_tokens <= n + 1 or len(free) == 1):
            return source
        target = min(
            (s for s in free if s is not source), key=lambda s: (s.n_tokens > 0, s.last_used)
        )
        if source is not None:
            try:
                target.fork(source, n)
                run.n_shared_cells = n
            except ContextFull:
                target.clear()
        return target

    def _restored(self, run: TextRun, n: int) -> CacheSequence | None:
        """A free sequence with a saved prefix of a text longer than ``n``; None without one."""
        if self.prefixes is None or not run.request.reuse or run.saved:
            return None
        saved, n_saved = self.prefixes.longest(np.array(run.tokens, np.intc), run.adapters)
        if saved is None or n_saved <= n:
            return None
        target = self._sequence_for(run, None, 0)
        self.prefixes.save(target)
        return target if self.prefixes.restore(saved, target) else None

    def _assign(self, run: TextRun, sequence: CacheSequence) -> None:
        """Run a text in a sequence, and reuse the common prefix of their tokens."""
        if run.sequence is None:
            self.waiting.remove(run)
            self.running.append(run)
        run.sequence, sequence.owner = sequence, run.key
        sequence.last_used = self.n_steps
        run.checkpoints = run.checkpoints or prompt_checkpoints(self.context, run.tokens)
        if self.prefixes is not None and run.n_cached < 0:
            if 2 * sequence.n_shared(run.tokens, run.adapters) < sequence.n_tokens:
                self.prefixes.save(sequence)
            if self.prefixes.save_idle:
                self.prefixes.save_unused(self.free(), self.context)
        if sequence.n_text != run.n_text:  # an encoded text is reused as a whole
            sequence.clear()
        n = self._restore(run, sequence) if run.saved else sequence.keep(*run.wanted)
        run.n_cached = n if run.n_cached < 0 else run.n_cached
        if run.request.progress:
            run.emit("progress", usage=run.usage._replace(n_cached=n))

    def _unassign(self, run: TextRun) -> None:
        sequence = run.sequence
        assert sequence is not None
        self.running.remove(run)
        if sequence.owner is run.key:
            sequence.owner = None
        sequence.last_used = self.n_steps
        run.sequence, run.n_shared_cells = None, 0

    def _preempt(self, run: TextRun) -> None:
        """Move a running text back to those that wait; its tokens will be the same.

        Its cache is saved if it was shifted: evaluating the tokens again would give other bits.
        """
        sequence = run.sequence
        assert sequence is not None
        n, n_unshifted = sequence.n_tokens, sequence.n_unshifted
        if sequence.owner is run.key and n_unshifted < n <= len(run.tokens):
            parts = dump_state(self.context, seq=sequence.seq_id, adapters="")
            run.saved = b"".join(part.tobytes() for part in parts)
            run.n_saved, run.n_unshifted = n, n_unshifted
        self._unassign(run)
        self.waiting.append(run)

    def _restore(self, run: TextRun, sequence: CacheSequence) -> int:
        """Restore the saved cache of a preempted text; returns the number of tokens in memory."""
        saved, run.saved = run.saved, b""
        while True:
            try:
                restore_state(self.context, saved, seq=sequence.seq_id, adapters="")
            except StateError:
                if self.make_room(run):
                    continue
                return sequence.keep(run.tokens, run.adapters)  # too few cells: evaluate again
            sequence.adopt(run.tokens[: run.n_saved])
            sequence.n_unshifted, sequence.adapters = run.n_unshifted, run.adapters
            return run.n_saved

    # --- cells ----------------------------------------------------------------------------------

    def _make_place(self, run: TextRun, n_shared: int) -> bool:
        """Whether a sequence and cells are free for a text, after preempting lower priorities."""
        running = [other for other in self.running if other.lease is None]
        victims = self._preemptible(run)
        if not self._fits(run, n_shared, [other for other in running if other not in victims]):
            return False
        for other in sorted(victims, key=lambda other: other.last_rank, reverse=True):
            if self.free() and self._fits(run, n_shared, running):
                break
            self._preempt(other)
            running.remove(other)
        return bool(self.free())

    def _fits(self, run: TextRun, n_shared: int, running: Sequence[TextRun]) -> bool:
        """Whether there are cells for a text and the policy's reserve beside the running ones."""
        if not running or not self.context.kv.unified:
            return True
        leased = sum(s.n_tokens - s.n_reduced for s in self.sequences if s.leased)
        n_reserve = self.policy.n_reserve
        used = sum(one.n_own_cells + min(one.n_left, n_reserve) for one in (*running, run))
        return leased + used - n_shared <= self.context.n_ctx

    def make_room(self, protected: TextRun | None = None) -> bool:
        """Free cells of the least recently used idle prefix, else preempt the lowest priority."""
        if drop_oldest(self.free(), self.prefixes):
            return True
        others = [run for run in self.running if run is not protected and run.lease is None]
        if others:
            self._preempt(max(others, key=lambda other: other.last_rank))
        return bool(others)

    def make_room_for(self, rows: Sequence[Row], error: ContextFull) -> None:
        """Free cells after a batch found too few; the lowest priority shifts or ends at last."""
        runs = sorted((row.run for row in rows if row.run is not None), key=lambda run: run.rank)
        if self.make_room(runs[0]):
            return
        run = runs[-1]
        sequence, n_keep = run.sequence, run.request.n_keep
        assert sequence is not None
        if n_keep is not None and run.prompt_logprobs is None and sequence.n_tokens - n_keep >= 2:
            self._shift(run, sequence)
        elif run.n_generated:
            self.end(run, End("length"))
        else:
            self.fail(run, error)

    def _shift(self, run: TextRun, sequence: CacheSequence) -> bool:
        """Remove tokens from the middle until the text fits; False if it ended instead."""
        n_keep = run.request.n_keep
        if n_keep is None:
            self.end(run, End("length"))
            return False
        while True:
            try:
                n = sequence.make_room(run.tokens, n_keep, n_discard=run.request.n_discard)
            except ContextFull as error:
                self.fail(run, error)
                return False
            run.adapters = sequence.adapters
            run.emit("shift", removed=(n_keep, n))
            if len(run.tokens) <= self.context.n_ctx_seq:
                return True

    def resync(self) -> None:
        """Remove the tokens of an interrupted decode, so that cache and sequences agree."""
        for sequence in self.sequences:
            held = self.context.kv.seq_pos_max(sequence.seq_id) + 1
            if held < sequence.n_tokens:
                sequence.truncate(held)
                sequence.owner = None
            elif held > sequence.n_tokens:
                sequence.truncate()
