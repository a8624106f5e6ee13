"""Completions in OpenAI's format, whole or in chunks, as by llama-cpp-python.

    run = CompletionRun(request, tokenizer, prompt_logits)
    run.result(engine.run(...))                    # {"choices": [{"text": ...}], "usage": ...}
    for chunk in run.chunks(engine.run(...)): ...

A `CompletionRun` makes one completion.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypedDict

from ..engine import Event, TokenLogprob
from ..engine.logprobs import token_logprob
from ..engine.request import Floats
from ..tokenizer import Tokenizer, TokenStream


class Logprobs(TypedDict):
    """Text, character offset, log-probability and likeliest alternatives of each token."""

    tokens: list[str]
    text_offset: list[int]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]


class Choice(TypedDict):
    """One text; ``finish_reason`` is None in all chunks but the last."""

    text: str
    index: int
    logprobs: Logprobs | None
    finish_reason: str | None


class Usage(TypedDict):
    """Token counts."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionChunk(TypedDict):
    """A piece of a completion."""

    id: str
    object: str
    created: int
    model: str
    choices: list[Choice]


class Completion(CompletionChunk):
    """A whole completion."""

    usage: Usage


@dataclass(frozen=True)
class CompletionRequest:
    """The format of a completion's results.

    Args:
        prompt: text of the prompt, for ``echo`` and offsets.
        prompt_tokens: tokens of the prompt.
        echo: whether the text begins with the prompt.
        logprobs: number of likeliest tokens to report; None for no log-probabilities.
        model: name to report.
    """

    prompt: str
    prompt_tokens: list[int]
    echo: bool = False
    logprobs: int | None = None
    model: str = ""


@dataclass
class _Piece:
    text: str
    logprobs: Logprobs | None = None
    finish_reason: str | None = None


@dataclass
class CompletionRun:
    """Makes the results of one request from its events.

    Args:
        request: the format of the results.
        tokenizer: of the model.
        prompt_logits: called after the first token; returns float32[n_prompt, n_vocab] for
            ``echo`` with ``logprobs``.
    """

    request: CompletionRequest
    tokenizer: Tokenizer
    prompt_logits: Callable[[], Floats]
    n_tokens: int = 0
    id: str = field(default_factory=lambda: f"cmpl-{uuid.uuid4()}")
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        request = self.request
        self._book: _LogprobBook | None = None
        if request.logprobs is not None:
            offset = 0 if request.echo else len(request.prompt)
            self._book = _LogprobBook(self.tokenizer, offset)

    def result(self, events: Iterable[Event]) -> Completion:
        """The whole completion."""
        pieces = list(self._pieces(events))
        logprobs: Logprobs | None = None
        if self.request.logprobs is not None:
            logprobs = _no_logprobs()
            for piece in pieces:
                _extend(logprobs, piece.logprobs)
        text = "".join(piece.text for piece in pieces)
        whole: Any = self._chunk(_Piece(text, logprobs, pieces[-1].finish_reason))
        n_prompt = len(self.request.prompt_tokens)
        whole["usage"] = {
            "prompt_tokens": n_prompt,
            "completion_tokens": self.n_tokens,
            "total_tokens": n_prompt + self.n_tokens,
        }
        result: Completion = whole
        return result

    def chunks(self, events: Iterable[Event]) -> Iterator[CompletionChunk]:
        """Chunks of text as they are generated; the last one is empty and has the finish reason."""
        return map(self._chunk, self._pieces(events))

    def _pieces(self, events: Iterable[Event]) -> Iterator[_Piece]:
        book, to_echo = self._book, self.request.echo
        reason, tail = "stop", ""
        for event in events:
            if to_echo and event.kind in ("tokens", "end"):
                yield self._echo()
                to_echo = False
            if event.kind == "end":
                reason = "length" if event.reason == "length" else "stop"
                tail += event.text if event.reason != "eog" else ""
            elif event.tokens and self.tokenizer.is_eog(event.tokens[0]):
                tail = event.text
            elif event.tokens:
                self.n_tokens += 1
                for entry in event.logprobs:
                    if book is not None:
                        book.add(entry.token, entry)
                if event.text:
                    yield _Piece(event.text, book.take() if book else None)
        rest = book.take() if book else None
        if tail or (rest and rest["tokens"]):
            yield _Piece(tail, rest)
        yield _Piece("", None, reason)

    def _echo(self) -> _Piece:
        """The prompt, with the log-probabilities of its tokens."""
        request, book = self.request, self._book
        if book is None:
            return _Piece(request.prompt)
        tokens = request.prompt_tokens
        begin = 1 if tokens[0] == self.tokenizer.bos else 0
        rows = self.prompt_logits()
        for i, token in enumerate(tokens[begin:], start=begin):
            # OpenAI's format has none for the first token
            found = token_logprob(rows[i - 1], token, request.logprobs or 0) if i > begin else None
            book.add(token, found)
        return _Piece(request.prompt, book.take())

    def _chunk(self, piece: _Piece) -> CompletionChunk:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.request.model,
            "choices": [
                {
                    "text": piece.text,
                    "index": 0,
                    "logprobs": piece.logprobs,
                    "finish_reason": piece.finish_reason,
                }
            ],
        }


class _LogprobBook:
    """Collects the log-probabilities of tokens until `take`."""

    def __init__(self, tokenizer: Tokenizer, offset: int) -> None:
        self._tokenizer, self._offset = tokenizer, offset
        self._stream = TokenStream(tokenizer)
        self._entries = _no_logprobs()

    def add(self, token: int, found: TokenLogprob | None) -> None:
        """Add a token and its log-probability, None if there is none."""
        entries, text = self._entries, self._text(token)
        entries["tokens"].append(text)
        entries["text_offset"].append(self._offset)
        self._offset += len(self._stream.push(token))
        if found is None:
            entries["token_logprobs"].append(None)
            entries["top_logprobs"].append(None)
            return
        top = {self._text(i): logprob for i, logprob in found.top}
        top[text] = found.logprob
        entries["token_logprobs"].append(top[text])
        entries["top_logprobs"].append(top)

    def take(self) -> Logprobs:
        """Return and remove the collected entries."""
        entries, self._entries = self._entries, _no_logprobs()
        return entries

    def _text(self, token: int) -> str:
        return self._tokenizer.token_to_piece(token).decode("utf-8", "ignore")


def _no_logprobs() -> Logprobs:
    return {"tokens": [], "text_offset": [], "token_logprobs": [], "top_logprobs": []}


def _extend(logprobs: Logprobs, more: Logprobs | None) -> None:
    if more is not None:
        logprobs["tokens"] += more["tokens"]
        logprobs["text_offset"] += more["text_offset"]
        logprobs["token_logprobs"] += more["token_logprobs"]
        logprobs["top_logprobs"] += more["top_logprobs"]
