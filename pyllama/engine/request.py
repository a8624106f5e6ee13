"""Requests to an engine, the events it reports, and its policy.

    Request(tokens, SamplingParams(seed=1), max_tokens=64, stop=("User:",))
    Request(tokens, pooling="mean")                # an embedding

Plain values; `Engine.submit` validates a request against its context.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import BatchError, ContextFull
from ..runtime.adapters import Adapter
from ..sampling import LogitsProcessor, SamplingParams

if TYPE_CHECKING:
    from ..grammar import Grammar

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.intc]
StoppingCriteria = Callable[[Ids, Floats], bool]
EndReason = Literal["eog", "stop", "length", "indent", "time", "abort", "deadline"]
Kind = Literal["progress", "prompt", "embedding", "tokens", "shift", "end", "error"]
PLAIN = SamplingParams()
MIN_ROOM = 4  # cells that a prompt must leave free, as in llama.cpp


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt, sampling parameters and limits.

    Args:
        tokens: the prompt, at least one token.
        sampling: sampling parameters.
        max_tokens: maximum tokens per text; None until the context is full.
        stop: stop strings.
        stop_at_eog: whether end-of-generation tokens end it.
        text: whether events have text; stop strings need it.
        special: include the text of special tokens: of all, or of these ids.
        drop_unfinished: drop an incomplete character at the end, instead of U+FFFD.
        grammar: what the generated text must match; where it must end, only an
            end-of-generation token is sampled.
        processors: called with all ids and a copy of the logits; return new logits.
        criteria: called with all ids and the logits after sampling; True ends the text before the
            sampled token.
        n_keep: when the context is full, remove half of the tokens after the first ``n_keep``
            (context shift); None ends there.
        n_discard: number of tokens to remove then; 0 for half of them.
        priority: higher ones are admitted first and preempted last.
        deadline_s: seconds from submission after which it ends.
        max_predict_s: seconds from the first token after which it ends at the next line break;
            needs ``text``.
        n_indent: end at a line, after the first, that begins with fewer spaces and tabs; 0 for
            no such end. Needs ``text``.
        progress: report the progress of the prompt.
        max_draft: maximum number of drafted tokens per step, where the engine drafts; None for its
            own limit, 0 for no drafts.
        seq_id: the sequence for its first text, for which it waits; None for any.
        reuse: whether it may take over a prefix that is in the cache.
        pooling: compute an embedding of the tokens, or with ``rank`` their scores, and generate no
            text; one of ``POOLINGS``, see `PooledRows`.
        adapters: the factor of each adapter that changes the request; None: the context's own
            factors (``Context.applied``).
    """

    tokens: Sequence[int]
    sampling: SamplingParams = PLAIN
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_at_eog: bool = True
    text: bool = True
    special: bool | frozenset[int] = False
    drop_unfinished: bool = False
    grammar: Grammar | None = None
    processors: tuple[LogitsProcessor, ...] = ()
    criteria: tuple[StoppingCriteria, ...] = ()
    n_keep: int | None = None
    n_discard: int = 0
    priority: int = 0
    deadline_s: float | None = None
    max_predict_s: float | None = None
    n_indent: int = 0
    progress: bool = False
    max_draft: int | None = None
    seq_id: int | None = None
    reuse: bool = True
    pooling: str | None = None
    adapters: Mapping[Adapter, float] | None = None


class TokenLogprob(NamedTuple):
    """Log-probability of a token, and the likeliest tokens at its position."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


class Usage(NamedTuple):
    """Token counts.

    Attributes:
        n_prompt: tokens of the prompt.
        n_cached: tokens of the prompt found in the cache.
        n_computed: tokens in the cache now.
        n_generated: sampled tokens, including an end-of-generation token.
        seq_id: the sequence that it runs in; -1 while it waits.
    """

    n_prompt: int
    n_cached: int
    n_computed: int
    n_generated: int
    seq_id: int = -1


class Event(NamedTuple):
    """A change of one text of a request.

    Attributes:
        request: the number from ``submit``.
        choice: index among the request's ``n`` texts.
        kind: ``tokens`` sampled, ``progress`` of the prompt, log-probabilities of the ``prompt``,
            the ``embedding``, a context ``shift``, ``end``, or an ``error`` of a callback or
            grammar, which also ends the text.
        text: whole characters, without a possible beginning of a stop string.
        rest: text after the stop string in the token that completes it; not in ``text``.
        n_held: number of characters held back, including an incomplete one.
        logprobs: of the sampled tokens.
        prompt_logprobs: of the prompt's tokens, None for the first; the ``prompt`` event comes
            once per request, before its tokens.
        embedding: float32[n_embd]; with pooling ``none`` [n_tokens, n_embd], with ``rank``
            [n_cls_out].
        cumulative_logprob: sum over the generated tokens, of an ``end`` with ``logprobs`` or
            ``best_of``.
        drafted: whether the token was drafted, and accepted.
        n_drafted: number of tokens drafted for the text so far, of a ``tokens`` event.
        removed: index of the first token removed by a shift, and the number removed.
        reason: reason of the end: end-of-generation token; stop string, token or criterion;
            maximum length or full context; a line that is not indented; the time of generation;
            ``abort``; deadline.
        n_cut: number of characters at the end of the text so far that are no part of it: a line
            that is not indented is recognised after its beginning was reported.
        stop: the stop string or token found.
        error: exception of the callback.
    """

    request: int
    choice: int
    kind: Kind
    tokens: tuple[int, ...] = ()
    text: str = ""
    rest: str = ""
    n_held: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob | None, ...] = ()
    embedding: Floats | None = None
    cumulative_logprob: float | None = None
    usage: Usage | None = None
    reason: EndReason | None = None
    n_cut: int = 0
    stop: str | int | None = None
    drafted: bool = False
    n_drafted: int = 0
    removed: tuple[int, int] = (0, 0)
    error: Exception | None = None


Run = Generator[Event, Sequence[int] | None, None]


@dataclass(frozen=True, slots=True)
class Policy:
    """Limits for sharing a context between requests.

    Args:
        max_prompt_tokens: maximum prompt tokens per step while other texts generate, which bounds
            their latency; without others a step takes a whole batch.
        max_admitted: maximum number of texts that begin in one step while others generate: each
            may restore a kept prompt, which takes milliseconds.
        max_waiting: maximum number of waiting requests; None for no limit.
        n_reserve: cells reserved for future tokens of each running text; a text is admitted
            beside others only if they are free.
        min_shared: minimum common prefix with a prompt being evaluated for which another prompt
            waits, to share it.
    """

    max_prompt_tokens: int = 512
    max_admitted: int = 4
    max_waiting: int | None = None
    n_reserve: int = 64
    min_shared: int = 32


def check_prompt(n_prompt: int, n_past: int, n_ctx: int, min_room: int = MIN_ROOM) -> None:
    """Raise an error if a prompt is empty or leaves too few free cells.

    Raises:
        BatchError: the prompt is empty.
        ContextFull: fewer than ``min_room`` cells would be free.
    """
    if not n_prompt:
        raise BatchError("there are no tokens to continue: begin with the BOS token, or a text")
    if n_past + n_prompt > n_ctx - min_room:
        held = f" after {n_past} earlier ones" if n_past else ""
        raise ContextFull(
            f"the prompt has {n_prompt} tokens{held}, a context of {n_ctx} takes "
            f"{max(0, n_ctx - min_room - n_past)}; "
            f"use `n_ctx={n_past + n_prompt + min_room}` or more, or a shorter prompt"
        )
