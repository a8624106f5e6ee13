"""Generators of tokens or text for a prompt, each with its own engine.

    for token in generate(context, tokens, SamplingParams(temp=0.0), n_predict=24): ...
    for text in generate_text(context, tokens, stop=["\\n\\n"]): print(text, end="")
    for i, token in generate_many(context, prompts, n_predict=64): ...

Tokens left in the context by an earlier run, even an interrupted one, do no harm. Not thread-safe:
one run per context at a time; use an `Engine` for more.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ..errors import BatchError, ContextFull, SamplingError
from ..sampling import LogitsProcessor, SamplingParams
from ..speculative import Speculation
from . import Engine, Event, Lease, Request, Timings
from .request import Ids, check_prompt
from .sequence import UNKNOWN

if TYPE_CHECKING:
    from ..grammar import Grammar
    from ..runtime.context import Context
    from .request import Floats

FILL = -2  # n_predict: generate until the context is full


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
    speculation: Speculation | None = None,
) -> Iterator[int]:
    """Continue tokens.

    Args:
        context: the context; its sequence 0 is used.
        tokens: prompt of at least one token; evaluated at the first ``next``.
        params: sampling parameters; None for llama.cpp's defaults.
        n_predict: maximum number of tokens; -2 until the context is full, -1 the same, or without
            limit if the context shifts (``n_keep``).
        n_past: tokens of sequence 0 to keep before the prompt; the rest is removed.
        n_keep: when the context is full, remove half of the tokens after the first ``n_keep``
            (context shift); None ends there.
        past: the tokens that sequence 0 holds, for the penalties.
        logits_processors: called with the ids from ``n_past`` on and the logits, before sampling.
        timings: counts decodes and sampled tokens.
        speculation: how tokens are drafted; None for no drafts.

    Yields:
        Token ids, up to and including an end-of-generation token.

    Raises:
        ContextFull: the prompt leaves fewer than 4 free cells.
        BatchError: no tokens, an unknown token, a sequence of fewer than ``n_past`` tokens, or a
            context shift of a model with learned positions.
        SamplingError: ``params`` asks for several texts, which `Engine.run` returns.
        Aborted: the decode was stopped.
    """
    _check_one_text(params)
    check_prompt(len(tokens), n_past, context.n_ctx_seq)
    held = context.kv.seq_pos_max(0) + 1
    if not 0 <= n_past <= held:
        raise BatchError(f"n_past is {n_past}, but sequence 0 holds {held} tokens")
    if context.kv.resume(0, n_past) != n_past:
        raise BatchError(
            f"n_past is {n_past}, but sequence 0 can only go back to {context.kv.resume(0, n_past)}"
            " tokens: there is no recurrent state of its others, or a window has lost their keys"
        )
    engine = Engine(context, timings=timings, sequences=[0], speculation=speculation)
    lease = Lease(engine, keep=True)
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
    return (event.tokens[0] for event in lease.run(request, append=True) if event.tokens)


def generate_text(
    context: Context,
    tokens: Sequence[int],
    params: SamplingParams | None = None,
    *,
    n_predict: int = -1,
    stop: str | Iterable[str] = (),
    special: bool = False,
    timings: Timings | None = None,
    speculation: Speculation | None = None,
) -> Iterator[str]:
    """Continue tokens as text, up to the first stop string.

    Args:
        stop: stop strings, which are not part of the text.
        special: include the text of special tokens.

    Yields:
        Non-empty pieces of whole characters. A possible beginning of a stop string is held back.

    Raises:
        As `generate`; SamplingError for an empty stop string.
    """
    _check_one_text(params)
    check_prompt(len(tokens), 0, context.n_ctx_seq)
    engine = Engine(context, timings=timings, sequences=[0], speculation=speculation)
    lease = Lease(engine, keep=True)
    request = Request(
        tokens,
        params or SamplingParams(),
        max_tokens=n_predict if n_predict >= 0 else None,
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        special=special,
    )
    return (event.text for event in lease.run(request) if event.text)


def generate_many(
    context: Context,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams | Sequence[SamplingParams] | None = None,
    *,
    n_predict: int = -1,
    speculation: Speculation | None = None,
) -> Iterator[tuple[int, int]]:
    """Continue many prompts with continuous batching.

    Common prefixes of prompts are evaluated once. The tokens of a prompt do not depend on the
    others.

    Args:
        context: is cleared first; its number of sequences is that of concurrent prompts.
        params: sampling parameters, for all prompts or one per prompt.
        n_predict: maximum tokens per prompt; -1 for an equal share of the context.
        speculation: how tokens are drafted; None for no drafts.

    Yields:
        (index of the prompt, token id), in the order of generation; for each prompt up to and
        including an end-of-generation token.

    Raises:
        BatchError: an empty prompt, an unknown token.
        ContextFull: a prompt does not fit into an empty context.
        SamplingError: ``params`` asks for several texts, which `run_many` returns.
    """
    for one in _params(params, len(prompts)):
        _check_one_text(one)
    events = run_many(
        context, prompts, params, n_predict=n_predict, text=False, speculation=speculation
    )
    for i, event in events:
        for token in event.tokens:
            yield i, token


def run_many(
    context: Context,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams | Sequence[SamplingParams] | None = None,
    *,
    n_predict: int = -1,
    text: bool = True,
    grammar: Grammar | None = None,
    speculation: Speculation | None = None,
) -> Iterator[tuple[int, Event]]:
    """`generate_many` with the engine's events in place of tokens, of ``n`` texts per prompt.

    Raises:
        BatchError, ContextFull: as `generate_many`.
    """
    sampling_params = _params(params, len(prompts))
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
    max_tokens = n_predict if n_predict >= 0 else share
    context.kv.clear()
    engine, numbers = Engine(context, speculation=speculation), dict[int, int]()
    waiting = enumerate(zip(prompts, sampling_params, strict=True))

    def submit(n: int) -> None:
        for i, (prompt, sampling) in itertools.islice(waiting, n):
            n_tokens = min(max_tokens, context.n_ctx_seq - len(prompt))
            request = Request(prompt, sampling, max_tokens=n_tokens, text=text, grammar=grammar)
            numbers[engine.submit(request)] = i

    submit(2 * context.kv.n_seq_max)  # keep the queue filled
    while engine.has_work:
        for event in engine.step():
            if event.error is not None:
                raise event.error
            yield numbers[event.request], event
            if event.kind == "end":
                submit(1)


def _after(n_past: int, processor: LogitsProcessor) -> LogitsProcessor:
    """The processor, called without the first ``n_past`` tokens."""

    def process(ids: Ids, logits: Floats) -> Floats:
        return processor(ids[n_past:], logits)

    process.__name__ = getattr(processor, "__name__", type(processor).__name__)
    return process


def _check_one_text(params: SamplingParams | None) -> None:
    if params is not None and params.n > 1:
        raise SamplingError(f"n is {params.n}: this generator returns one text; use Engine.run")


def _params(
    params: SamplingParams | Sequence[SamplingParams] | None, n: int
) -> Sequence[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * n
    if len(params) != n:
        raise BatchError(f"{len(params)} sampling parameters for {n} prompts")
    return params
