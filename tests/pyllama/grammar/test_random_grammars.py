"""Masks of random grammars agree with an independent slow matcher, bit by bit."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from pyllama.errors import GrammarError
from pyllama.grammar import Grammar
from pyllama.tokenizer import Tokenizer

from .slow_matcher import Expression, SlowMatcher, TooSlow, to_gbnf
from .vocabularies import allowed, words

CHARS = 'ab"\\é€😀\x80\uffff'
TEXTS = [
    b"a", b"b", b"ab", b"ba", b"aa", b'"', b"\\", b'a"', b"aaaa", b"abababab", b"a" * 12,
    "é".encode(), "aé".encode(), "€".encode(), "😀".encode(), "é€".encode(),
    b"\xc3", b"\xa9", b"a\xc3", b"\xa9a", b"\xe2", b"\xe2\x82", b"\x82\xac", b"\xac", b"\xacb",
    b"\xf0", b"\xf0\x9f", b"\x9f\x98", b"\x80", b"\x98\x80a", b"\xc2", b"\xff", b"\xed\xa0", b"a",
]  # fmt: skip
VOCABULARY = words(TEXTS)
N_TOKENS = len(TEXTS)

names = st.sampled_from(["root", "x", "y"])
texts = st.text(CHARS, max_size=3).map(lambda text: ("text", text))


@st.composite
def classes(draw: Any) -> Expression:
    ranges = []
    for _ in range(draw(st.integers(1, 2))):
        low, high = sorted(ord(draw(st.sampled_from(CHARS + "\x00\U0010ffff"))) for _ in range(2))
        ranges.append((low, high))
    return "chars", tuple(ranges)


def expressions(later: list[str]) -> st.SearchStrategy[Expression]:
    """Expressions without left recursion: rules of any name only after a character."""
    guarded = st.tuples(st.just("seq"), classes(), names.map(lambda name: ("ref", name)))
    tokens = st.tuples(st.just("token"), st.integers(0, N_TOKENS + 1), st.booleans())
    leaves = st.one_of(texts, classes(), classes(), guarded, tokens)
    if later:
        leaves = st.one_of(leaves, st.sampled_from(later).map(lambda name: ("ref", name)))
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, min_size=1, max_size=3).map(lambda items: ("seq", *items)),
            st.lists(inner, min_size=1, max_size=3).map(lambda items: ("or", *items)),
            st.tuples(inner, st.integers(0, 2), st.none() | st.integers(0, 2)).map(
                lambda v: ("rep", v[0], v[1], None if v[2] is None else v[1] + v[2])
            ),
        ),
        max_leaves=6,
    )


grammars = st.fixed_dictionaries(
    {"root": expressions(["x", "y"]), "x": expressions(["y"]), "y": expressions([])}
)


def has_endless_rule(rules: dict[str, Expression]) -> bool:
    """Whether the root leads to a rule without a finite text."""
    finite: set[str] = set()

    def ends(node: Expression) -> bool:
        kind, *rest = node
        if kind in ("seq", "or"):
            return (all if kind == "seq" else any)(map(ends, rest))
        return rest[0] in finite if kind == "ref" else kind != "rep" or not rest[1] or ends(rest[0])

    def references(node: Expression) -> set[str]:
        kind, *rest = node
        if kind == "rep":
            return set() if rest[2] == 0 else references(rest[0])
        inner = rest if kind in ("seq", "or") else []
        return {rest[0]} if kind == "ref" else set().union(*map(references, inner))

    for _ in rules:
        finite.update(name for name, body in rules.items() if ends(body))
    reached = {"root"}
    for _ in rules:
        reached.update(*[references(rules[name]) for name in reached])
    return not reached <= finite


@pytest.mark.parametrize("with_tokens", [False, True])
@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(rules=grammars, choices=st.lists(st.integers(0, 1000), max_size=8))
def test_masks(with_tokens: bool, rules: dict[str, Expression], choices: list[int]) -> None:
    if not with_tokens:
        rules = {name: _without_tokens(body) for name, body in rules.items()}
    try:
        compare(rules, choices, VOCABULARY, TEXTS)
    except TooSlow:
        reject()


def compare(
    rules: dict[str, Expression], choices: list[int], vocabulary: Tokenizer, pieces: list[bytes]
) -> None:
    """Compare every bit of the masks on a random walk; endless rules are refused."""
    if has_endless_rule(rules):
        with pytest.raises(GrammarError, match="has no finite text"):
            Grammar(to_gbnf(rules))
        return
    grammar = Grammar(to_gbnf(rules))
    matcher, slow = grammar.matcher(vocabulary), SlowMatcher(rules, "root")
    stacks, pending = slow.start(), b""
    eog = next(iter(vocabulary.eog))
    for choice in [*choices, None]:
        after = {}
        for token in range(vocabulary.n_vocab):
            text = pieces[token] if token < len(pieces) else b""
            try:
                stepped = slow.advance_token(stacks, pending, token, text)
            except AssertionError:  # a text that ends in a part of a character, and a named token
                return
            if stepped[0]:
                after[token] = stepped
        accepting = None in stacks and not pending
        expected = set(after) | ({eog} if accepting else set())
        assert matcher.is_accepting == accepting
        assert allowed(matcher.mask()) == expected
        for token in range(vocabulary.n_vocab):
            assert matcher.allows(token) == (token in expected)
            if token not in expected:
                with pytest.raises(GrammarError, match="does not match the grammar"):
                    matcher.accept(token)
        if choice is None or not after:
            break
        token = sorted(after)[choice % len(after)]
        mark = matcher.mark()
        matcher.accept(token)
        other = matcher.clone()
        matcher.rollback(mark)
        assert allowed(matcher.mask()) == expected
        matcher = other
        stacks, pending = after[token]


def _without_tokens(node: Expression) -> Expression:
    if node[0] == "token":
        return "text", "a"
    return tuple(
        _without_tokens(part)
        if isinstance(part, tuple) and part and isinstance(part[0], str)
        else part
        for part in node
    )
