"""Completions in OpenAI's format, whole or in chunks, as by llama-cpp-python.

    run = CompletionRun(request, tokenizer)
    run.result(engine.run(...))                    # {"choices": [{"text": ...}], "usage": ...}
    for chunk in run.chunks(engine.run(...)): ...

A `CompletionRun` makes one completion.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ..engine import Event, TokenLogprob
from ..tokenizer import Tokenizer, TokenStream

if TYPE_CHECKING:
    from .types import Completion, CompletionChunk, CompletionLogprobs


@dataclass(frozen=True)
class CompletionRequest:
    """The format of a completion's results.

    Args:
        prompt: text of the prompt, for ``echo`` and offsets.
        prompt_tokens: tokens of the prompt.
        echo: whether the text begins with the prompt.
        logprobs: number of likeliest tokens to report; None for no log-probabilities.
        model: name to report.
        suffix: appended to whole texts.
    """

    prompt: str
    prompt_tokens: list[int]
    echo: bool = False
    logprobs: int | None = None
    model: str = ""
    suffix: str = ""


@dataclass
class _Piece:
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: Literal["stop", "length"] | None = None


@dataclass
class CompletionRun:
    """Makes the results of one request from its events.

    Args:
        request: the format of the results.
        tokenizer: of the model.
    """

    request: CompletionRequest
    tokenizer: Tokenizer
    id: str = field(default_factory=lambda: f"cmpl-{uuid.uuid4()}")
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        self._texts: dict[int, _Completion] = {}
        self._prompt: Sequence[TokenLogprob | None] = ()

    def result(self, events: Iterable[Event]) -> Completion:
        """The whole completion."""
        pieces = list(self._pieces(events))
        choices = []
        for i in sorted(self._texts):
            own_pieces = [piece for piece in pieces if piece.index == i]
            logprobs: CompletionLogprobs | None = None
            if self.request.logprobs is not None:
                logprobs = _no_logprobs()
                for piece in own_pieces:
                    _extend(logprobs, piece.logprobs)
            text = "".join(piece.text for piece in own_pieces) + self.request.suffix
            choices.append(_Piece(i, text, logprobs, own_pieces[-1].finish_reason))
        n_prompt = len(self.request.prompt_tokens)
        n_tokens = sum(text.n_tokens for text in self._texts.values())
        whole: Any = self._chunk(*choices)
        whole["usage"] = {
            "prompt_tokens": n_prompt,
            "completion_tokens": n_tokens,
            "total_tokens": n_prompt + n_tokens,
        }
        result: Completion = whole
        return result

    def chunks(self, events: Iterable[Event]) -> Iterator[CompletionChunk]:
        """Chunks of texts as they are generated; each text's last is empty and has the reason."""
        return map(self._chunk, self._pieces(events))

    def _pieces(self, events: Iterable[Event]) -> Iterator[_Piece]:
        for event in events:
            if event.kind == "prompt":
                self._prompt = event.prompt_logprobs
            elif event.kind in ("tokens", "end"):
                if event.choice not in self._texts:
                    text = _Completion(event.choice, self.request, self.tokenizer)
                    self._texts[event.choice] = text
                    yield from text.echo(self._prompt)
                yield from self._texts[event.choice].pieces(event)

    def _chunk(self, *pieces: _Piece) -> CompletionChunk:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.request.model,
            "choices": [
                {
                    "text": piece.text,
                    "index": piece.index,
                    "logprobs": piece.logprobs,
                    "finish_reason": piece.finish_reason,
                }
                for piece in pieces
            ],
        }


class _Completion:
    """One text of a completion."""

    def __init__(self, index: int, request: CompletionRequest, tokenizer: Tokenizer) -> None:
        self._index, self._request, self._tokenizer = index, request, tokenizer
        self._book: _LogprobBook | None = None
        if request.logprobs is not None:
            self._book = _LogprobBook(tokenizer, 0 if request.echo else len(request.prompt))
        self._tail = ""
        self.n_tokens = 0

    def echo(self, prompt: Sequence[TokenLogprob | None]) -> Iterator[_Piece]:
        """The prompt with the log-probabilities of its tokens, if requested."""
        request, book = self._request, self._book
        if not request.echo:
            return
        if book is None:
            yield _Piece(self._index, request.prompt)
            return
        tokens = request.prompt_tokens
        begin = 1 if tokens[0] == self._tokenizer.bos else 0
        for i, token in enumerate(tokens[begin:], start=begin):
            # OpenAI's format has none for the first token
            book.add(token, prompt[i] if i > begin else None)
        yield _Piece(self._index, request.prompt, book.take())

    def pieces(self, event: Event) -> Iterator[_Piece]:
        """The pieces that an event of the text completes."""
        book, i = self._book, self._index
        if event.kind == "end":
            self._tail += event.text if event.reason != "eog" else ""
            rest = book.take() if book else None
            if self._tail or (rest and rest["tokens"]):
                yield _Piece(i, self._tail, rest)
            yield _Piece(i, "", None, "length" if event.reason == "length" else "stop")
        elif self._tokenizer.is_eog(event.tokens[0]):
            self._tail = event.text
        else:
            self.n_tokens += 1
            for entry in event.logprobs:
                if book is not None:
                    book.add(entry.token, entry)
            if event.text:
                yield _Piece(i, event.text, book.take() if book else None)


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

    def take(self) -> CompletionLogprobs:
        """Return and remove the collected entries."""
        entries, self._entries = self._entries, _no_logprobs()
        return entries

    def _text(self, token: int) -> str:
        return self._tokenizer.token_to_piece(token).decode("utf-8", "ignore")


def _no_logprobs() -> CompletionLogprobs:
    return {"tokens": [], "text_offset": [], "token_logprobs": [], "top_logprobs": []}


def _extend(logprobs: CompletionLogprobs, more: CompletionLogprobs | None) -> None:
    if more is not None:
        logprobs["tokens"] += more["tokens"]
        logprobs["text_offset"] += more["text_offset"]
        logprobs["token_logprobs"] += more["token_logprobs"]
        logprobs["top_logprobs"] += more["top_logprobs"]
