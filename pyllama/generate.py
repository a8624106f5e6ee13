"""The token loop: a prompt in, token ids or text out, one at a time.

    for token in generate(context, tokens, SamplingParams(temp=0.0), n_predict=24): ...
    for text in generate_text(context, tokens, stop=["\\n\\n"]): print(text, end="")

Sequence 0 of the context is rewound to ``n_past`` first, so it does not matter what an earlier run
left behind: one that ended early, raised or was interrupted. The last token chosen is not evaluated
until the next one is asked for. Not thread-safe: one run per context at a time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from .batch import Batch
from .errors import BatchError, ContextFull
from .sampling import Chain, LogitsProcessor, SamplingParams, apply_logits_processors
from .stopping import StopStrings
from .timings import Timings
from .tokenizer import TokenStream

if TYPE_CHECKING:
    from .context import Context
    from .memory import Memory

FILL = -2  # of n_predict: as many tokens as the context takes
MIN_ROOM = 4  # cells that a prompt must leave free, as in llama.cpp


def generate(
    context: Context,
    tokens: Sequence[int],
    params: SamplingParams | None = None,
    *,
    n_predict: int = -1,
    n_past: int = 0,
    n_keep: int | None = None,
    past: Sequence[int] = (),
    logits_processors: Iterable[LogitsProcessor] = (),
    timings: Timings | None = None,
) -> Iterator[int]:
    """Continue tokens.

    Args:
        context: evaluates in sequence 0.
        tokens: what to continue, at least one; evaluated at the first ``next``.
        params: how to choose; None for llama.cpp's defaults.
        n_predict: tokens at most; -2 for as many as the context takes, -1 the same unless it
            shifts (``n_keep``): then there is no end.
        n_past: tokens that sequence 0 already holds and keeps; what lies behind them goes.
        n_keep: when the context is full, half of what lies behind its first ``n_keep`` tokens
            makes room (context shift); None ends there.
        past: the tokens that sequence 0 already holds, where the penalties should count them.
        logits_processors: called with all ids from ``n_past`` on and the logits, before sampling.
        timings: counts what is done.

    Yields:
        Token ids. An end-of-generation token is the last one; unless ``params.ignore_eos``, which
        keeps it from being chosen.

    Raises:
        ContextFull: the prompt leaves fewer than 4 free cells.
        BatchError: no tokens, an unknown token, ``n_past`` that the sequence does not hold, or a
            context shift where positions are learned.
        Aborted: the decode was stopped.
    """
    check_prompt(len(tokens), n_past, context.n_ctx_seq)
    held = context.kv.seq_pos_max(0) + 1
    if not 0 <= n_past <= held:
        raise BatchError(f"n_past is {n_past}, but sequence 0 holds {held} tokens")
    if n_keep is not None:
        context.kv.check_shift()
    model = context.model
    chain = Chain(params or SamplingParams(), model.hparams.n_vocab, model.tokenizer.eog)
    for token in past:
        chain.accept(token)
    context.kv.seq_rm(0, n_past, -1)
    # a context of n cells can choose one token more than it can hold
    most = context.n_ctx_seq - n_past - len(tokens) + 1 if n_keep is None else sys.maxsize
    if n_predict == FILL:
        most, n_keep = context.n_ctx_seq - n_past - len(tokens) + 1, None
    return _loop(
        context,
        list(tokens),
        chain,
        n_left=min(n_predict, most) if n_predict >= 0 else most,
        n_keep=n_keep,
        processors=list(logits_processors),
        timings=timings or Timings(),
    )


def generate_text(
    context: Context,
    tokens: Sequence[int],
    params: SamplingParams | None = None,
    *,
    n_predict: int = -1,
    stop: str | Iterable[str] = (),
    special: bool = False,
    timings: Timings | None = None,
) -> Iterator[str]:
    """Continue tokens as text, up to the first stop string.

    Args:
        stop: texts that end it, and are not part of it.
        special: spell special tokens out.

    Yields:
        Pieces that are never empty and never split a character. What may be the beginning of a
        stop string is held back.

    Raises:
        As `generate`; SamplingError for an empty stop string.
    """
    stream = TokenStream(context.model.tokenizer, special)
    stops = StopStrings(stop)
    ids = generate(context, tokens, params, n_predict=n_predict, timings=timings)
    return _text(ids, stream, stops)


def check_prompt(n_prompt: int, n_past: int, n_ctx: int, min_room: int = MIN_ROOM) -> None:
    """Refuse a prompt that is empty or leaves too little room.

    Raises:
        ContextFull, BatchError: with the numbers, and the flag to use.
    """
    if not n_prompt:
        raise BatchError("there are no tokens to continue: begin with the BOS token, or a text")
    if n_past + n_prompt > n_ctx - min_room:
        held = f" behind {n_past} tokens" if n_past else ""
        raise ContextFull(
            f"the prompt has {n_prompt} tokens{held}, a context of {n_ctx} takes "
            f"{max(0, n_ctx - min_room - n_past)}; "
            f"use a context of at least {n_past + n_prompt + min_room} (-c, n_ctx) "
            "or a shorter prompt"
        )


def _loop(
    context: Context,
    ids: list[int],
    chain: Chain,
    *,
    n_left: int,
    n_keep: int | None,
    processors: list[LogitsProcessor],
    timings: Timings,
) -> Iterator[int]:
    is_eog, clock = context.model.tokenizer.is_eog, time.perf_counter
    if n_left <= 0:
        return
    for start in range(0, len(ids), context.n_batch):
        part = ids[start : start + context.n_batch]
        last = start + len(part) == len(ids)
        timings.decode(context, Batch(part, logits="last" if last else "none"))
    for token in ids:
        chain.accept(token)
    while True:
        start_s = clock()
        logits, best = context.logits_ith(-1), None
        if processors:
            logits = apply_logits_processors(processors, np.array(ids, np.intc), logits)
        else:
            best = context.best_ith(-1)
        token = chain.sample(logits, best)
        chain.accept(token)
        timings.count_sample(clock() - start_s)
        yield token
        n_left -= 1
        if n_left == 0 or is_eog(token):
            return
        ids.append(token)
        if n_keep is not None and context.kv.length(0) >= context.n_ctx_seq:
            shift(context, n_keep)
        timings.decode_token(context, token)


def shift(context: Context, n_keep: int) -> int:
    """Forget half of what lies behind the first ``n_keep`` tokens of sequence 0; the rest moves up.

    Returns:
        How many tokens are forgotten.

    Raises:
        ContextFull: there is nothing behind them.
    """
    kv = context.kv
    return forget_half(kv, kv.caches[0].seq_pos_min(0), kv.length(0), n_keep)


def forget_half(kv: Memory, first: int, n: int, n_keep: int) -> int:
    """``shift`` of ``n`` tokens from position ``first`` on, though a window may have lost some."""
    discard = (n - n_keep) // 2
    if discard < 1:
        raise ContextFull(
            f"the context of {n} tokens is full, and all {n_keep} tokens to keep are in it; "
            "use a smaller --keep or a larger context (-c, n_ctx)"
        )
    start = first + n_keep
    kv.seq_rm(0, start, start + discard)
    kv.seq_add(0, start + discard, -1, -discard)
    return discard


def _text(ids: Iterator[int], stream: TokenStream, stops: StopStrings) -> Iterator[str]:
    for token in ids:
        text, stopped = stops.push(stream.push(token))
        if text:
            yield text
        if stopped:
            return
    text, stopped = stops.push(stream.flush())
    text += stops.flush()
    if text:
        yield text
