"""One turn of the model's: from the tokens of a dialogue to text, piece by piece.

    reply = Reply(Settings(params, stop=("User:",)))
    for text in reply.stream(state, tokens): print(text, end="")
    reply.text, reply.tokens, reply.ended

Only the tokens that ``state`` does not hold are evaluated. A stream may be left or closed at any
point; the reply then holds what there is. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ..evaluated import Evaluated
from ..generate import check_prompt
from ..sampling import Chain, SamplingParams
from ..stopping import StopStrings
from ..tokenizer import TokenStream
from ..turns import Sampling, steps

Ended = Literal["", "eog", "stop", "length", "full"]


@dataclass(frozen=True)
class Settings:
    """How replies are made.

    Args:
        params: how tokens are chosen.
        n_predict: tokens at most; negative for as many as the context takes.
        stop: texts that end a reply.
        show_stop: keep the text that ended it; else it is not part of the reply.
        special: spell special tokens out.
        n_keep: first tokens of the dialogue that a full context keeps when it forgets half of the
            others (context shift); None ends the reply there.
    """

    params: SamplingParams
    n_predict: int = -1
    stop: tuple[str, ...] = ()
    show_stop: bool = False
    special: bool = False
    n_keep: int | None = None


@dataclass
class Reply:
    """A reply, as far as it is made.

    Attributes:
        text, tokens: what was made; the end-of-generation token is in neither. Where it was left,
            what had not been shown yet is in neither.
        ids: the tokens of the dialogue and the reply, as far as the context has not forgotten them.
        ended: by an end-of-generation token, a stop text, the number of tokens, a full context;
            empty while it is made, or where it was left.
    """

    settings: Settings
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    ended: Ended = ""
    ids: list[int] = field(default_factory=list)
    _ends: list[int] = field(default_factory=list, repr=False)  # of each token, in characters

    @property
    def rest(self) -> str:
        """Text of the last token, where only its beginning was shown; it is not in ``tokens``."""
        return self.text[self._ends[-1] if self._ends else 0 :] if not self.ended else ""

    def stream(
        self, state: Evaluated, tokens: Sequence[int], stop: Sequence[str] = (), n_last: int = 0
    ) -> Iterator[str]:
        """Make it; the text comes in whole characters.

        Args:
            stop: more texts that end it, never shown.
            n_last: last tokens, what is said in this turn, that a context shift must not forget
                before they are read.

        Raises:
            ContextFull, BatchError: at the first step; there is no room for a reply.
            Aborted: the decode was stopped.
        """
        try:
            self.ids = list(tokens)
            self._fit(state, self.ids, n_last)
            for piece in self._pieces(state, self.ids, tuple(stop)):
                if piece:
                    self.text += piece
                    yield piece
        finally:
            while not self.ended and self._ends and self._ends[-1] > len(self.text):
                self._ends.pop()
                self.tokens.pop()
                self.ids.pop()

    def _fit(self, state: Evaluated, ids: list[int], n_last: int) -> None:
        """Refuse tokens that leave no room, or forget some of those in the middle."""
        n_ctx, n_keep = state.context.n_ctx_seq, self.settings.n_keep
        if n_keep is None or not ids:
            check_prompt(len(ids), 0, n_ctx, min_room=1)
        elif n_last and len(ids) > n_ctx:
            check_prompt(n_last, min(n_keep, len(ids) - n_last), n_ctx, min_room=1)
            state.make_room(ids, n_keep, n_last)

    def _pieces(self, state: Evaluated, ids: list[int], stop: tuple[str, ...]) -> Iterator[str]:
        settings, model = self.settings, state.context.model
        decoder = TokenStream(model.tokenizer, settings.special)
        stops = StopStrings((*settings.stop, *stop))
        chain = Chain(settings.params, model.hparams.n_vocab, model.tokenizer.eog)
        if settings.n_predict == 0:
            self.ended = "length"
            return
        n_chars = 0
        for token in steps(state, ids, Sampling(chain, state.timings), settings.n_keep):
            if model.tokenizer.is_eog(token):
                self.ended = "eog"
                ids.pop()
                break
            self.tokens.append(token)
            piece = decoder.push(token)
            n_chars += len(piece)
            self._ends.append(n_chars + decoder.waits)
            text, stopped = stops.push(piece)
            yield text
            if stopped:
                self.ended = "stop"
                yield stops.matched or "" if settings.show_stop else ""
                return
            if len(self.tokens) == settings.n_predict:
                self.ended = "length"
                break
        self.ended = self.ended or "full"
        text, _ = stops.push(decoder.flush())
        yield text + stops.flush()
