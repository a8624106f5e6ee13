"""Prompts in, token ids or text out: generators on an engine of their own.

    for token in generate(context, tokens, SamplingParams(temp=0.0), n_predict=24): ...
    for text in generate_text(context, tokens, stop=["\\n\\n"]): print(text, end="")
    for i, token in generate_many(context, prompts, n_predict=64): ...

It does not matter what an earlier run left in the context: one that ended early, raised or was
interrupted. Not thread-safe: one run per context at a time. `pyllama.engine` is for more.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ..errors import BatchError, ContextFull
from ..sampling import LogitsProcessor, SamplingParams
from . import Engine, Event, Lease, Request, Timings
from .request import Ids, Run, check_prompt
from .sequence import UNKNOWN

if TYPE_CHECKING:
    from ..core.context import Context
    from .request import Floats

FILL = -2  # of n_predict: as many tokens as the context takes


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
        n_past: tokens that sequence 0 already holds and keeps; those after them go.
        n_keep: when the context is full, half of what follows its first ``n_keep`` tokens makes
            room (context shift); None ends there.
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
    lease = Lease(Engine(context, timings=timings, sequences=[0]), keep=True)
    known = list(past)[len(past) - n_past :] if len(past) > n_past else list(past)
    lease.truncate(n_past)
    lease.adopt([UNKNOWN] * (n_past - len(known)) + known)
    request = Request(
        tokens,
        params or SamplingParams(),
        max_tokens=n_predict if n_predict >= 0 else None,
        n_keep=None if n_predict == FILL else n_keep,
        text=False,
        processors=tuple(_after(n_past, p) for p in logits_processors),
    )
    return _tokens(lease.run(request, append=True))


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
    check_prompt(len(tokens), 0, context.n_ctx_seq)
    lease = Lease(Engine(context, timings=timings, sequences=[0]), keep=True)
    request = Request(
        tokens,
        params or SamplingParams(),
        max_tokens=n_predict if n_predict >= 0 else None,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        special=special,
    )
    return _pieces(lease.run(request))


def generate_many(
    context: Context,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams | Sequence[SamplingParams] | None = None,
    *,
    n_predict: int = -1,
) -> Iterator[tuple[int, int]]:
    """Continue each prompt; a prompt begins as soon as another has ended (continuous batching).

    What prompts begin with alike is evaluated once and shared. A text has the same tokens as if it
    were alone, whatever runs beside it.

    Args:
        context: its memory is cleared; as many texts run at once as it has sequences.
        params: how to choose, for all prompts or for each.
        n_predict: tokens of each text at most; -1 for an equal share of the context.

    Yields:
        (index of the prompt, token id), in the order in which they are made. An end-of-generation
        token is a text's last one.

    Raises:
        BatchError: an empty prompt, an unknown token.
        ContextFull: a prompt that does not fit even alone.
    """
    for i, event in run_many(context, prompts, params, n_predict=n_predict, text=False):
        for token in event.tokens:
            yield i, token


def run_many(
    context: Context,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams | Sequence[SamplingParams] | None = None,
    *,
    n_predict: int = -1,
    text: bool = True,
) -> Iterator[tuple[int, Event]]:
    """`generate_many` with the engine's events in place of tokens. Raises: the same."""
    each = _params(params, len(prompts))
    if n_predict == 0 or not prompts:
        return
    for i, prompt in enumerate(prompts):
        if not len(prompt):
            raise BatchError(f"prompt {i} is empty: begin with the BOS token, or a text")
        if len(prompt) >= context.n_ctx_seq:
            raise ContextFull(
                f"prompt {i} has {len(prompt)} tokens, a context of {context.n_ctx_seq} takes "
                f"{context.n_ctx_seq - 1}; use a larger `n_ctx`"
            )
    share = max(1, context.n_ctx // context.kv.n_seq_max)
    most = n_predict if n_predict >= 0 else share
    context.kv.clear()
    engine, numbers = Engine(context), dict[int, int]()
    waiting = enumerate(zip(prompts, each, strict=True))

    def submit(n: int) -> None:
        for i, (prompt, sampling) in itertools.islice(waiting, n):
            n_tokens = min(most, context.n_ctx_seq - len(prompt))
            request = Request(prompt, sampling, max_tokens=n_tokens, text=text)
            numbers[engine.submit(request)] = i

    submit(2 * context.kv.n_seq_max)  # some wait, so that no sequence ever does
    while engine.has_work:
        for event in engine.step():
            if event.error is not None:
                raise event.error
            yield numbers[event.request], event
            if event.kind == "end":
                submit(1)


def _tokens(run: Run) -> Iterator[int]:
    for event in run:
        if event.tokens:
            yield event.tokens[0]


def _pieces(run: Run) -> Iterator[str]:
    for event in run:
        if event.text:
            yield event.text


def _after(n_past: int, processor: LogitsProcessor) -> LogitsProcessor:
    """A processor that does not see the first tokens."""

    def process(ids: Ids, logits: Floats) -> Floats:
        return processor(ids[n_past:], logits)

    process.__name__ = getattr(processor, "__name__", type(processor).__name__)
    return process


def _params(
    params: SamplingParams | Sequence[SamplingParams] | None, n: int
) -> Sequence[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * n
    if len(params) != n:
        raise BatchError(f"{len(params)} sampling parameters for {n} prompts")
    return params
