"""Which tokens of a vocabulary a grammar allows in each of its states.

    masks = Masks.of(text, "root", automaton, tokenizer)
    state = masks.start
    state = masks.step(state, token)        # None if the token is not allowed
    masks.allowed(state)                    # uint32[n_words], a bit per token; cached

A mask is made by walking the vocabulary's prefix trees; a tree whose tokens are all allowed is
taken as a whole. States and masks are kept in bounded memory: when a table of states is full a new
one is started, and states of the old one are carried over when they are used. Thread-safe.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import ClassVar, NamedTuple, TypeVar
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from ..errors import GrammarError
from ..tokenizer import Tokenizer
from .automaton import Automaton
from .gbnf import Token, place, short
from .lazy_dfa import ADVANCE, DEAD, FREE, MAX_TABLE_BYTES, NO_MORE, WALK, Table, TableFull
from .vocabulary import TokenTexts

T = TypeVar("T")
Bits = NDArray[np.uint32]
MAX_MASK_BYTES = 32 << 20
_KEPT = 16  # grammars whose states are kept for a vocabulary
_lock_of_kept = threading.Lock()


class State(NamedTuple):
    """A state of a grammar in one table of states."""

    table: Table
    number: int


class Masks:
    """The states of a grammar and their masks, shared by all matchers of a vocabulary.

    Args:
        automaton: the grammar.
        tokenizer: finds the tokens that the grammar names by their text.
        max_table_bytes: limit of the memory for states.

    Raises:
        GrammarError: the vocabulary lacks a token that the grammar names.
    """

    _all: ClassVar[WeakSet[Masks]] = WeakSet()

    def __init__(
        self,
        automaton: Automaton,
        tokenizer: Tokenizer,
        max_table_bytes: int = MAX_TABLE_BYTES,
    ) -> None:
        self.vocabulary = vocabulary = TokenTexts.of(tokenizer)
        self._automaton, self._max_table_bytes = automaton, max_table_bytes
        self._symbols = [
            (_token_id(token, tokenizer, automaton.text), token.negated)
            for token in automaton.tokens
        ]
        self._with_text = vocabulary.bits(())
        for tree in vocabulary.trees:
            self._with_text |= tree.bits
        self._lock = threading.Lock()
        self._masks: dict[int, Bits] = {}
        self._table = self._new_table()
        Masks._all.add(self)

    @classmethod
    def of(cls, text: str, root: str, automaton: Automaton, tokenizer: Tokenizer) -> Masks:
        """The masks of a grammar; the last few grammars of a vocabulary are kept."""
        kept = TokenTexts.of(tokenizer).kept
        with _lock_of_kept:
            found: Masks | None = kept.get((text, root))
            if found is not None:
                kept.move_to_end((text, root))
                return found
        masks = cls(automaton, tokenizer)
        with _lock_of_kept:
            found = kept.setdefault((text, root), masks)
            while len(kept) > _KEPT:
                kept.popitem(last=False)
        return found

    @property
    def start(self) -> State:
        """The state of the empty text."""
        return State(self._table, self._table.start)

    def is_accepting(self, state: State) -> bool:
        """Whether the text so far is one of the grammar's."""
        return state.table.is_accepting(state.number)

    def advance(self, state: State, text: bytes) -> State | None:
        """The state after a text, None if the grammar does not allow it."""
        if not text:
            return state
        buffer = np.frombuffer(text, np.uint8)
        with self._lock:
            return self._advance(state, buffer.ctypes.data, buffer.size)

    def step(self, state: State, token: int) -> State | None:
        """The state after a token, None if the grammar does not allow it."""
        if not 0 <= token < self.vocabulary.n_vocab:
            return None
        address, length = self.vocabulary.span(token)
        with self._lock:
            after = self._advance(state, address, length) if length else None
            return self._after_named(state, token, after)

    def step_text(self, state: State, token: int, text: bytes) -> State | None:
        """As `step`, with another text instead of the token's own, or only the end of it."""
        after = self.advance(state, text) if text else None
        with self._lock:
            return self._after_named(state, token, after)

    def allowed(self, state: State) -> Bits:
        """uint32[n_words]: a bit for each token that may follow; read-only.

        End-of-generation tokens are allowed if the state is accepting.

        Raises:
            GrammarError: the grammar is too ambiguous.
        """
        with self._lock:
            if state.table is not self._table:
                state = self._renew(state)
            mask = self._masks.get(state.number)
            return self._with_room(state, self._mask) if mask is None else mask

    def _mask(self, state: State) -> Bits:
        table, number = state
        vocabulary = self.vocabulary
        accepting = table.is_accepting(number)
        mask = vocabulary.eog_bits.copy() if accepting else np.zeros(vocabulary.n_words, np.uint32)
        n_free = table.run(FREE, number)
        no_more = bool(n_free & NO_MORE)
        n_free &= NO_MORE - 1
        if no_more:
            mask |= vocabulary.plain_bits[n_free]
        for tree in vocabulary.trees:
            if no_more and tree.max_chars:
                continue
            if 0 < tree.max_chars <= n_free:
                mask |= tree.bits
            else:
                table.run(WALK, number, tree.nodes.ctypes.data, len(tree.nodes), mask.ctypes.data)
        if self._symbols and table.names_tokens(number):
            for symbol in table.symbols(number):
                token, negated = self._symbols[symbol]
                one = vocabulary.bits((token,))
                mask |= self._with_text & ~one if negated else one
        mask.flags.writeable = False
        if len(self._masks) >= max(1, MAX_MASK_BYTES // mask.nbytes):
            self._masks.clear()
        self._masks[number] = mask
        return mask

    def _advance(self, state: State, address: int, length: int) -> State | None:
        def advance(state: State) -> State | None:
            number = state.table.run(ADVANCE, state.number, address, length)
            return None if number == DEAD else State(state.table, number)

        return self._with_room(state, advance)

    def _after_named(self, state: State, token: int, after: State | None) -> State | None:
        """The state after a token, as text (``after``) and as a token that the grammar names."""
        if not (self._symbols and state.table.names_tokens(state.number)):
            return after
        with_text = bool(self._with_text[token >> 5] >> (token & 31) & 1)
        symbols = [
            symbol
            for symbol in state.table.symbols(state.number)
            for named, negated in [self._symbols[symbol]]
            if (token != named) == negated and (with_text or not negated)
        ]
        if not symbols:
            return after

        def follow(state: State) -> State:
            as_text = DEAD if after is None else self._in_table(state.table, after).number
            return State(state.table, state.table.after_token(state.number, symbols, as_text))

        return self._with_room(state, follow)

    def _with_room(self, state: State, work: Callable[[State], T]) -> T:
        """Call ``work`` with a state; again with it in another table, if its own is full."""
        try:
            return work(state)
        except TableFull:
            return work(self._renew(state))

    def _in_table(self, table: Table, state: State) -> State:
        """The state in a table. Raises: TableFull."""
        if state.table is table:
            return state
        return State(table, table.adopt(state.table, state.number))

    def _renew(self, state: State) -> State:
        """The state in the current table, or in a new one if that is full."""
        if state.table is not self._table:
            with suppress(TableFull):
                return self._in_table(self._table, state)
        self._table, self._masks = self._new_table(), {}
        return self._in_table(self._table, state)

    def _new_table(self) -> Table:
        return Table(self._automaton, self.vocabulary.max_length, self._max_table_bytes)

    def _restart(self) -> None:
        """Forget what another thread may have been changing when this process was forked."""
        if self._lock.locked():
            self._table, self._masks = self._new_table(), {}
        self._lock = threading.Lock()


def _token_id(named: Token, tokenizer: Tokenizer, text: str) -> int:
    token = named.token
    if isinstance(token, int):
        if token >= tokenizer.n_vocab:
            raise GrammarError(
                f"{place(text, named.at)}: the grammar names token <[{token}]>, the vocabulary has "
                f"{tokenizer.n_vocab} tokens"
            )
        return token
    ids = tokenizer.encode(token, add_special=False, parse_special=True)
    if len(ids) != 1:
        raise GrammarError(
            f"{place(text, named.at)}: the grammar names the token {short(token)}, but the "
            "vocabulary has none with this text; write it as a text in quotes, or use its id, as "
            "in <[42]>"
        )
    return ids[0]


def _after_fork() -> None:
    for masks in list(Masks._all):
        masks._restart()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
