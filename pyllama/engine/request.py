"""What is asked of an engine, and what it reports: requests, events, and its policy.

    Request(tokens, SamplingParams(seed=1), max_tokens=64, stop=("User:",))

Values only; an engine checks a request against its context when it is submitted.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import BatchError, ContextFull, PyllamaError
from ..sampling import LogitsProcessor, SamplingParams

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.intc]
StoppingCriteria = Callable[[Ids, Floats], bool]
EndReason = Literal["eog", "stop", "length", "abort", "deadline"]
Kind = Literal["progress", "tokens", "shift", "end", "error"]
MIN_ROOM = 4  # cells that a prompt must leave free, as in llama.cpp


class QueueFull(PyllamaError, RuntimeError):
    """As many requests wait as the policy allows."""


@dataclass(frozen=True, slots=True)
class Request:
    """Tokens to continue, how, and how far.

    Args:
        tokens: at least one.
        sampling: how tokens are chosen.
        n: how many texts; a fixed seed gives each a random stream of its own.
        max_tokens: of each text; None for as many as the context takes.
        stop: texts that end it.
        stop_ids: tokens that end it, besides the model's end-of-generation tokens.
        stop_at_eog: whether these end it.
        text: whether events have text; without it stop texts do not count.
        special: spell special tokens out.
        show_stop: the text has the token that completes a stop text too.
        drop_unfinished: leave an unfinished character at the end out, instead of U+FFFD for it.
        logprobs: likeliest tokens to report for each one; None for no log-probabilities.
        processors: called with all ids and a copy of the logits, return new ones.
        criteria: called with all ids and the logits after a token is chosen; True ends the text
            before that token.
        n_keep: when the context is full, half of what follows the first ``n_keep`` tokens makes
            room (context shift); None ends there.
        priority: higher ones are admitted first and preempted last.
        deadline_s: seconds after which it ends, counted from its submission.
        progress: report how far the prompt is evaluated.
    """

    tokens: Sequence[int]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    n: int = 1
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_ids: frozenset[int] = frozenset()
    stop_at_eog: bool = True
    text: bool = True
    special: bool = False
    show_stop: bool = False
    drop_unfinished: bool = False
    logprobs: int | None = None
    processors: tuple[LogitsProcessor, ...] = ()
    criteria: tuple[StoppingCriteria, ...] = ()
    n_keep: int | None = None
    priority: int = 0
    deadline_s: float | None = None
    progress: bool = False


class TokenLogprob(NamedTuple):
    """Log-probability of a token, and the likeliest tokens in its place."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


class Usage(NamedTuple):
    """Numbers of tokens.

    Attributes:
        n_prompt: of the prompt; n_cached: those of it that were not evaluated again.
        n_computed: tokens that the context holds now.
        n_generated: chosen so far, an end-of-generation token included.
    """

    n_prompt: int
    n_cached: int
    n_computed: int
    n_generated: int


class Event(NamedTuple):
    """What became of one text of a request.

    Attributes:
        request: the number that ``submit`` gave; choice: which of its ``n`` texts.
        kind: ``tokens`` were chosen; ``progress`` of the prompt; a ``shift`` took tokens out of
            the context; ``end``; an ``error`` of a callback, which is an end too.
        text: whole characters, and nothing that may yet become a stop text.
        n_held: characters that are held back after it, an unfinished one included.
        removed: index of the first token that a shift took out, and how many.
        reason: why it ended: by an end-of-generation token, a stop text, token or criterion, its
            length or that of the context, ``abort``, or its deadline.
        stop: the stop text or token that was found.
        error: what the callback raised.
    """

    request: int
    choice: int
    kind: Kind
    tokens: tuple[int, ...] = ()
    text: str = ""
    n_held: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()
    usage: Usage | None = None
    reason: EndReason | None = None
    stop: str | int | None = None
    removed: tuple[int, int] = (0, 0)
    error: Exception | None = None


Run = Generator[Event, Sequence[int] | None, None]


@dataclass(frozen=True, slots=True)
class Policy:
    """How an engine shares its context.

    Args:
        max_prompt_tokens: tokens of prompts in one step beside running texts, so that these do
            not wait long; without running texts a step takes a whole batch.
        max_waiting: requests that may wait; None for any number.
        n_reserve: free cells for tokens to come that a text must find to be admitted beside
            others, and that it is counted with as long as it runs.
        min_shared: tokens that a prompt must share with one that is being evaluated to wait for
            it, and take them from there.
    """

    max_prompt_tokens: int = 512
    max_waiting: int | None = None
    n_reserve: int = 64
    min_shared: int = 32


def check_prompt(n_prompt: int, n_past: int, n_ctx: int, min_room: int = MIN_ROOM) -> None:
    """Refuse a prompt that is empty or leaves too little room.

    Raises:
        ContextFull, BatchError: with the numbers, and the flag to use.
    """
    if not n_prompt:
        raise BatchError("there are no tokens to continue: begin with the BOS token, or a text")
    if n_past + n_prompt > n_ctx - min_room:
        held = f" after {n_past} others" if n_past else ""
        raise ContextFull(
            f"the prompt has {n_prompt} tokens{held}, a context of {n_ctx} takes "
            f"{max(0, n_ctx - min_room - n_past)}; "
            f"use `n_ctx={n_past + n_prompt + min_room}` or more, or a shorter prompt"
        )
