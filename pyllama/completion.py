"""Completions in OpenAI's form, as llama-cpp-python gives them: whole, or in chunks.

    run = CompletionRun(request, tokenizer, logits)
    run.result(token_ids)                          # {"choices": [{"text": ...}], "usage": ...}
    for chunk in run.chunks(token_ids): ...

The text ends at an end-of-generation token, a stop string or ``max_tokens``. Chunks hold whole
characters, and nothing that may yet become a stop string. A run serves for one completion.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from .sampling.top import top_positions
from .stopping import StopStrings
from .tokenizer import Tokenizer, TokenStream

Floats = npt.NDArray[np.float32]
Tokens = Generator[int, Sequence[int] | None, None]


class Logprobs(TypedDict):
    """Of each token: text, offset in characters, log-probability, and those of the likeliest."""

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
    """Numbers of tokens."""

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
    """What is to be completed, and how far.

    Args:
        prompt: the text, for ``echo`` and for offsets.
        prompt_tokens: its tokens.
        max_tokens: at least 1; must fit into the context.
        stop: texts that end it.
        echo: begin with the prompt.
        logprobs: likeliest tokens to report; None for no log-probabilities.
        model: name to report.
    """

    prompt: str
    prompt_tokens: list[int]
    max_tokens: int
    stop: str | Sequence[str] = ()
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
    """Makes the results of one request from its tokens.

    Args:
        request: what was asked for.
        tokenizer: of the model.
        prompt_logits: float32[n_prompt, n_vocab] after the first token, for ``echo`` with
            ``logprobs``.
        logits: float32[n_vocab] that the last token was chosen from.

    Raises:
        SamplingError: an empty stop string.
    """

    request: CompletionRequest
    tokenizer: Tokenizer
    logits: Callable[[], Floats]
    prompt_logits: Callable[[], Floats]
    n_tokens: int = 0
    id: str = field(default_factory=lambda: f"cmpl-{uuid.uuid4()}")
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        request = self.request
        self._stops = StopStrings(request.stop)
        self._book: _LogprobBook | None = None
        if request.logprobs is not None:
            offset = 0 if request.echo else len(request.prompt)
            self._book = _LogprobBook(self.tokenizer, request.logprobs, offset)

    def result(self, tokens: Tokens) -> Completion:
        """The whole completion."""
        pieces = list(self._pieces(tokens))
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

    def chunks(self, tokens: Tokens) -> Iterator[CompletionChunk]:
        """Pieces of text as they are made; the last one is empty and says why it ended."""
        return map(self._chunk, self._pieces(tokens))

    def _pieces(self, tokens: Tokens) -> Iterator[_Piece]:
        stream, stops, book = TokenStream(self.tokenizer), self._stops, self._book
        reason = "stop"  # also where the tokens end by themselves: a criterion stopped them
        to_echo = self.request.echo
        for token in tokens:
            if to_echo:
                yield self._echo()
                to_echo = False
            if self.tokenizer.is_eog(token):
                break
            self.n_tokens += 1
            if book is not None:
                book.add(token, self.logits())
            text, stopped = stops.push(stream.push(token))
            if text:
                yield _Piece(text, book.take() if book else None)
            if stopped:
                break
            if self.n_tokens >= self.request.max_tokens:
                reason = "length"
                break
        tokens.close()
        if to_echo:
            yield self._echo()
        # a character that is not finished is left out
        tail, rest = stops.flush(), book.take() if book else None
        if tail or (rest and rest["tokens"]):
            yield _Piece(tail, rest)
        yield _Piece("", None, reason)

    def _echo(self) -> _Piece:
        """The prompt, and how likely each of its tokens was after those before."""
        request, book = self.request, self._book
        if book is None:
            return _Piece(request.prompt)
        tokens = request.prompt_tokens
        begin = 1 if tokens[0] == self.tokenizer.bos else 0
        rows = self.prompt_logits()
        for i, token in enumerate(tokens[begin:], start=begin):
            # OpenAI's form has none for the first one
            book.add(token, rows[i - 1] if i > begin else None)
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
    """Log-probabilities of tokens since they were last taken."""

    def __init__(self, tokenizer: Tokenizer, n_top: int, offset: int) -> None:
        self._tokenizer, self._n_top, self._offset = tokenizer, n_top, offset
        self._stream = TokenStream(tokenizer)
        self._entries = _no_logprobs()

    def add(self, token: int, logits: Floats | None) -> None:
        """Note a token and the logits it was chosen from, None where there are none."""
        entries, text = self._entries, self._text(token)
        entries["tokens"].append(text)
        entries["text_offset"].append(self._offset)
        self._offset += len(self._stream.push(token))
        if logits is None:
            entries["token_logprobs"].append(None)
            entries["top_logprobs"].append(None)
            return
        logprobs = log_softmax(logits)
        likeliest = top_positions(logprobs, self._n_top).tolist() if self._n_top > 0 else []
        top = {self._text(i): float(logprobs[i]) for i in likeliest}
        top[text] = float(logprobs[token])
        entries["token_logprobs"].append(top[text])
        entries["top_logprobs"].append(top)

    def take(self) -> Logprobs:
        """What was noted since."""
        entries, self._entries = self._entries, _no_logprobs()
        return entries

    def _text(self, token: int) -> str:
        return self._tokenizer.token_to_piece(token).decode("utf-8", "ignore")


def log_softmax(logits: npt.ArrayLike, axis: int = -1) -> Floats:
    """Log-probabilities from logits.

    Source: llama-cpp-python, ``Llama.logits_to_logprobs``.
    """
    values = np.asarray(logits, np.float32)
    top = values.max(axis=axis, keepdims=True)
    shifted = values - np.where(np.isfinite(top), top, np.float32(0))
    with np.errstate(divide="ignore"):
        result: Floats = shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))
    return result


def _no_logprobs() -> Logprobs:
    return {"tokens": [], "text_offset": [], "token_logprobs": [], "top_logprobs": []}


def _extend(logprobs: Logprobs, more: Logprobs | None) -> None:
    if more is not None:
        logprobs["tokens"] += more["tokens"]
        logprobs["text_offset"] += more["text_offset"]
        logprobs["token_logprobs"] += more["token_logprobs"]
        logprobs["top_logprobs"] += more["top_logprobs"]
