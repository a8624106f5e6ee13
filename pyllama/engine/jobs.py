"""The texts in flight: the engine's state of each text of a request, while it waits and runs.

    runs = make_runs(context, Request(tokens, SamplingParams(n=2)), number, arrivals)
    end = runs[0].take_token(token)                # emits its event; why the text ends, or None

A text has events, samplers and stops of its own; sequences and cells are the scheduler's.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import BatchError, ContextFull, GrammarError, SamplingError
from ..hparams import POOLINGS
from ..runtime.adapters import Adapter, AdapterUses, uses_of
from ..sampling import Chain, SamplingParams, chain_for
from ..speculative.verify import Mark, Verifier
from .logprobs import PromptLogprobs
from .pooling import PooledRows
from .request import PLAIN, EndReason, Event, Kind, Request, TokenLogprob, Usage, check_prompt
from .sequence import UNKNOWN, CacheSequence
from .text import LineEnds, TextAssembler

if TYPE_CHECKING:
    from ..grammar import Matcher
    from ..runtime.context import Context

Sink = Callable[[Event], None]


class End(NamedTuple):
    """Why a text ends: the reason, the stop string or token, and its last token."""

    reason: EndReason
    stop: str | int | None = None
    token: int | None = None


@dataclass(slots=True)
class Verified:
    """A token that was sampled from a row of a step with drafts.

    Attributes:
        token: the token; None if a criterion ended the text before it.
        logprob: if the request needs it.
        mark: the verifier's state after the token, if it may be rolled back.
        drafted: whether it was drafted.
    """

    token: int | None
    logprob: TokenLogprob | None = None
    mark: Mark | None = None
    drafted: bool = False


@dataclass(slots=True, eq=False)
class TextRun:
    """One text of a request, and the `DraftView` of it that drafters see.

    Invariant while it runs: the cache of its sequence holds ``tokens[:sequence.n_tokens]``. After
    a prompt, a preemption or a context shift, the remaining tokens are evaluated.

    Attributes:
        tokens: prompt and generated tokens, without those removed by a context shift.
        n_text: number of leading tokens that an encoder reads; the decoder's start token is next.
        ends: tokens that end it.
        max_cells: a text of more tokens ends.
        sink: called with its events.
        lease: the sequence that it must run in, None for any.
        sequence: the sequence that it runs in, None while it waits.
        key: identifies the text as the ``owner`` of its sequence.
        is_run: whether a ``run`` generator makes its steps.
        paused: whether that generator is suspended.
        n_cached: prompt tokens found in the cache, -1 before it ran.
        n_shared_cells: leading tokens whose cells belong to another sequence too.
        n_logprobs: number of likeliest tokens to find at each step; None if no log-probabilities
            are needed.
        logprob: sum of the log-probabilities of the generated tokens.
        prompt_logprobs: collects those of the prompt; None if not requested, or complete.
        pooled: collects the rows of an embedding; None for a text.
        max_draft: maximum number of drafted tokens.
        n_drafted: number of tokens drafted so far.
        verifier: verifies its drafts; None before the first one.
        verified: tokens that are not in ``tokens`` yet, because the generator of its `run` has not
            yielded those before them.
        mark: the verifier's state after ``tokens``, if ``verified`` has others.
        checkpoints: numbers of leading tokens after which its recurrent state is kept, ascending.
        adapters: the adapters, and their factors, that its tokens are computed with.
        saved: its cache, if evaluating the tokens again would give other bits.
        id: number in the order of submission.
    """

    request: Request
    number: int
    choice: int
    id: int
    tokens: list[int]
    chain: Chain
    text: TextAssembler | None
    lines: LineEnds | None
    ends: Mapping[int, EndReason]
    max_cells: int
    n_left: int
    sink: Sink
    lease: CacheSequence | None = None
    deadline: float | None = None
    sequence: CacheSequence | None = None
    key: object = field(default_factory=object)
    is_run: bool = False
    paused: bool = False
    n_prompt: int = 0
    n_text: int = 0
    n_cached: int = -1
    n_shared_cells: int = 0
    n_generated: int = 0
    n_logprobs: int | None = None
    logprob: float = 0.0
    prompt_logprobs: PromptLogprobs | None = None
    pooled: PooledRows | None = None
    last_step: int = 0
    max_draft: int = 0
    n_drafted: int = 0
    verifier: Verifier | None = None
    verified: deque[Verified] = field(default_factory=deque)
    mark: Mark | None = None
    checkpoints: list[int] = field(default_factory=list)
    adapters: AdapterUses = frozenset()
    saved: bytes = b""
    n_saved: int = 0
    n_unshifted: int = 0

    @property
    def matcher(self) -> Matcher | None:
        """See `DraftView.matcher`."""
        return self.chain.matcher

    @property
    def sequence_id(self) -> int | None:
        """See `DraftView.sequence_id`."""
        return None if self.sequence is None else self.sequence.seq_id

    def needs_one_token(self, sequence: CacheSequence, n: int) -> bool:
        """Whether one token is left to evaluate after the ``n`` of its sequence, and to sample."""
        if self.paused or self.pooled is not None:
            return False
        return len(self.tokens) == n + 1 and sequence.owner is self.key

    def kept_in(self, first: int, n: int) -> list[int]:
        """Those of the next ``n`` tokens after which the state is kept, counted from ``first``."""
        return [at - first - 1 for at in self.checkpoints if first < at <= first + n]

    @property
    def reusable(self) -> list[int]:
        """The tokens whose common prefix with a cache need not be evaluated."""
        if not self.request.reuse and self.n_cached < 0:
            return []
        if self.prompt_logprobs is not None:
            return self.tokens[: self.prompt_logprobs.n_evaluated + 1]
        if self.pooled is not None:
            return self.tokens[: self.pooled.n_reusable + 1]
        return self.tokens

    @property
    def wanted(self) -> tuple[list[int], AdapterUses]:
        """`reusable`, and the adapters of these tokens."""
        return self.reusable, self.adapters

    @property
    def rank(self) -> tuple[int, int]:
        """Sort key: higher priorities first, then earlier submissions."""
        return -self.request.priority, self.id

    @property
    def last_rank(self) -> tuple[bool, int, int]:
        """Sort key of running texts: the largest is preempted first."""
        return self.paused, *self.rank

    @property
    def usage(self) -> Usage:
        """Token counts so far."""
        sequence, n_cached = self.sequence, max(self.n_cached, 0)
        if sequence is None:
            return Usage(self.n_prompt, n_cached, 0, self.n_generated)
        n_held, seq_id = sequence.n_tokens, sequence.seq_id
        return Usage(self.n_prompt, n_cached, n_held, self.n_generated, seq_id)

    @property
    def seq_id(self) -> int | None:
        """The sequence that it must run in; None for any."""
        return self.request.seq_id if self.choice == 0 else None

    @property
    def n_own_cells(self) -> int:
        """Cells that the text takes for itself: those it shares with others do not count."""
        sequence = self.sequence
        if sequence is not None and sequence.owner is self.key and sequence.n_reduced:
            return len(self.tokens) - sequence.n_reduced  # a reduced text shares none
        return len(self.tokens) - self.n_shared_cells

    def emit(self, kind: Kind, **values: Any) -> None:
        """Report a change of the text."""
        self.sink(Event(self.number, self.choice, kind, **values))

    def take_token(
        self, token: int, logprob: TokenLogprob | None = None, drafted: bool = False
    ) -> End | None:
        """Append a sampled token, and emit its event; returns why it is the last one, or None."""
        self.tokens.append(token)
        self.n_generated += 1
        self.n_left -= 1
        reason = self.ends.get(token)
        if reason is None and (not self.n_left or len(self.tokens) > self.max_cells):
            reason = "length"
        text, shown, rest, n_held = self.text, "", "", 0
        stop: str | int | None = token if reason == "stop" else None
        if text is not None:
            hides = reason is not None and self._hides(reason)
            shown = text.flush() if hides else text.push(token)
            n_held = text.n_held
            if text.stops.matched is not None:
                reason, stop, rest = "stop", text.stops.matched, text.stops.rest
            if self.lines is not None and (ended := self.lines.push(shown)) is not None:
                reason, stop = ended, None
        logprobs: tuple[TokenLogprob, ...] = ()
        if logprob is not None:
            self.logprob += logprob.logprob
            logprobs = () if self.request.sampling.logprobs is None else (logprob,)
        self.sink(
            Event(
                self.number, self.choice, "tokens", (token,), shown, rest, n_held, logprobs,
                drafted=drafted, n_drafted=self.n_drafted,
            )
        )  # fmt: skip
        return None if reason is None else End(reason, stop, token)

    def _hides(self, reason: EndReason) -> bool:
        """Whether the text of a last token is left out."""
        shows_stop = self.request.special or self.request.sampling.include_stop_str_in_output
        return reason == "eog" or (reason == "stop" and not shows_stop)

    def rest(self, end: End) -> str:
        """The text of the ``end`` event."""
        text = self.text
        if text is None or end.reason == "indent":
            return ""
        if end.reason == "eog" and end.token is not None:
            return text.piece(end.token)
        return text.flush() if text.stops.matched is None else ""

    def insert(self, tokens: Sequence[int]) -> None:
        """Append tokens that were not sampled; drops verified tokens that would follow."""
        if self.verified and self.verifier is not None and self.mark is not None:
            self.verified.clear()
            self.verifier.rollback(self.mark)
        self.tokens.extend(tokens)


def check_request(
    context: Context, request: Request, tokens: Sequence[int], *, is_leased: bool = False
) -> None:
    """Raise the error of a request that can never run; its chain checks its sampling.

    Args:
        tokens: of the request, after those of a lease.
        is_leased: whether they may be unknown.

    Raises:
        BatchError, ContextFull, GrammarError, ModelError, SamplingError: see `Engine.submit`.
    """
    n, n_vocab, least = len(tokens), context.model.hparams.n_vocab, 0
    learned = context.hparams.n_ctx_train if context.hparams.learned_positions else n
    if n > learned:
        raise ContextFull(
            f"the text has {n} tokens, but the model has learned {learned} positions: shorten it"
        )
    if request.pooling is not None:
        _check_pooled(context, n, request.pooling)
    else:
        _check_text(context, request, n)
        if is_leased and request.sampling.prompt_logprobs is None:
            least = UNKNOWN
    if min(tokens) < least or max(tokens) >= n_vocab:
        bad = next(t for t in tokens if not least <= t < n_vocab)
        raise BatchError(f"token id {bad} is not in the vocabulary of 0 to {n_vocab - 1}")
    if request.pooling == "rank":
        context.check_classifier()
    if request.adapters is not None:
        _check_adapters(context, request.adapters)


def _check_pooled(context: Context, n: int, pooling: str) -> None:
    if not n:
        raise BatchError("there are no tokens to embed: the text is empty")
    if pooling not in POOLINGS:
        raise BatchError(f"pooling is {pooling!r}, want one of {', '.join(POOLINGS)}")
    check_prompt(n, 0, context.n_ctx_seq, min_room=0)
    if context.hparams.reads_texts:
        _check_whole(context, n)


def _check_whole(context: Context, n: int) -> None:
    """Raise BatchError unless a text of ``n`` tokens can be computed in one ubatch."""
    if n > context.n_ubatch:
        raise BatchError(
            f"the text has {n} tokens, which attend to later ones, so it must fit "
            f"into one ubatch of {context.n_ubatch}; use `n_ubatch={n}` or more"
        )


def _check_adapters(context: Context, adapters: Mapping[Adapter, float]) -> None:
    context.scales(adapters)
    if context.hparams.reads_texts and adapters != context.applied:
        raise BatchError(
            "tokens of this context attend to later ones: its requests have the adapters that the "
            "context applies, for all of them"
        )


def _check_text(context: Context, request: Request, n: int) -> None:
    if not context.hparams.causal:
        raise BatchError(
            "tokens of this context attend to later ones (non-causal attention): it computes "
            "embeddings, no texts" + "; use pyllama-diffusion" * context.hparams.diffusion
        )
    stop: object = request.stop
    if isinstance(stop, str):
        raise SamplingError(f"stop: got {stop!r}, want a tuple of texts")
    grammar: object = request.grammar
    if grammar is not None:
        from ..grammar import Grammar

        if not isinstance(grammar, Grammar):
            raise GrammarError(
                f"grammar: got a value of type {type(grammar).__name__}, want Grammar(...) of it"
            )
    if (request.n_indent > 0 or request.max_predict_s is not None) and not request.text:
        raise SamplingError("n_indent and max_predict_s end a text at a line: they need text=True")
    if request.n_keep is None or request.sampling.prompt_logprobs is not None:
        least = 2 if context.hparams.has_encoder else 0  # the decoder's start, and a token
        check_prompt(n, 0, context.n_ctx_seq, min_room=least)
    else:
        check_prompt(min(n, 1), 0, 1, min_room=0)
    if request.n_keep is not None:
        context.kv.check_shift()
    if context.hparams.has_encoder:
        if request.sampling.prompt_logprobs is not None:
            raise BatchError(
                "an encoder reads the prompt of this model, so its tokens have no probabilities"
            )
        _check_whole(context, n)


@cache
def _unused_chain() -> Chain:
    """The chain of all texts of which nothing is sampled."""
    return Chain(SamplingParams(temp=0.0), 1, frozenset())


def make_runs(
    context: Context,
    request: Request,
    tokens: Sequence[int],
    *,
    number: int,
    ids: Iterator[int],
    sink: Sink,
    lease: CacheSequence | None = None,
) -> list[TextRun]:
    """The texts of a request.

    Args:
        tokens: of the request, after those of a lease.
        number: of the request.
        ids: numbers of texts in the order of submission.
        sink: called with their events.
        lease: the sequence that they must run in; None for any.

    Raises: as `check_request`; SamplingError: see ``Chain`` and ``TextAssembler``.
    """
    check_request(context, request, tokens, is_leased=lease is not None)
    pooling = request.pooling
    if pooling is not None and request.sampling is not PLAIN:
        request = replace(request, sampling=PLAIN)
    tokenizer, params, grammar = context.model.tokenizer, request.sampling, request.grammar
    n_prompt, n_text = len(tokens), 0
    if context.hparams.has_encoder and pooling is None:
        n_text, tokens = n_prompt, [*tokens, context.hparams.own["decoder_start"]]
    n_vocab, known = context.model.hparams.n_vocab, [token for token in tokens if token >= 0]
    ends: dict[int, EndReason] = dict.fromkeys(params.stop_token_ids, "stop")
    if request.stop_at_eog:
        ends |= dict.fromkeys(tokenizer.eog, "eog")
    n_logprobs = params.logprobs
    if n_logprobs is None and params.n_texts > params.n:
        n_logprobs = 0  # to compare the texts
    max_draft = sys.maxsize if request.max_draft is None else request.max_draft
    has_lines = request.n_indent > 0 or request.max_predict_s is not None
    begun_s = time.perf_counter()
    adapters = uses_of(context.applied if request.adapters is None else request.adapters, tokens)
    max_tokens = request.max_tokens if pooling is None else 0

    def make(i: int) -> TextRun:
        text = prompt_logprobs = pooled = None
        if pooling is not None:
            chain, pooled = (
                _unused_chain(),
                PooledRows(
                    pooling,
                    n_prompt,
                    not context.hparams.reads_texts,
                    averages_scores=POOLINGS[context.hparams.head_pooling] == "none",
                ),
            )
        else:
            chain = chain_for(params.for_text(i), n_vocab, tokenizer, grammar)
            chain.accept_prompt(known[n_text:])
        if request.text and pooling is None:
            text = TextAssembler(
                tokenizer,
                request.stop,
                special=request.special,
                include_stop=params.include_stop_str_in_output,
                drop_unfinished=request.drop_unfinished,
            )
        if params.prompt_logprobs is not None and i == 0:
            prompt_logprobs = PromptLogprobs(tokens, params.prompt_logprobs)
        return TextRun(
            request, number, i, next(ids), list(tokens), chain, text,
            LineEnds(request.n_indent, request.max_predict_s) if has_lines else None,
            ends,
            max_cells=context.n_ctx_seq if request.n_keep is None else sys.maxsize,
            n_left=sys.maxsize if max_tokens is None else max_tokens,
            sink=sink,
            lease=lease,
            deadline=None if request.deadline_s is None else begun_s + request.deadline_s,
            n_prompt=n_prompt,
            n_text=n_text,
            n_logprobs=n_logprobs,
            prompt_logprobs=prompt_logprobs,
            pooled=pooled,
            max_draft=max_draft if len(known) == len(tokens) else 0,
            adapters=adapters,
        )  # fmt: skip

    return [make(i) for i in range(params.n_texts)]
