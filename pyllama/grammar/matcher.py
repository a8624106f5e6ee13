"""The state of one generation under a grammar: which tokens may come next.

    matcher = grammar.matcher(tokenizer)
    matcher.allows(token)       # about a microsecond
    matcher.mask()              # uint32[n_words]: a bit for each token, kept for each state
    matcher.accept(token)
    mark = matcher.mark()       # rollback(mark) undoes all tokens accepted since

End-of-generation tokens are allowed where the text may end; after one, only they are. Control
tokens are allowed only where the grammar names them, since their text is not shown. Bytes that are
not UTF-8 never match. Not thread-safe; different matchers may be used by different threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..errors import GrammarError
from ..tokenizer import Tokenizer
from .masks import Bits, Masks, State
from .trigger import Finder, Trigger
from .trigger import State as Found
from .vocabulary import TokenTexts


class Mark(NamedTuple):
    """A state to roll back to."""

    state: State
    ended: bool
    waiting: bool
    n_seen: int


class _Seen(NamedTuple):
    """A token before the trigger, and what the finders know after it."""

    token: int
    text: bytes
    found: list[Found]


class Matcher:
    """The state of one generation; made by `Grammar.matcher`.

    Args:
        masks: the states of the grammar.
        tokenizer: gives the tokens' texts.
        triggers: of a lazy grammar.
    """

    def __init__(
        self,
        masks: Masks,
        tokenizer: Tokenizer,
        triggers: Sequence[Trigger] = (),
    ) -> None:
        self._masks, self._tokenizer = masks, tokenizer
        self._start = self._state = masks.start
        self._ended, self._waiting = False, bool(triggers)
        # the last token that was looked at, and the state after it
        self._next_token: int | None = None
        self._next: State | None = None
        self._finders = [Finder(trigger) for trigger in triggers]
        self._seen: list[_Seen] = []  # tokens before the trigger
        self._text = bytearray()  # of these

    @property
    def vocabulary(self) -> TokenTexts:
        """The vocabulary of the tokens."""
        return self._masks.vocabulary

    @property
    def is_lazy(self) -> bool:
        """Whether the grammar has triggers."""
        return bool(self._finders)

    @property
    def is_active(self) -> bool:
        """Whether the grammar holds; False while a lazy one waits for a trigger."""
        return not self._waiting

    @property
    def is_accepting(self) -> bool:
        """Whether the text so far is one of the grammar's, so that it may end."""
        return self._waiting or self._ended or self._masks.is_accepting(self._state)

    def allows(self, token: int) -> bool:
        """Whether a token may come next.

        Raises:
            GrammarError: the grammar is too ambiguous.
        """
        return self._waiting or self._after(token) is not None

    def mask(self) -> Bits:
        """uint32[(n_vocab + 31) // 32]: a bit for each token that may come next; read-only.

        Raises:
            GrammarError: the grammar is too ambiguous.
        """
        vocabulary = self._masks.vocabulary
        if self._waiting:
            return vocabulary.bits(range(vocabulary.n_vocab))
        return vocabulary.eog_bits if self._ended else self._masks.allowed(self._state)

    def accept(self, token: int) -> None:
        """Add a generated token to the text.

        Raises:
            GrammarError: the token is not allowed, or the grammar is too ambiguous.
        """
        if self._waiting:
            self._wait(token)
            return
        after = self._after(token)
        if after is None:
            raise GrammarError(
                f"token {token} ({self._tokenizer.token_to_piece(token, special=True)!r}) does not "
                "match the grammar"
            )
        self._ended = after is self._state and token in self._tokenizer.eog
        self._state = after
        self._next_token = None

    def mark(self) -> Mark:
        """The present state, for `rollback`."""
        return Mark(self._state, self._ended, self._waiting, len(self._seen))

    def rollback(self, mark: object) -> None:
        """Restore the state at a mark; later marks become invalid."""
        assert isinstance(mark, Mark)
        self._state, self._ended, self._waiting, n_seen = mark
        self._next_token = None
        if n_seen < len(self._seen):
            self._cut(n_seen)

    def clone(self) -> Matcher:
        """An independent matcher in the same state."""
        copy = Matcher(self._masks, self._tokenizer)
        copy._start, copy._state = self._start, self._state
        copy._ended, copy._waiting, copy._finders = self._ended, self._waiting, self._finders
        copy._seen, copy._text = self._seen[:], self._text[:]
        return copy

    def reset(self) -> None:
        """Go back to the start of the text."""
        self.rollback(Mark(self._start, False, bool(self._finders), 0))

    def __deepcopy__(self, memo: dict[int, Any]) -> Matcher:
        return self.clone()

    def _after(self, token: int) -> State | None:
        """The state after a token, None if it is not allowed; the last answer is kept."""
        if token != self._next_token:
            masks = self._masks
            after = None if self._ended else masks.step(self._state, token)
            if after is None and token in self._tokenizer.eog and self.is_accepting:
                after = self._state
            self._next_token, self._next = token, after
        return self._next

    def _wait(self, token: int) -> None:
        """Look for a trigger at the end of the text; if there is one, match from there on."""
        piece = self._tokenizer.token_to_piece(token, special=True)
        n_before = len(self._text)
        before = self._seen[-1].found if self._seen else [f.start() for f in self._finders]
        self._text += piece
        found = [
            finder.find(known, self._text, n_before, token)
            for finder, known in zip(self._finders, before, strict=True)
        ]
        self._seen.append(_Seen(token, piece, [known for known, _ in found]))
        start = next((start for _, start in found if start >= 0), -1)
        if start < 0:
            return
        state: State | None = self._state
        at = 0
        for seen, text, _ in self._seen:
            end = at + len(text)
            # also a trigger token without a text
            if state is not None and (end > start or (seen == token and at == n_before)):
                state = self._masks.step_text(state, seen, text[max(0, start - at) :])
            at = end
        if state is None:
            shown = bytes(self._text[start:]).decode("utf-8", "replace")
            self._cut(len(self._seen) - 1)
            raise GrammarError(f"the grammar does not match the text after its trigger: {shown!r}")
        self._state, self._waiting, self._next_token = state, False, None

    def _cut(self, n_seen: int) -> None:
        n_bytes = sum(len(seen.text) for seen in self._seen[n_seen:])
        del self._text[len(self._text) - n_bytes :]
        del self._seen[n_seen:]
