"""A step: one batch of the tokens that are still to compute, and the next tokens of the texts.

    stepper = Stepper(context, scheduler, timings)
    stepper.step()                                 # events go to the sinks of the texts
    stepper.decode([Row(sequence, tokens)])        # those of a lease, without samplers

Every step is the same: the scheduler plans rows, the context decodes them, and each text whose
tokens are all evaluated gets its next one. Drafts are further tokens of a row. A text that is alone
and needs one token takes a shorter path through the same stages. For the thread that steps.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import ContextFull
from ..sampling import apply_logits_processors
from ..speculative import Draft, Speculation
from .drafting import checked, verify
from .jobs import End, TextRun
from .logprobs import token_logprob
from .request import Floats
from .rows import Row, batch_of
from .scheduler import Scheduler
from .sequence import LAST, CacheSequence
from .timings import Timings

if TYPE_CHECKING:
    from ..runtime.context import Context


class Stepper:
    """Decodes batches for the texts of a scheduler.

    Args:
        context: decodes; only this object may do so.
        scheduler: plans the batches.
        timings: counts decodes and sampled tokens.
    """

    def __init__(self, context: Context, scheduler: Scheduler, timings: Timings) -> None:
        self._context, self._scheduler, self.timings = context, scheduler, timings
        timings.experts = context.expert_stats
        self._was_interrupted = False  # a step was: cache and sequences may differ
        self._has_logits: CacheSequence | None = None  # the sequence of the last decode's logits

    def reset(self) -> None:
        """The context has been reset."""
        self._was_interrupted = False

    def step(self) -> None:
        """Evaluate one batch, and sample the next tokens. Raises: as `Engine.step`."""
        scheduler = self._scheduler
        self._begin()
        scheduler.begin_step()
        if self._context.hparams.reads_texts:
            self._step_texts()
            self._encode_prompts()
        drafts, speculation = None, scheduler.speculation
        if speculation is not None and not speculation.rests(scheduler.running):
            drafts = self._drafts(speculation)
        if drafts is not None or not self._step_alone():
            self._step_rows(drafts)
        self._was_interrupted = False

    def _begin(self) -> None:
        if self._was_interrupted:
            self._scheduler.resync()
        self._was_interrupted = True

    def _step_alone(self) -> bool:
        """The step of one running text with one token to evaluate, the most frequent case.

        Has the least Python, see `Context.decode_token`. Returns False if it does not apply.
        """
        running, context = self._scheduler.running, self._context
        if len(running) != 1:
            return False
        run = running[0]
        sequence = run.sequence
        assert sequence is not None
        n = sequence.n_tokens
        if not run.needs_one_token(sequence, n) or n >= context.n_ctx_seq:
            return False
        clock, n_reused = time.perf_counter, context.n_reused
        start = clock()
        try:
            scales = (sequence.scales(1),) if context.adapters or sequence.adapters else ()
            context.decode_token(run.tokens[n], sequence.seq_id, *scales)
        except ContextFull:
            return False  # nothing has changed
        decoded = clock()
        sequence.id_items[n] = run.tokens[n]
        sequence.n_tokens = n + 1
        if self._has_logits is not sequence:
            self._set_logits(sequence, LAST)
        sequence.last_outputs, sequence.n_at_outputs = LAST, n + 1
        if sequence.on_logits is not None:
            sequence.on_logits(n, context.logits[:1])
        self._sample(run, sequence, 0)
        n_reused, sample_s = context.n_reused - n_reused, clock() - decoded
        self.timings.count_decode(1, decoded - start, n_reused, 1, sample_s)
        if self._scheduler.speculation is not None:
            self._scheduler.speculation.count_step(1, 0, 1, decoded - start, sample_s)
        return True

    def _step_rows(self, drafts: list[Draft | None] | None) -> None:
        """The step of any texts, with drafts for all of them or for none."""
        scheduler, context = self._scheduler, self._context
        while True:
            rows = scheduler.plan(drafts)
            if not rows:
                return
            n_reused, build_s, start = context.n_reused, context.build_s, time.perf_counter()
            try:
                is_tree = self._decode(rows)
                break
            except ContextFull as error:
                if drafts is None:
                    scheduler.make_room_for(rows, error)
                drafts = None
        decoded = time.perf_counter()
        decode_s, build_s = decoded - start, context.build_s - build_s
        if drafts is None:
            self._count_rows(rows)
        output = embedding = n_tokens = 0
        for row in rows:
            run = row.run
            assert run is not None
            try:
                if drafts is not None:
                    n_tokens += self._take_verified(run, row, output, is_tree)
                else:
                    n_tokens += self._take(run, row, output, embedding)
            except Exception as error:
                scheduler.fail(run, error)
            output, embedding = output + row.n_outputs, embedding + row.n_embedded
        sample_s, n_reused = time.perf_counter() - decoded, context.n_reused - n_reused
        n, n_rows = len(rows), sum(len(row.tokens) for row in rows)
        if drafts is None:
            self.timings.count_decode(n_rows, decode_s, n_reused, n_tokens, sample_s)
        else:
            self.timings.count_drafted(n_tokens, decode_s, n_reused, sample_s)
        if scheduler.speculation is not None:
            if drafts is not None or (n_rows == n and n_tokens == n):
                scheduler.speculation.count_step(
                    n, n_rows - n, n_tokens, decode_s - build_s, sample_s
                )
            else:
                scheduler.speculation.count_prompt(n_rows, decode_s - build_s)

    def _step_texts(self) -> None:
        """The step without causality: whole texts, as many as fit, which need no sequences."""
        runs = self._texts_that_fit()
        if not runs:
            return
        context, start = self._context, time.perf_counter()
        n_reused, which = context.n_reused, {run.pooled.rows for run in runs if run.pooled}
        rows = which.pop() if len(which) == 1 else "all"
        context.encode([run.tokens for run in runs], rows)
        first = n_tokens = 0
        for run in runs:
            assert run.pooled is not None
            n = len(run.tokens)
            found = context.scores if run.pooled.pooling == "rank" else context.embeddings
            try:
                run.pooled.add_text(found[first : first + (n if rows == "all" else 1)])
                run.emit("embedding", embedding=run.pooled.result(), usage=run.usage)
                self._scheduler.end(run, End("length"))
            except Exception as error:
                self._scheduler.fail(run, error)
            first, n_tokens = first + (n if rows == "all" else 1), n_tokens + n
        seconds, n_reused = time.perf_counter() - start, context.n_reused - n_reused
        self.timings.count_decode(n_tokens, seconds, n_reused)

    def _encode_prompts(self) -> None:
        """Encode the texts of runs whose sequences are empty, for the decoder."""
        context, scheduler = self._context, self._scheduler
        n_reused, start = context.n_reused, time.perf_counter()
        while rows := self._prompts_to_encode():
            try:
                texts = [row.tokens for row in rows]
                context.encode(texts, seq_ids=[row.sequence.seq_id for row in rows])
                break
            except ContextFull as error:
                scheduler.resync()  # earlier ubatches are stored
                scheduler.make_room_for(rows, error)
        if rows:
            for row in rows:
                row.sequence.append(row.tokens)
            n, n_reused = sum(len(row.tokens) for row in rows), context.n_reused - n_reused
            self.timings.count_decode(n, time.perf_counter() - start, n_reused)

    def _prompts_to_encode(self) -> list[Row]:
        found = list[Row]()
        for run in list(self._scheduler.running):
            is_new = run.n_text and not run.paused
            if is_new and self._scheduler.n_to_compute(run) == len(run.tokens):
                assert run.sequence is not None
                found.append(Row(run.sequence, run.tokens[: run.n_text], "none", run=run))
        return found

    def _texts_that_fit(self) -> list[TextRun]:
        """Texts to embed for one ubatch: the first, and those after it for which there is room."""
        waiting, room = self._scheduler.waiting, self._context.n_ubatch
        waiting.sort(key=lambda run: run.rank)
        fitting = list[TextRun]()
        for run in waiting:
            if run.pooled is not None and not run.paused and len(run.tokens) <= room:
                fitting.append(run)
                room -= len(run.tokens)
                if not room:
                    break
        return fitting

    # --- decoding -------------------------------------------------------------------------------

    def decode(self, rows: Sequence[Row]) -> None:
        """Evaluate tokens of leased sequences as one batch. Raises: as `Context.decode`."""
        context = self._context
        self._begin()
        while True:
            n_reused, build_s, start = context.n_reused, context.build_s, time.perf_counter()
            try:
                self._decode(rows)
                break
            except ContextFull:
                if not self._scheduler.make_room():
                    self._was_interrupted = False  # nothing has changed
                    raise
        n, decode_s = sum(len(row.tokens) for row in rows), time.perf_counter() - start
        self.timings.count_decode(n, decode_s, context.n_reused - n_reused)
        if self._scheduler.speculation is not None:
            build_s = context.build_s - build_s
            self._scheduler.speculation.count_prompt(n, decode_s - build_s)
        self._count_rows(rows)
        self._was_interrupted = False

    def _decode(self, rows: Sequence[Row]) -> bool:
        """Evaluate rows as one batch; returns whether it is a tree."""
        first = rows[0]
        if len(rows) == 1 and len(first.tokens) == 1 and first.outputs == "last":
            sequence = first.sequence
            adapted = self._context.adapters or sequence.adapters
            scales = (sequence.scales(1),) if adapted else ()
            self._context.decode_token(first.tokens[0], sequence.seq_id, *scales)
            return False
        batch = batch_of(rows)
        self._context.decode(batch)
        return batch.parent is not None

    def _count_rows(self, rows: Sequence[Row]) -> None:
        """Note that the cache holds the tokens of rows, and report their logits."""
        output = 0
        for row in rows:
            sequence, n = row.sequence, row.n_outputs
            sequence.append(row.tokens)
            if sequence.on_logits is not None:
                at = sequence.n_tokens - len(row.tokens)
                sequence.on_logits(at, self._context.logits[output : output + n])
            output += n
        last = rows[-1]
        self._set_logits(last.sequence, LAST if last.wants_last else None)

    def _set_logits(self, sequence: CacheSequence, outputs: list[int] | None) -> None:
        """Note which logits of the last decode belong to the last tokens of a sequence."""
        if self._has_logits is not sequence:
            if self._has_logits is not None:
                self._has_logits.last_outputs = None
            self._has_logits = sequence
        sequence.last_outputs, sequence.n_at_outputs = outputs, sequence.n_tokens

    # --- results --------------------------------------------------------------------------------

    def _take(self, run: TextRun, row: Row, output: int, embedding: int) -> bool:
        """Take the results of a row; returns whether a token was sampled.

        Args:
            output, embedding: index of its first logits, and of its first embedding.
        """
        n_tokens, scheduler = row.sequence.n_tokens, self._scheduler
        is_whole, first = n_tokens == len(run.tokens), n_tokens - len(row.tokens)
        if run.pooled is not None:
            context, is_rank = self._context, run.pooled.pooling == "rank"
            found = context.scores if is_rank else context.embeddings
            run.pooled.add(first, found[embedding : embedding + row.n_embedded])
            if is_whole:
                run.emit("embedding", embedding=run.pooled.result(), usage=run.usage)
                scheduler.end(run, End("length"))
                return False
        if run.prompt_logprobs is not None:
            logits = self._context.logits[output : output + row.n_outputs]
            run.prompt_logprobs.add(first, logits)
            if run.prompt_logprobs.is_complete:
                scheduler.end_prompt(run)
        if run.sequence is None:
            return False  # with max_tokens=0 it has ended
        if is_whole:
            self._sample(run, row.sequence, output + row.n_outputs - 1)
        elif run.request.progress:
            run.emit("progress", usage=run.usage)
        return is_whole

    def _sample(self, run: TextRun, sequence: CacheSequence, output: int) -> None:
        """Sample the next token of a text from an output of the last decode; emits its events."""
        context, request = self._context, run.request
        try:
            logits, argmax = context.output_ith(output)
            chain = run.chain
            if request.processors:
                ids = sequence.tokens()[run.n_text :]
                edited = apply_logits_processors(request.processors, ids, logits)
                token = chain.sample(edited)
            else:
                token = chain.sample(logits, argmax)
            chain.accept(token)
            if request.criteria and _meets(run, sequence, logits):
                return self._scheduler.end(run, End("stop"))
            n = run.n_logprobs
            end = run.take_token(token, None if n is None else token_logprob(logits, token, n))
            if end is not None:
                self._scheduler.end(run, end)
        except Exception as error:
            self._scheduler.fail(run, error)

    # --- drafts ---------------------------------------------------------------------------------

    def _drafts(self, speculation: Speculation) -> list[Draft | None] | None:
        """The drafts of a step in which each text needs one token; None if there is none."""
        context = self._context
        runs = [run for run in self._scheduler.running if not run.paused]
        room = context.n_ubatch
        if context.kv.unified:
            room = min(room, context.kv.n_cells - context.kv.n_used)
        if context.kv.states is not None:
            room = min(room, context.kv.states.n_drafted)
        room = room // max(len(runs), 1) - 1
        limits = []
        for run in runs:
            sequence = run.sequence
            assert sequence is not None
            n = sequence.n_tokens
            if not run.needs_one_token(sequence, n) or n >= context.n_ctx_seq:
                return None
            free = min(context.n_ctx_seq - n, run.n_left) - 1
            limits.append(max(0, min(free, room, run.max_draft)))
        try:
            drafts = speculation.propose(runs, limits) if any(limits) else None
            if drafts is not None and context.kv.states is not None:  # they cannot branch
                drafts = [None if draft is None else draft.leading_chain() for draft in drafts]
            return None if drafts is None else checked(drafts, context.model.hparams.n_vocab)
        except Exception as error:
            speculation.failed(error)
            raise

    def _take_verified(self, run: TextRun, row: Row, output: int, is_tree: bool) -> int:
        """Add the verified tokens of a row to its text; returns their number.

        In a `run` all but the first wait.
        """
        speculation = self._scheduler.speculation
        result = verify(self._context, row, output, is_tree=is_tree)
        if row.draft is not None:
            run.n_drafted += len(row.draft)
            if result.error is None and speculation is not None:
                speculation.verified(run, row.draft, result.path)
        sequence = row.sequence
        self._set_logits(sequence, result.outputs)
        if sequence.on_logits is not None:
            at = sequence.n_tokens - len(result.outputs)
            sequence.on_logits(at, self._context.logits[result.outputs])
        run.verified.extend(result.tokens)
        self.emit_next_verified(run)
        while run.verified and not (run.is_run and result.error is None):
            self.emit_next_verified(run)
        if result.error is not None and run.sequence is not None:
            self._scheduler.fail(run, result.error)
        return len(result.tokens)

    def emit_next_verified(self, run: TextRun) -> bool:
        """Add the next verified token to its text, and emit its events; False if there is none."""
        if not run.verified:
            return False
        one = run.verified.popleft()
        run.mark = one.mark
        try:
            end: End | None = End("stop")
            if one.token is not None:
                end = run.take_token(one.token, one.logprob, one.drafted)
            if end is not None:
                self._scheduler.end(run, end)
        except Exception as error:
            self._scheduler.fail(run, error)
        return True


def _meets(run: TextRun, sequence: CacheSequence, logits: Floats) -> bool:
    """Whether a criterion ends a text before the sampled token."""
    ids = sequence.tokens()[run.n_text :]
    return any(stop(ids, logits) for stop in run.request.criteria)
