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
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from pyggml.jit import compiled
from pyggml.pointers import i32_ptr
from pyllama.errors import SamplingError
from pyllama.sampling.candidates import Candidates
from pyllama.sampling.params import SamplingParams
from pyllama.sampling.sampler import ChainSetup, Sampler

if TYPE_CHECKING:
    from pyllama.tokenizer import Tokenizer

Ids = tuple[int, ...]
MAX_BREAKER_BYTES, MAX_REST = 40, 20
LOG_LARGEST = np.float32(88.7228391)  # of float32, to limit the exponent
NEARLY_ONE = 1.000001


class Breakers(dict[int, tuple[Ids, ...]]):
    """First tokens of sequence breakers, each with the rests of those that begin with it.

    Immutable once made: copies of a chain share it.
    """

    def __deepcopy__(self, memo: object) -> Breakers:
        return self


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

    @classmethod
    def create(cls, setup: ChainSetup) -> Dry | None:
        p = setup.params
        if p.dry_multiplier == 0 or p.dry_base < 1 or p.dry_penalty_last_n == 0:
            return None
        return cls(p, _breakers(setup.tokenizer, tuple(p.dry_sequence_breakers)))

    def apply(self, candidates: Candidates) -> None:
        repeats = self._repeats()
        if not repeats:
            return
        logits, positions, found = candidates.edit(np.fromiter(repeats, np.intp, len(repeats)))
        lengths = np.fromiter(repeats.values(), np.int64, len(repeats))[found]
        exponents = np.minimum(lengths - self._allowed, self._max_exponent)
        base = np.float64(np.float32(self._base))
        logits[positions] -= (self._multiplier * base**exponents).astype(np.float32)

    def _repeats(self) -> dict[int, int]:
        """Tokens that would continue a repetition, and the length of the longest."""
        tokens = np.array(self._tokens[-self._last_n :], np.int32)[::-1].copy()  # the last first
        n = tokens.size
        if n <= self._allowed:
            return {}
        limit = self._limit(tokens)
        if limit < self._allowed:
            return {}
        lengths = np.zeros(n, np.int32)
        _repeat_lengths(tokens.ctypes.data, n, limit, lengths.ctypes.data)
        repeats: dict[int, int] = {}
        for i in (lengths >= self._allowed).nonzero()[0].tolist():
            if i:
                token, length = int(tokens[i - 1]), int(lengths[i])
                if () not in self._breakers.get(token, ()):
                    repeats[token] = max(length, repeats.get(token, 0))
        return repeats

    def _limit(self, tokens: NDArray[np.int32]) -> int:
        """The number of tokens after the last sequence breaker; the tokens are given last first."""
        if self._breakers:
            for i, token in enumerate(tokens.tolist()):
                found = self._breakers.get(token)
                if found is not None:
                    following = tokens[:i][::-1].tolist()
                    lengths = [len(r) for r in found if following[: len(r)] == list(r)]
                    if lengths:
                        return i - max(lengths)
        return tokens.size

    def accept(self, token: int) -> None:
        self._tokens.append(token)

    def mark(self) -> int:
        return len(self._tokens)

    def rollback(self, mark: Any) -> None:
        del self._tokens[mark:]


@compiled(types.void(*[types.int64] * 4))
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


@lru_cache(maxsize=8)
def _breakers(tokenizer: Tokenizer | None, given: tuple[str | Ids, ...]) -> Breakers:
    breakers = Breakers()
    for breaker in given:
        if not isinstance(breaker, str):
            sequences = {breaker[0]: [tuple(breaker[1:])]} if breaker else {}
        elif tokenizer is None:
            raise SamplingError(
                f"dry_sequence_breakers: {breaker!r} is text, which needs a tokenizer; "
                "give token ids"
            )
        else:
            sequences = _sequences_of_text(tokenizer, breaker)
        for first, rests in sequences.items():
            breakers[first] = (*breakers.get(first, ()), *rests)
    return breakers


def _sequences_of_text(tokenizer: Tokenizer, text: str) -> dict[int, list[Ids]]:
    """The sequences that begin with each token: it contains the text, or ends with a part of it.

    Source: llama.cpp llama-sampler.cpp, `get_overlapping_token_sequences`.
    """
    breaker = text.encode("utf-8", "replace")[:MAX_BREAKER_BYTES]
    found: dict[int, list[Ids]] = {}
    for token in range(tokenizer.n_vocab if breaker else 0):
        piece = tokenizer.token_to_piece(token, special=True)
        if tokenizer.vocab.add_space_prefix:
            piece = piece.removeprefix(b" ")
        if breaker in piece:
            found[token] = [()]
            continue
        for n in range(1, len(breaker)):
            if piece.endswith(breaker[:n]):
                rest = breaker[n:].decode("utf-8", "replace")
                ids = tokenizer.encode(rest, add_special=False)[:MAX_REST]
                found.setdefault(token, []).append(tuple(ids))
    return found
