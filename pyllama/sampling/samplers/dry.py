"""DRY, "don't repeat yourself": a penalty for tokens that would continue a repetition.

    SamplingParams(dry_multiplier=0.8)
    SamplingParams(dry_multiplier=0.8, dry_sequence_breakers=("\\n", (13,)))     # or ids

    a b c c b c y a b c          "a b c" was followed by c, "b c" by y, and "c" by b and c:
    ----- ^       -----          c would repeat 3 tokens, y 2, b 1

A token that would continue n tokens loses ``multiplier * base ** (n - allowed_length)`` if n is at
least ``allowed_length``. Repetitions do not reach over a sequence breaker.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from pyggml.compiler.jit import jitted
from pyggml.compiler.pointers import i32_ptr
from pyllama.errors import SamplingError
from pyllama.parameters.sampling import SamplingParams
from pyllama.sampling.candidates import Candidates
from pyllama.sampling.sampler import ChainSetup, Sampler

if TYPE_CHECKING:
    from pyllama.tokenizer import Tokenizer

Ids = tuple[int, ...]
Rests = frozenset[Ids]
MAX_BREAKER_BYTES, MAX_REST = 40, 20
LOG_LARGEST = np.float32(88.7228391)  # of float32, to limit the exponent
NEARLY_ONE = 1.000001


class Breakers:
    """Where sequence breakers begin and how they go on, by token. Thread-safe; copies share it.

        breakers.rests(token)          # (frozenset({(), (5, 9)}),): breaks alone, or before 5 and 9

    A text begins in every token that contains it or ends with a part of it. That is found when a
    token first occurs, so the vocabulary is never walked: the cost is linear in the bytes of the
    breakers and in the distinct tokens of the text.

    Args:
        tokenizer: for breakers that are text.
        n_vocab: number of tokens.
        given: texts, or sequences of token ids.

    Attributes:
        alone: bool[n_vocab], whether a token that has occurred is a breaker by itself.
        longest: number of tokens after the first one of the longest breaker.

    Source: llama.cpp llama-sampler.cpp, `get_overlapping_token_sequences`.
    """

    def __init__(
        self, tokenizer: Tokenizer | None, n_vocab: int, given: Iterable[str | Ids]
    ) -> None:
        self._tokenizer = tokenizer
        self._texts: list[bytes] = []
        self._by_ids: dict[int, set[Ids]] = {}
        for breaker in given:
            if isinstance(breaker, str):
                if tokenizer is None:
                    raise SamplingError(
                        f"dry_sequence_breakers: {breaker!r} is text, which needs a tokenizer; "
                        "give token ids"
                    )
                self._texts.append(breaker.encode("utf-8", "replace")[:MAX_BREAKER_BYTES])
            elif breaker:
                self._by_ids.setdefault(breaker[0], set()).add(tuple(breaker[1:]))
        self._texts = sorted({text for text in self._texts if text})
        # beginnings of texts, and the tokens of the rest of each text that begins so
        self._begun: dict[bytes, dict[bytes, Ids]] = {}
        for text in self._texts:
            for n in range(1, len(text)):
                assert tokenizer is not None
                rest = tokenizer.encode(text[n:].decode("utf-8", "replace"), add_special=False)
                self._begun.setdefault(text[:n], {})[text] = tuple(rest[:MAX_REST])
        self._rests_of = {begun: frozenset(ids.values()) for begun, ids in self._begun.items()}
        self._known: dict[int, tuple[Rests, ...]] = {}
        self.alone = np.zeros(n_vocab, np.bool_)
        rests = [
            ids for found in (*self._by_ids.values(), *self._rests_of.values()) for ids in found
        ]
        self.longest = max(map(len, rests), default=0)

    def __deepcopy__(self, memo: object) -> Breakers:
        return self

    def rests(self, token: int) -> tuple[Rests, ...]:
        """The sequences of tokens of which one must follow this token to complete a breaker."""
        found = self._known.get(token)
        if found is None:
            found = tuple(self._find(token))
            if any(() in rests for rests in found):
                self.alone[token] = True
            self._known[token] = found
        return found

    def _find(self, token: int) -> Iterator[Rests]:
        if token in self._by_ids:
            yield frozenset(self._by_ids[token])
        if not self._texts:
            return
        assert self._tokenizer is not None
        piece = self._tokenizer.token_to_piece(token, special=True)
        if self._tokenizer.vocab.add_space_prefix:
            piece = piece.removeprefix(b" ")
        whole = {text for text in self._texts if text in piece}
        if whole:
            yield frozenset({()})
        for n in range(1, min(len(piece) + 1, MAX_BREAKER_BYTES)):
            begun = piece[-n:]
            if not whole.isdisjoint(self._begun.get(begun, ())):
                ids = self._begun[begun].items()
                yield frozenset(rest for text, rest in ids if text not in whole)
            elif begun in self._rests_of:
                yield self._rests_of[begun]


class Dry(Sampler):
    """Lowers the logits of tokens that continue a repetition in the last ``dry_penalty_last_n``.

    Source: https://github.com/oobabooga/text-generation-webui/pull/5677; llama.cpp,
    `llama_sampler_dry_apply`.
    """

    label = "dry"
    keeps_all = True

    def __init__(self, params: SamplingParams, breakers: Breakers) -> None:
        self._multiplier, self._base = np.float32(params.dry_multiplier), params.dry_base
        self._allowed, self._last_n = params.dry_allowed_length, params.dry_penalty_last_n
        self._breakers = breakers
        base = np.float32(self._base)
        limit = int(LOG_LARGEST / np.log(base)) if base > NEARLY_ONE else 0
        self._max_exponent = limit or math.inf
        self._tokens = array("i")  # the whole history, for `rollback`
        # first and last positions of breakers in the history; each begins later than the one
        # before it, or at the same token and is longer
        self._broken: list[tuple[int, int]] = []

    @classmethod
    def create(cls, setup: ChainSetup) -> Dry | None:
        p = setup.params
        if p.dry_multiplier == 0 or p.dry_base < 1 or p.dry_penalty_last_n == 0:
            return None
        given = tuple(p.dry_sequence_breakers)
        return cls(p, _breakers(setup.tokenizer, setup.n_vocab, given))

    def apply(self, candidates: Candidates) -> None:
        repeats, lengths = self._repeats()
        if not repeats.size:
            return
        logits, positions, found = candidates.edit(repeats.astype(np.intp))
        exponents = np.minimum(lengths[found] - self._allowed, self._max_exponent)
        base = np.float64(np.float32(self._base))
        logits[positions] -= (self._multiplier * base**exponents).astype(np.float32)

    def _repeats(self) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Tokens that would continue a repetition, and the length of the longest of each."""
        tokens = np.array(self._tokens[-self._last_n :], np.int32)[::-1].copy()  # the last first
        n = tokens.size
        found, limit, n_all = np.empty((2, n), np.int32), n, len(self._tokens)
        if self._broken and self._broken[-1][0] >= n_all - n:
            limit = n_all - 1 - self._broken[-1][1]  # tokens after the last breaker
        if n <= self._allowed or limit < self._allowed:
            return found[0, :0], np.empty(0, np.int64)
        lengths = np.zeros(n, np.int32)
        _repeat_lengths(tokens.ctypes.data, n, limit, lengths.ctypes.data)
        most = np.zeros(self._breakers.alone.size, np.int32)
        count = _longest_repeats(
            tokens.ctypes.data, lengths.ctypes.data, n, self._allowed, most.ctypes.data,
            found.ctypes.data,
        )  # fmt: skip
        ids, longest = found[0, :count], found[1, :count].astype(np.int64)
        kept = ~self._breakers.alone[ids]
        return ids[kept], longest[kept]

    def accept(self, token: int) -> None:
        tokens, breakers = self._tokens, self._breakers
        tokens.append(token)
        end = len(tokens) - 1
        last_begin = self._broken[-1][0] if self._broken else -1
        # an earlier begin changes nothing; at an equal one, this end is later
        for begin in range(end, max(last_begin, end - breakers.longest, 0) - 1, -1):
            rests = breakers.rests(tokens[begin])
            if rests:
                rest = tuple(tokens[begin + 1 :])
                if any(rest in some for some in rests):
                    self._broken.append((begin, end))
                    break

    def mark(self) -> int:
        return len(self._tokens)

    def rollback(self, mark: Any) -> None:
        del self._tokens[mark:]
        while self._broken and self._broken[-1][1] >= mark:
            self._broken.pop()


@jitted(types.void(*[types.int64] * 4), nogil=False)
def _repeat_lengths(tokens: Any, n: Any, limit: Any, lengths: Any) -> None:
    """For each position, how many tokens from there equal those from the beginning, up to a limit.

    The Z-algorithm: positions from ``left`` to ``right`` equal the beginning, so that the length at
    ``i - left`` is known there.
    """
    tokens, lengths, left, right = i32_ptr(tokens), i32_ptr(lengths), 0, 0
    for i in range(1, n):
        length = 0 if i > right else min(lengths[i - left], right - i + 1)
        if i + length > right:
            while i + length < n and tokens[length] == tokens[i + length]:
                length += 1
            left, right = i, i + length - 1
        lengths[i] = length
    for i in range(1, n):
        lengths[i] = min(lengths[i], limit)


@jitted(types.int64(*[types.int64] * 6), nogil=False)
def _longest_repeats(tokens: Any, lengths: Any, n: Any, allowed: Any, most: Any, found: Any) -> Any:
    """Write the tokens before positions with at least the allowed length, and each one's longest.

    Args:
        most: int32[n_vocab] of zeros.
        found: int32[2, n].

    Returns:
        The number of tokens.
    """
    tokens, lengths, most = i32_ptr(tokens), i32_ptr(lengths), i32_ptr(most)
    found, count = i32_ptr(found), 0
    for i in range(1, n):
        if lengths[i] >= allowed:
            token = tokens[i - 1]
            if most[token] == 0:
                found[count] = token
                count += 1
            most[token] = max(most[token], lengths[i] + 1)
    for i in range(count):
        found[n + i] = most[found[i]] - 1
    return np.int64(count)


@lru_cache(maxsize=8)
def _breakers(tokenizer: Tokenizer | None, n_vocab: int, given: tuple[str | Ids, ...]) -> Breakers:
    return Breakers(tokenizer, n_vocab, given)
