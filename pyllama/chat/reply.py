"""One turn of the model's: from the tokens of a dialogue to text, piece by piece.

    reply = Reply(Settings(params, stop=("User:",)))
    for text in reply.stream(lease, tokens): print(text, end="")
    reply.text, reply.tokens, reply.ended

Only the tokens that the sequence does not hold are evaluated. A stream may be left or closed at any
point; the reply then holds what there is. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ..engine import EndReason, Lease, Request
from ..engine.request import check_prompt
from ..sampling import SamplingParams

Ended = EndReason | Literal["", "full"]


@dataclass(frozen=True)
class Settings:
    """How replies are made.

    Args:
        params: how tokens are chosen.
        n_predict: tokens at most; negative for as many as the context takes.
        stop: texts that end a reply.
        show_stop: keep the token that completes a stop text; else the text ends before that.
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
        self, lease: Lease, tokens: Sequence[int], stop: Sequence[str] = (), n_last: int = 0
    ) -> Iterator[str]:
        """Make it; the text comes in whole characters.

        Args:
            stop: more texts that end it.
            n_last: last tokens, what is said in this turn, that a context shift must not forget
                before they are read.

        Raises:
            ContextFull, BatchError: at the first step; there is no room for a reply.
            Aborted: the decode was stopped.
        """
        try:
            self.ids = list(tokens)
            self._fit(lease, self.ids, n_last)
            for piece in self._pieces(lease, self.ids, tuple(stop)):
                if piece:
                    self.text += piece
                    yield piece
        finally:
            while not self.ended and self._ends and self._ends[-1] > len(self.text):
                self._ends.pop()
                self.tokens.pop()
                self.ids.pop()

    def _fit(self, lease: Lease, ids: list[int], n_last: int) -> None:
        """Refuse tokens that leave no room, or forget some of those in the middle."""
        n_ctx, n_keep = lease.context.n_ctx_seq, self.settings.n_keep
        if n_keep is None or not ids:
            check_prompt(len(ids), 0, n_ctx, min_room=1)
        elif n_last and len(ids) > n_ctx:
            check_prompt(n_last, min(n_keep, len(ids) - n_last), n_ctx, min_room=1)
            lease.make_room(ids, n_keep, n_last)

    def _pieces(self, lease: Lease, ids: list[int], stop: tuple[str, ...]) -> Iterator[str]:
        settings = self.settings
        request = Request(
            ids,
            settings.params,
            max_tokens=settings.n_predict if settings.n_predict >= 0 else None,
            stop=(*settings.stop, *stop),
            special=settings.special,
            show_stop=settings.show_stop,
            n_keep=settings.n_keep,
        )
        is_eog = lease.context.model.tokenizer.is_eog
        for event in lease.run(request):
            if event.kind == "shift":
                first, n = event.removed
                del ids[first : first + n]
            elif event.kind == "end":
                full = event.reason == "length" and len(self.tokens) != settings.n_predict
                self.ended = "full" if full else event.reason or ""
                yield event.text if event.reason == "length" else ""
            elif event.tokens and is_eog(event.tokens[0]):
                self.ended = "eog"
                yield event.text
            elif event.tokens:
                self.tokens += event.tokens
                ids += event.tokens
                self._ends.append(len(self.text) + len(event.text) + event.n_held)
                yield event.text
