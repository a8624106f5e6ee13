"""Matchers: end of a text, control tokens, marks, lazy grammars, bounded tables."""

from __future__ import annotations

import pytest

from pyllama.errors import GrammarError
from pyllama.grammar import Grammar, Matcher, Trigger
from pyllama.grammar.masks import Masks

from .vocabularies import allowed, words

TEXTS = [bytes([i]) for i in range(32, 127)] + [b"ab", b"<tool>", b"l>{", b"{}", b"\n"]
TOKENIZER = words(TEXTS, n_control=2)
ID = {text: i for i, text in enumerate(TEXTS)}
EOG, CONTROL, CONTROL_2 = len(TEXTS), len(TEXTS) + 1, len(TEXTS) + 2


def feed(matcher: Matcher, text: str) -> None:
    for char in text:
        matcher.accept(ID[char.encode()])


def texts(matcher: Matcher) -> set[bytes | int]:
    return {TEXTS[t] if t < len(TEXTS) else t for t in allowed(matcher.mask())}


def test_the_end_of_a_text() -> None:
    matcher = Grammar('root ::= "a" "b"?').matcher(TOKENIZER)
    assert texts(matcher) == {b"a", b"ab"}
    matcher.accept(ID[b"a"])
    assert texts(matcher) == {b"b", EOG}
    assert matcher.is_accepting
    matcher.accept(EOG)
    assert matcher.is_accepting
    assert texts(matcher) == {EOG}  # also though the grammar could go on
    assert not matcher.allows(ID[b"b"])
    matcher.accept(EOG)
    for token in (-1, len(TEXTS) + 3, 10**9):
        assert not matcher.allows(token)


def test_control_tokens_only_by_name() -> None:
    text = f"root ::= . <[{CONTROL}]> .* !<[{ID[b'a']}]> <|{CONTROL_2}|>"
    matcher = Grammar(text).matcher(TOKENIZER)
    feed(matcher, "x")
    assert texts(matcher) == {CONTROL}
    matcher.accept(CONTROL)
    assert not {EOG, CONTROL, CONTROL_2} & texts(matcher)
    assert b"a" in texts(matcher)  # as a character
    feed(matcher, "a")
    assert CONTROL_2 not in texts(matcher)
    feed(matcher, "b")
    assert CONTROL_2 in texts(matcher)
    matcher.accept(CONTROL_2)
    assert texts(matcher) == {EOG}
    for name in ("<|nothing|>", "<[999999]>"):
        with pytest.raises(GrammarError, match="line 2, column 3: the grammar names"):
            Grammar(f"root ::= [a] |\n  {name} | {name}").matcher(TOKENIZER)


def test_marks() -> None:
    matcher = Grammar('root ::= [a-c]{3} | "abx"').matcher(TOKENIZER)
    start = matcher.mark()
    feed(matcher, "ab")
    mark, expected = matcher.mark(), texts(matcher)
    assert expected == {b"a", b"b", b"c", b"x"}
    twin = matcher.clone()
    feed(matcher, "x")
    matcher.accept(EOG)
    matcher.rollback(mark)
    assert texts(matcher) == expected == texts(twin)
    matcher.rollback(start)
    assert ID[b"ab"] in allowed(matcher.mask())
    assert texts(twin) == expected
    twin.reset()
    assert texts(twin) == texts(matcher)


@pytest.mark.parametrize(
    "trigger",
    [
        Trigger("word", "<tool>"),
        Trigger("pattern", "(<tool>)"),
        Trigger("pattern", r"x*\s?(<tool>\{?)"),
        Trigger("pattern_full", r"[\s\S]*?(<tool>)[\s\S]*"),
        Trigger("pattern_full", r"^x|[\s\S]*?(<tool>)[\s\S]*$|\$"),
    ],
)
@pytest.mark.parametrize("tokens", ["<tool>", "< t o o l>{", "< t o o l >"])
def test_lazy_grammars_start_at_the_trigger(trigger: Trigger, tokens: str) -> None:
    grammar = Grammar('root ::= "<tool>" "{" [a-z]* "}"', triggers=[trigger])
    matcher = grammar.matcher(TOKENIZER)
    assert not matcher.is_active
    everything = set(range(len(TEXTS) + 3))
    assert allowed(matcher.mask()) == everything
    assert matcher.allows(CONTROL)
    for token in (ID[b"}"], EOG, CONTROL):
        matcher.accept(token)
    before = matcher.mark()
    for part in tokens.split():
        assert not matcher.is_active
        matcher.accept(ID[part.encode()])
    assert matcher.is_active
    expected: set[bytes | int] = {b"{", b"{}"}
    if tokens.endswith("{"):
        expected = {b"}", b"ab", *(bytes([c]) for c in range(ord("a"), ord("z") + 1))}
    assert texts(matcher) == expected
    matcher.rollback(before)
    assert not matcher.is_active
    for part in tokens.split():
        matcher.accept(ID[part.encode()])
    assert texts(matcher) == expected == texts(matcher.clone())


def test_trigger_tokens() -> None:
    grammar = Grammar(f'root ::= <[{CONTROL}]> "a"', triggers=[Trigger("token", CONTROL)])
    matcher = grammar.matcher(TOKENIZER)
    feed(matcher, "xyz")
    matcher.accept(CONTROL)
    assert texts(matcher) == {b"a", b"ab"} - {b"ab"}
    # as in llama.cpp, the text of a trigger token may match
    shown = Grammar(f'root ::= "<|{CONTROL}|>" "a"', triggers=[Trigger("token", CONTROL)])
    matcher = shown.matcher(TOKENIZER)
    matcher.accept(CONTROL)
    assert texts(matcher) == {b"a"}


def test_bad_triggers() -> None:
    with pytest.raises(GrammarError, match="not a regular expression"):
        Trigger("pattern", "(")
    with pytest.raises(GrammarError, match="trigger word: the text is empty"):
        Trigger("word", "")
    with pytest.raises(GrammarError, match="want a value of type int"):
        Trigger("token", "x")
    with pytest.raises(GrammarError, match="unknown"):
        Trigger("suffix", "x")  # type: ignore[arg-type]
    matcher = Grammar('root ::= "<tool>{"', triggers=[Trigger("word", "tool>")]).matcher(TOKENIZER)
    with pytest.raises(GrammarError, match="after its trigger: 'tool>'"):
        matcher.accept(ID[b"<tool>"])
    assert not matcher.is_active


def test_a_full_table_is_replaced() -> None:
    """States of nested brackets are all different; marks of the old table stay valid."""
    grammar = Grammar('root ::= "[" root? "]" [a-z]')
    masks = Masks(grammar.automaton, TOKENIZER, max_table_bytes=2 << 20)
    matcher, first = Matcher(masks, TOKENIZER), masks.start.table
    marks = []
    for depth in range(20_000):
        if depth % 2000 == 0:
            marks.append(matcher.mark())
        feed(matcher, "[")
    assert masks.start.table is not first
    assert texts(matcher) == {b"[", b"]"}
    for mark in reversed(marks):
        matcher.rollback(mark)
        feed(matcher, "[[]a]")
        assert b"z" in texts(matcher)
