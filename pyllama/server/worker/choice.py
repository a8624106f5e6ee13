"""One text that is generated: its counts, timings and probabilities, from the engine's events.

    text = Choice(options, tokenizer, 0, prompt)
    pieces = text.take(event, now)                 # what the event adds
    text.timings(); text.stop_type

The event loop's thread alone uses it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...engine import Event, TokenLogprob
from ...engine.logprobs import log_softmax
from ...errors import SamplingError
from ...sampling.candidates import Candidates
from ...tokenizer import Tokenizer
from ..request.errors import ApiError, error_of
from ..request.request_options import CompletionOptions

_LOWEST = -3.4028234663852886e38  # float32's minimum stands for -inf, which JSON lacks


@dataclass(slots=True)
class Piece:
    """What events add to a text.

    Attributes:
        text: whole characters.
        tokens: token ids.
        probs: log-probabilities, or probabilities after sampling.
        progress: report of the prompt's progress, None without.
        is_last: whether the text has ended.
        n_generated: tokens of the text up to here.
        timings: those up to here, if each chunk has them.
    """

    text: str = ""
    tokens: tuple[int, ...] = ()
    probs: tuple[TokenLogprob, ...] = ()
    progress: dict[str, Any] | None = None
    is_last: bool = False
    n_generated: int = 0
    timings: dict[str, Any] | None = None

    @property
    def reports(self) -> dict[str, Any]:
        """The fields ``timings`` and ``prompt_progress`` of a chunk, if it has them."""
        fields = {"timings": self.timings, "prompt_progress": self.progress}
        return {name: value for name, value in fields.items() if value}


class Recorder:
    """A sampler that changes nothing and keeps the likeliest candidates, as the last of a chain.

    Args:
        n: number of candidates to keep.
    """

    def __init__(self, n: int) -> None:
        self._n = n
        self._ids: npt.NDArray[np.integer[Any]] = np.empty(0, np.intp)
        self._probs: npt.NDArray[np.float64] = np.empty(0)

    def __call__(self, candidates: Candidates) -> None:
        """Keep the candidates with their probabilities."""
        probs = np.exp(log_softmax(candidates.logits).astype(np.float64))
        order = np.argsort(-probs, kind="stable")
        self._ids, self._probs = np.asarray(candidates.ids)[order].copy(), probs[order]

    def of(self, token: int) -> TokenLogprob:
        """The sampled token's probability and the likeliest candidates, none of probability 0."""
        found = np.flatnonzero(self._ids == token)
        prob = float(self._probs[found[0]]) if found.size else 1.0
        pairs = zip(self._ids[: self._n].tolist(), self._probs[: self._n].tolist(), strict=True)
        return TokenLogprob(token, prob, tuple(pair for pair in pairs if pair[1] > 0))


class Choice:
    """The state of one text.

    Args:
        options: of its request.
        tokenizer: of the model.
        index: its number in the response.
        prompt: its tokens.
        recorder: keeps probabilities after sampling, if the request wants them.

    Attributes:
        content, tokens, probs: what was generated, collected unless it is streamed.
        slot: the slot it runs in, -1 before.
        stop_type: reason of its end in llama.cpp's words: ``none``, ``eos``, ``word``, ``limit``.
        error: why it failed.
    """

    def __init__(
        self, options: CompletionOptions, tokenizer: Tokenizer, index: int, prompt: list[int],
        recorder: Recorder | None = None,
    ) -> None:  # fmt: skip
        self.options, self.index, self.prompt = options, index, prompt
        self._tokenizer, self._recorder = tokenizer, recorder
        self.n_prompt = len(prompt)
        self.slot, self.n_cached, self.n_evaluated, self.n_generated = -1, 0, 0, 0
        self.n_drafted = self.n_accepted = self.n_removed = 0
        self.content = ""
        self.tokens: list[int] = []
        self.probs: list[TokenLogprob] = []
        self.stop_type, self.stopping_word = "none", ""
        self.has_new_line = self.is_truncated = self.is_done = False
        self.error: ApiError | None = None
        self.queued_s = self._begun_s = self._first_s = self._last_s = 0.0
        self._wants_progress = options.stream and options.return_progress
        self._is_empty = options.n_predict == 0  # one token is generated, and not reported

    def stamp(self, event: Event) -> Event:
        """A token's event with probabilities after sampling; called by the thread that steps."""
        if self._recorder is None:
            return event
        return event._replace(logprobs=(self._recorder.of(event.tokens[0]),))

    def take(self, event: Event, now: float) -> tuple[Piece, ...]:
        """Add an event that occurred at ``now``; returns what is to be sent for it."""
        before: tuple[Piece, ...] = ()
        if self._wants_progress and event.kind == "tokens" and not self.n_generated:
            self._last_s, self.n_evaluated = now, self.n_prompt
            before = (self._stamped(Piece(progress=self._progress())),)
        piece = self._take(event, now)
        return before if piece is None else (*before, self._stamped(piece))

    def _stamped(self, piece: Piece) -> Piece:
        """A piece with the counts up to here."""
        piece.n_generated = self.n_generated
        if self.options.timings_per_token:
            piece.timings = self.timings()
        return piece

    def _take(self, event: Event, now: float) -> Piece | None:
        kind = event.kind
        if kind == "tokens":
            return self._take_token(event, now)
        if kind == "progress":
            return self._take_progress(event, now)
        if kind == "shift":
            self.is_truncated = True
            self.n_removed += event.removed[1]
        elif kind == "end":
            return self._take_end(event, now)
        elif kind == "error":
            self.is_done = True
            self.error = error_of(event.error or SamplingError("the text failed"))
            return Piece(is_last=True)
        return None

    def _take_progress(self, event: Event, now: float) -> Piece | None:
        usage = event.usage
        assert usage is not None
        if not self._begun_s:
            self._begun_s = now
            self.n_cached = self.n_evaluated = usage.n_cached
        elif not self.n_generated:
            self.n_evaluated = usage.n_computed
        self.slot = usage.seq_id
        self._last_s = now
        if not self._wants_progress or self.n_generated:
            return None
        return Piece(progress=self._progress())

    def _progress(self) -> dict[str, Any]:
        return {
            "total": self.n_prompt,
            "cache": self.n_cached,
            "processed": self.n_evaluated,
            "time_ms": 1e3 * (self._last_s - self._begun_s),
        }

    def _take_token(self, event: Event, now: float) -> Piece | None:
        self.n_generated += 1
        self._last_s = now
        if self.n_generated == 1:
            self._first_s = now
            self.n_evaluated = self.n_prompt
        self.n_drafted = event.n_drafted
        self.n_accepted += event.drafted
        if self._is_empty:
            return None
        text, tokens, probs = event.text, event.tokens, event.logprobs
        if not self.has_new_line and "\n" in text:
            self.has_new_line = True
        self._keep(text, tokens, probs)
        return Piece(text, tokens, probs)

    def _keep(self, text: str, tokens: tuple[int, ...], probs: tuple[TokenLogprob, ...]) -> None:
        options = self.options
        if not options.stream or options.verbose:
            self.content += text
        if options.return_tokens or not options.stream:
            self.tokens += tokens
        if probs and not options.stream:
            self.probs += probs

    def _take_end(self, event: Event, now: float) -> Piece:
        self.is_done, reason = True, event.reason
        text = "" if reason == "eog" or self._is_empty else event.text
        if text:
            self._keep(text, (), ())
        self.content = self.content[: len(self.content) - event.n_cut]
        usage = event.usage
        if usage is not None and not self._begun_s:  # it ended while it waited
            self._begun_s = self._first_s = self._last_s = now
        if reason == "eog":
            self.stop_type = "eos"
        elif reason == "stop":
            self.stop_type = "word"
            if isinstance(event.stop, str):
                self.stopping_word = event.stop
        else:
            self.stop_type = "limit"
            if reason == "length" and self.n_generated != self.options.n_predict:
                self.is_truncated = not self._is_empty
        if self._is_empty:
            self.n_generated = 0
        return Piece(text, is_last=True)

    @property
    def n_held(self) -> int:
        """Number of tokens in the cache."""
        return self.n_evaluated + max(0, self.n_generated - 1) - self.n_removed

    @property
    def predict_ms(self) -> float:
        """Time since the first token."""
        return 1e3 * (self._last_s - self._first_s) if self.n_generated else 0.0

    @property
    def prompt_ms(self) -> float:
        """Time of the prompt's evaluation so far."""
        end = self._first_s if self.n_generated else self._last_s
        return 1e3 * max(0.0, end - self._begun_s)

    @property
    def n_prompt_evaluated(self) -> int:
        """Tokens of the prompt that were not in the cache, of those evaluated so far."""
        return self.n_evaluated - self.n_cached

    @property
    def first_token_s(self) -> float:
        """Time from the submission to the first token."""
        return max(0.0, self._first_s - self.queued_s)

    def timings(self) -> dict[str, Any]:
        """The object ``timings``. Rates of texts are per step: the first token costs none.

        Source: llama.cpp, ``server_slot_stats::to_json``.
        """
        n_prompt, prompt_ms = self.n_prompt_evaluated, self.prompt_ms
        n_steps, predict_ms = max(0, self.n_generated - 1), self.predict_ms
        found = {
            "cache_n": self.n_cached,
            "prompt_n": n_prompt,
            "prompt_ms": prompt_ms,
            "prompt_per_token_ms": prompt_ms / n_prompt if n_prompt else 0.0,
            "prompt_per_second": 1e3 * n_prompt / prompt_ms if prompt_ms else 0.0,
            "predicted_n": self.n_generated,
            "predicted_ms": predict_ms,
            "predicted_per_token_ms": predict_ms / n_steps if n_steps else 0.0,
            "predicted_per_second": 1e3 * n_steps / predict_ms if predict_ms else 0.0,
        }
        if self.n_drafted:
            found |= {"draft_n": self.n_drafted, "draft_n_accepted": self.n_accepted}
        return found

    def probabilities(self, probs: tuple[TokenLogprob, ...] | list[TokenLogprob]) -> list[Any]:
        """Probabilities as llama.cpp writes them.

        Source: llama.cpp, ``completion_token_output::probs_vector_to_json``.
        """
        after = self.options.post_sampling_probs
        value, top = ("prob", "top_probs") if after else ("logprob", "top_logprobs")
        return [
            {
                **self._token(found.token),
                value: max(found.logprob, _LOWEST),
                top: [{**self._token(t), value: max(p, _LOWEST)} for t, p in found.top],
            }
            for found in probs
        ]

    def _token(self, token: int) -> dict[str, Any]:
        data = self._tokenizer.token_to_piece(token, True)
        return {"id": token, "token": data.decode("utf-8", "ignore"), "bytes": list(data)}
