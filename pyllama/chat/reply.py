"""Generates one reply of the model to the tokens of a dialogue.

    reply = Reply(ReplyOptions(params, stop=("User:",)))
    for text in reply.stream(lease, tokens): print(text, end="")
    reply.text, reply.tokens, reply.ended

The common prefix with the sequence is reused. A stream may be abandoned or closed at any point; the
reply then holds the text so far. Not thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ..engine import EndReason, Lease, Request
from ..engine.request import check_prompt
from ..grammar import Grammar
from ..sampling import SamplingParams

Ended = EndReason | Literal["", "full"]


@dataclass(frozen=True)
class ReplyOptions:
    """Options of replies.

    Args:
        params: sampling parameters. With ``include_stop_str_in_output`` the text includes the
            whole token that completes a stop string, as ``tokens`` do.
        n_predict: maximum number of tokens; negative until the context is full.
        stop: stop strings.
        special: include the text of special tokens.
        n_keep: leading tokens that a context shift keeps when it removes half of the others; None
            ends the reply when the context is full.
        grammar: what each reply must match.
    """

    params: SamplingParams
    n_predict: int = -1
    stop: tuple[str, ...] = ()
    special: bool = False
    n_keep: int | None = None
    grammar: Grammar | None = None


@dataclass
class Reply:
    """A complete or partial reply.

    Attributes:
        text, tokens: the reply without the end-of-generation token; of an abandoned reply only
            the part that was yielded.
        ids: tokens of dialogue and reply, without those removed by context shifts.
        ended: reason of the end: end-of-generation token, stop string, number of tokens or full
            context; empty while generating, or if abandoned.
        drafted: whether the piece yielded last is of a drafted token.
    """

    options: ReplyOptions
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    ended: Ended = ""
    drafted: bool = False
    ids: list[int] = field(default_factory=list)
    _ends: list[int] = field(default_factory=list, repr=False)  # of each token, in characters

    @property
    def rest(self) -> str:
        """The yielded part of the last token's text, if the rest was not; not in ``tokens``."""
        return self.text[self._ends[-1] if self._ends else 0 :] if not self.ended else ""

    def stream(
        self,
        lease: Lease,
        tokens: Sequence[int],
        stop: Sequence[str] = (),
        n_last: int = 0,
        shown: frozenset[int] = frozenset(),
    ) -> Iterator[str]:
        """Generate the reply.

        Args:
            tokens: the dialogue.
            stop: further stop strings.
            n_last: number of last tokens, the user's message, that a context shift before the
                reply must keep.
            shown: special tokens whose text is included in any case.

        Yields:
            Pieces of whole characters.

        Raises:
            ContextFull, BatchError: at the first step; there is no room for a reply.
            Aborted: the decode was stopped.
        """
        try:
            self.ids = list(tokens)
            self._fit(lease, self.ids, n_last)
            for piece in self._pieces(lease, self.ids, tuple(stop), shown):
                if piece:
                    self.text += piece
                    yield piece
        finally:
            while not self.ended and self._ends and self._ends[-1] > len(self.text):
                self._ends.pop()
                self.tokens.pop()
                self.ids.pop()

    def _fit(self, lease: Lease, ids: list[int], n_last: int) -> None:
        """Make room for a reply by a context shift, or raise if there is none."""
        n_ctx, n_keep = lease.context.n_ctx_seq, self.options.n_keep
        if n_keep is None or not ids:
            check_prompt(len(ids), 0, n_ctx, min_room=1)
        elif n_last and len(ids) > n_ctx:
            check_prompt(n_last, min(n_keep, len(ids) - n_last), n_ctx, min_room=1)
            lease.make_room(ids, n_keep, n_last)

    def _pieces(
        self, lease: Lease, ids: list[int], stop: tuple[str, ...], shown: frozenset[int]
    ) -> Iterator[str]:
        options = self.options
        request = Request(
            ids,
            options.params,
            max_tokens=options.n_predict if options.n_predict >= 0 else None,
            stop=(*options.stop, *stop),
            special=options.special or shown,
            n_keep=options.n_keep,
            grammar=options.grammar,
        )
        is_eog = lease.context.model.tokenizer.is_eog
        for event in lease.run(request):
            self.drafted = event.drafted
            if event.kind == "shift":
                first, n = event.removed
                del ids[first : first + n]
            elif event.kind == "end":
                full = event.reason == "length" and len(self.tokens) != options.n_predict
                self.ended = "full" if full else event.reason or ""
                yield event.text if event.reason == "length" else ""
            elif event.tokens and is_eog(event.tokens[0]):
                self.ended = "eog"
                yield event.text
            elif event.tokens:
                self.tokens += event.tokens
                ids += event.tokens
                text = event.text
                if options.params.include_stop_str_in_output:
                    text += event.rest
                self._ends.append(len(self.text) + len(text) + event.n_held)
                yield text
