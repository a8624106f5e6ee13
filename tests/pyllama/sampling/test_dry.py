"""DRY's breakers: the same as a walk over the whole vocabulary finds, at a cost that is bounded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pyllama.sampling import SamplingParams
from pyllama.sampling.chain import Chain
from pyllama.sampling.sampler import ChainSetup
from pyllama.sampling.samplers.dry import MAX_BREAKER_BYTES, Dry

PIECES = ("a", "b", "\n", "ab", "ba", " a", "aab", "\n\n", "b\n", " ", "aaa", "é")


class CountingTokenizer:
    """Pieces of text as tokens, the longest first; counts what is asked."""

    def __init__(self, pieces: tuple[str, ...] = PIECES) -> None:
        self.pieces, self.n_vocab = pieces, len(pieces)
        self.vocab = SimpleNamespace(add_space_prefix=False)
        self.n_asked = self.n_encoded = 0

    def token_to_piece(self, token: int, special: bool = False) -> bytes:
        self.n_asked += 1
        return self.pieces[token].encode()

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        self.n_encoded += 1
        found = []
        while text:
            known = [p for p in self.pieces if text.startswith(p)]
            piece = max(known, key=len, default=text[0])
            found += [self.pieces.index(piece)] if known else []
            text = text[len(piece) :]
        return found


def dry(tokenizer: Any, **params: Any) -> Dry:
    given = {"dry_multiplier": 1.0, "dry_base": 1.1, "dry_allowed_length": 1} | params
    found = Dry.create(ChainSetup(SamplingParams(**given), tokenizer.n_vocab, tokenizer=tokenizer))
    assert found is not None
    return found


def walked(tokenizer: Any, texts: list[str]) -> dict[int, set[tuple[int, ...]]]:
    """llama.cpp's way: all tokens, each with what must follow it."""
    found: dict[int, set[tuple[int, ...]]] = {}
    for token, name in enumerate(tokenizer.pieces):
        piece = name.encode()
        for text in texts:
            breaker = text.encode()[:MAX_BREAKER_BYTES]
            if breaker and breaker in piece:
                found.setdefault(token, set()).add(())
                continue
            for n in range(1, len(breaker)):
                if piece.endswith(breaker[:n]):
                    rest = tokenizer.encode(breaker[n:].decode("utf-8", "replace"))
                    found.setdefault(token, set()).add(tuple(rest))
    return found


def repeated(
    tokens: list[int], allowed: int, breakers: dict[int, set[tuple[int, ...]]]
) -> dict[int, int]:
    """Tokens that would continue a repetition, and its length, found by comparing all suffixes."""
    n, limit = len(tokens), len(tokens)
    for begin in reversed(range(n)):
        ends = [len(r) for r in breakers.get(tokens[begin], ())
                if tuple(tokens[begin + 1 : begin + 1 + len(r)]) == r]  # fmt: skip
        if ends:
            limit = n - 1 - begin - max(ends)
            break
    found: dict[int, int] = {}
    for i in range(n - 1) if n > allowed and limit >= allowed else ():
        length = 0
        while length <= i and tokens[i - length] == tokens[n - 1 - length]:
            length += 1
        length = min(length, limit)
        follower = tokens[i + 1]
        if length >= allowed and () not in breakers.get(follower, ()):
            found[follower] = max(length, found.get(follower, 0))
    return found


TEXTS = st.lists(st.text("ab \né", max_size=4), max_size=4)
TOKENS = st.lists(st.integers(0, len(PIECES) - 1), max_size=40)


@given(texts=TEXTS, tokens=TOKENS, allowed=st.integers(0, 3), last_n=st.integers(1, 50))
def test_repeats_are_those_of_a_walk_over_the_vocabulary(
    texts: list[str], tokens: list[int], allowed: int, last_n: int
) -> None:
    tokenizer = CountingTokenizer()
    params = {"dry_sequence_breakers": tuple(texts), "dry_penalty_last_n": last_n}
    sampler, breakers = (
        dry(tokenizer, dry_allowed_length=allowed, **params),
        walked(tokenizer, texts),
    )
    for i, token in enumerate(tokens, 1):
        sampler.accept(token)
        ids, lengths = sampler._repeats()
        wanted = repeated(tokens[max(0, i - last_n) : i], allowed, breakers)
        assert dict(zip(ids.tolist(), lengths.tolist(), strict=True)) == wanted


@given(texts=TEXTS, tokens=TOKENS, more=TOKENS)
def test_rollback_forgets_breakers(texts: list[str], tokens: list[int], more: list[int]) -> None:
    tokenizer = CountingTokenizer()
    one, other = (dry(tokenizer, dry_sequence_breakers=tuple(texts)) for _ in range(2))
    one.accept_prompt(tokens)
    mark = one.mark()
    one.accept_prompt(more)
    one.rollback(mark)
    other.accept_prompt(tokens)
    assert [a.tolist() for a in one._repeats()] == [a.tolist() for a in other._repeats()]
    assert one._broken == other._broken


def test_the_cost_is_linear_in_the_breakers_and_the_vocabulary_is_not_walked() -> None:
    tokenizer = CountingTokenizer(tuple(f"<{i}>" for i in range(500)) + PIECES)
    texts = tuple(f"{i:x}" for i in range(300))
    sampler = dry(tokenizer, dry_sequence_breakers=texts)
    assert tokenizer.n_asked == 0 and tokenizer.n_encoded <= sum(map(len, texts))
    n_encoded = tokenizer.n_encoded
    sampler.accept_prompt([*range(10)] * 5)
    assert tokenizer.n_asked == 10 and tokenizer.n_encoded == n_encoded


def test_a_long_history_of_which_every_position_repeats() -> None:
    """The widest window with the shortest allowed repetition is counted in compiled code."""
    n_vocab = 1000
    params = SamplingParams(
        dry_multiplier=1.0, dry_allowed_length=0, dry_penalty_last_n=2**31 - 1,
        dry_sequence_breakers=(), samplers=("dry",), temp=0.0,
    )  # fmt: skip
    chain = Chain(params, n_vocab)
    chain.accept_prompt([*range(n_vocab)] * 100)
    logits = chain.apply(np.zeros(n_vocab, np.float32)).logits
    assert logits.argmin() == 0 and (logits < 0).all()
