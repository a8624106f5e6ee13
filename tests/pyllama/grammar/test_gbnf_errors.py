"""Errors of grammars: one line with line and column; bounded time for hostile ones."""

from __future__ import annotations

import time
from typing import Any

import pytest

from pyllama.errors import GrammarError
from pyllama.grammar import Grammar, gbnf

from ...tiers import some
from .vocabularies import words

LETTERS = words([bytes([i]) for i in range(97, 123)] + [b"a" * n for n in range(2, 33)])

QUOTED = words([*(b"a" * n for n in range(1, 33)), b'"'])


@pytest.fixture(scope="module", autouse=True)
def compiled_before() -> None:
    """Compile outside of the tests of time."""
    Grammar('root ::= "a"').matcher(LETTERS).mask()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there is no rule 'root' to start with; add 'root ::= ...'"),
        ("root = x", "line 1, column 6: expected '::=' after the name 'root', got '= x'"),
        ("root ::= (a\na ::= [b]", r"line 2, column 3: expected ')' to close the group opened at "
         "line 1, column 10, got '::= [b]'"),
        ("root ::= a ]", "line 1, column 12: expected an element of rule 'root', '|', or"),
        ("root ::= a\r\nb ::=\r\n c d", "line 1, column 10: rule 'a' is not defined"),
        ('root ::=\n  "ab', "line 2, column 3: this text has no closing '\"'"),
        ("root ::= [ab", "line 1, column 10: this class has no closing ']'"),
        ("root ::= [z-a]", "line 1, column 11: the range 'z' to 'a' is reversed"),
        ("root ::= []", "line 1, column 10: an empty class matches no character; the empty"),
        (r'root ::= "\q"', r"line 1, column 11: unknown escape '\\q'; there are \n \r"),
        (r'root ::= "\x4"', "line 1, column 13: expected 2 hexadecimal digits after '\\x', got"),
        (r'root ::= "\u00g0"', "expected 4 hexadecimal digits after '\\u'"),
        (r'root ::= "\U00110000"', "U+110000 is not a character"),
        (r'root ::= [a] "b\uD83D\uDE00"', "line 1, column 14: this text has a surrogate, which"),
        ('root ::= "\udcff"', "line 1, column 10: this text has a surrogate, which"),
        (b"root ::= [a]", "a grammar is text, got a value of type bytes"),
        (None, "a grammar is text, got a value of type NoneType"),
        ("root ::= *", "'*' repeats the element before it, but there is none"),
        ("root ::= [a]{x}", "line 1, column 14: expected a minimum, as in {2} or {2,5}, got 'x}'"),
        ("root ::= [a]{2,1}", "the maximum 1 is less than the minimum 2"),
        ("root ::= [a]{2", "expected '}' after the counts of a repetition"),
        ("root ::= [a]{3000}", "3000 repetitions are too many, at most 2000 are possible"),
        ("root ::= [a]{" + "9" * 40 + "}", "the number 999999999999999999... is too large"),
        ("root ::= <abc", "this token has no closing '>'"),
        ("root ::= <[x]>", "expected a token id, got 'x]>'"),
        ("root ::= !a", "expected '<' after '!'"),
        ("root ::= " + "(" * 101, "groups are nested deeper than 100"),
        ("root ::= [a]\n x\n::= [b]", "line 2, column 3: expected '::=' after the name 'x'"),
        ("root ::= a\na ::= b | \"\"\nb ::= [y]* a", "column 12: left recursion: a -> b -> a"),
        ("root ::= root", "line 1, column 10: left recursion: root -> root"),
        ("root ::= e e root [a]\ne ::= [x]?", "line 1, column 14: left recursion: root -> root"),
        ("root ::= [a]\nunused ::= unused [b]", "line 2, column 12: left recursion: unused"),
        ('root ::= "x" b | b\nb ::= [a] b | root', "line 2, column 15: left recursion: root -> b"),
        ('root ::= "a" root', "line 1, column 14: rule 'root' has no finite text: root -> root;"),
        ('root ::= [a] | x\nx ::= "a"+ (x | y)\ny ::= <[1]> x', "line 2, column 13: rule 'x' has"),
        ('root ::= "a" x\nx ::= "b" y\ny ::= "c"? x', "line 3, column 12: rule 'x' has no finite "
         "text: x -> y -> x; add an alternative without this reference"),
        ("root ::= [a] x\nx ::= [a] [\\uD800]", "line 2, column 1: rule 'x' matches no text"),
        ("root ::= (([a-z]{2000}){2000}){2000}", "at most 100000 are possible"),
    ],
)  # fmt: skip
def test_messages(text: Any, message: str) -> None:
    with pytest.raises(GrammarError) as caught:
        Grammar(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        'root ::= "a" root | "b"',
        'root ::= ("a" root)*',
        "root ::= [a] x?\nx ::= [b] root | [c] x",
        "root ::= [a]\nunused ::= [b] unused",
    ],
)
def test_rules_that_may_loop_are_allowed(text: str) -> None:
    Grammar(text).matcher(LETTERS).mask()


def many_rules(n: int) -> str:
    return "\n".join(f'r{i} ::= r{i + 1}? r{i + 2}? "{i}"' for i in range(n))


@pytest.mark.parametrize(
    "text",
    some(
        [
            "(" * 500_000,
            '"' + "a" * 900_000,
            "root ::= " + "[a] | " * 100_000 + "[b]",
            "root ::= " + "a" * 900_000,
            "root ::= " + "([a]{2000} | " * 50 + "[b]" + "){2000}" * 50,
            "root ::= " + "".join(f"[{chr(0x4E00 + i)}]" for i in range(20_000)),
            "root ::= [" + "".join(chr(0x100 + 2 * i) for i in range(100_000)) + "]",
            many_rules(20_000) + "\nr20000 ::= [a]\nr20001 ::= [b]\nroot ::= r0",
            "\n".join(f"r{i} ::= r{i + 1}" for i in range(30_000)) + "\nr30000 ::= r0\nroot ::= r0",
            "root ::= " + "((((([a]?)*)?)*)?)*" * 2000,
            "#" * 1_000_000,
            "root ::= " + "x " * 2_000_000,
        ],
        5,
    ),
    ids=range(12),
)
def test_hostile_texts_take_bounded_time(text: str) -> None:
    start = time.process_time()
    try:
        matcher = Grammar(text).matcher(LETTERS)
        matcher.mask()
    except GrammarError as error:
        assert len(str(error)) < 400
    assert time.process_time() - start < 10  # about 1 s on a machine that is not busy


@pytest.mark.parametrize(
    "pattern",
    some(
        [
            "(a{1000}){1000}",
            "^(a{1000}){1000}$",
            "^(([a-z]{0,1000}){0,1000}){0,1000}$",
            "((a|aa){1000}){1000}",
        ],
        1,
    ),
)
def test_repetitions_of_repetitions_take_bounded_time(pattern: str) -> None:
    start = time.process_time()
    matcher = Grammar.from_json_schema({"pattern": pattern}).matcher(QUOTED)
    matcher.accept(32)
    for i in range(400):
        matcher.mask()
        matcher.accept(i % 32)
    assert not matcher.is_accepting
    assert time.process_time() - start < 10  # about 0.5 s on a machine that is not busy


@pytest.mark.parametrize(
    "text",
    [
        "root ::= x*\nx ::= [a] | [a][a] | y\ny ::= [a] [a] [a] | [a] x",
        "root ::= " + "([a]* | [b]*)* " * 30,
        "root ::= (x | y)* [z]\nx ::= [a] x? [a]\ny ::= [a] y? | x",
        "root ::= " + " | ".join(f"[a]{{{n}}} [b]" for n in range(1, 300)),
        "root ::= " + " ".join(f"([a-z]{{0,{n}}} [b]?)?" for n in range(100)),
        "root ::= ([a] | x)*\nx ::= [a]* y [a]*\ny ::= [b] | [a] root [a]",
    ],
)
def test_ambiguous_grammars_take_bounded_time(text: str) -> None:
    start = time.process_time()
    matcher = Grammar(text).matcher(LETTERS)
    try:
        for _ in range(100):
            matcher.mask()
            matcher.accept(0)
    except GrammarError as error:
        assert "ambiguous" in str(error)
    assert time.process_time() - start < 20  # about 1 s on a machine that is not busy


def test_deep_nesting_takes_linear_time() -> None:
    matcher = Grammar('root ::= "a" root "b" | "c"').matcher(LETTERS)
    for _ in range(20_000):
        matcher.accept(0)
    matcher.accept(2)
    for _ in range(20_000):
        assert not matcher.is_accepting
        matcher.accept(1)
    assert matcher.is_accepting


def test_places_are_found_at_errors_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A place is found by reading the text up to it, which takes long for each of many groups."""

    def place(text: str, at: int) -> str:
        raise AssertionError

    monkeypatch.setattr(gbnf, "place", place)
    assert set(gbnf.parse('root ::= (("a" | b) b)*\nb ::= ("c")')) == {"root", "b"}
