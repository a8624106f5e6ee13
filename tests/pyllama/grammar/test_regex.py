"""Regular expressions as grammars, against Python's ``re``."""

from __future__ import annotations

import itertools
import json
import random
import re
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyllama.errors import GrammarError
from pyllama.grammar.gbnf_writer import choices_to_gbnf
from pyllama.grammar.regex import regex_to_gbnf
from pyllama.grammar.regex_syntax import parse_regex
from pyllama.grammar.schema.json_schema import schema_to_gbnf
from pyllama.grammar.string_automaton import Expression, StringAutomaton

from ...tiers import some
from .gbnf_texts import Gbnf

SHORT = ["".join(chars) for n in range(5) for chars in itertools.product("ab1- ", repeat=n)]
PATTERNS = [
    "",
    "a",
    "ab|b",
    "a|",
    "a*b+1?",
    "(ab)*",
    "(?:a|b){2}",
    "(?P<x>a)b",
    "a{1,2}b{2,}",
    "a{0,2}",
    "a{0}b",
    "a??b*?1+?",
    "[ab]+",
    "[^ab]+",
    "[a-b1]",
    r"[\d-]+",
    r"[-a]",
    r"[a\-1]",
    r"\d\w\s?",
    r"\D\W\S",
    r"[^\d\s]+",
    r"[\W\d]",
    r"\x61\u0062",
    ".+",
    "^a$",
    "^a|b$",
    "(^a|b)1?",
    "a(b|1$)*",
    "(a|^b|c$)",
    "(^)a($)",
    "a{",
    "a{b}?",
    r"a\-b",
    r"(a|ab)(b|1)?",
    r"((a*)b)*",
    "(a*)*b",
    "(a|b?)+1",
    "^(a*|b)*$",
    r"(a|b|1|-)*-",
    r"\Aa\Z",
    "^(?!a)[ab]+$",
    "^(?=.*1)(?=.*a).{3}$",
    "^((?!ab).)*$",
    "a(?=b)|1(?!1)",
    "(?!.*--)[a-]+(?!1)",
    "(?=(?!b)(?=a|1))..",
    "(a(?=b$))?b",
    r"\bab\b",
    r"\b1",
    r"a\B",
    r"(?!.*\b-)(?:a|\b-)+",
    "(?i)A[B]?",
    "(?i:A)b|(?s:.)(?-i:B)",
    "(?i)[^A]",
]


@pytest.mark.parametrize("pattern", some(PATTERNS, 20))
def test_a_grammar_accepts_the_whole_matches(pattern: str) -> None:
    try:
        grammar = Gbnf(regex_to_gbnf(pattern))
    except GrammarError as error:
        assert "matches no text" in str(error)
        assert not any(re.fullmatch(pattern, text) for text in SHORT)
        return
    wrong = [t for t in SHORT if grammar.accepts(t) != bool(re.fullmatch(pattern, t))]
    assert not wrong
    rng = random.Random(1)
    assert all(re.fullmatch(pattern, grammar.sample(rng, 10)) for _ in range(20))


@pytest.mark.parametrize("pattern", some(PATTERNS, 7))
@pytest.mark.parametrize("bounds", [{}, {"minLength": 2, "maxLength": 3}], ids=["", "bounded"])
def test_a_pattern_of_a_schema_is_searched(pattern: str, bounds: dict[str, int]) -> None:
    low, high = bounds.get("minLength", 0), bounds.get("maxLength", 99)
    matched = [t for t in SHORT if re.search(pattern, t) and low <= len(t) <= high]
    try:
        grammar = Gbnf(schema_to_gbnf({"type": "string", "pattern": pattern, **bounds}))
    except GrammarError as error:
        assert "no string meets" in str(error)
        assert not matched
        return
    accepted = [text for text in SHORT if grammar.accepts(json.dumps(text))]
    if pattern == "^a|b$":  # read as ^(a|b)$, as llama.cpp does
        assert set(accepted) <= set(matched)
    else:
        assert accepted == matched
    rng = random.Random(2)
    for _ in range(20):
        text = json.loads(grammar.sample(rng, 10))
        assert re.search(pattern, text) and low <= len(text) <= high


@st.composite
def random_patterns(draw: st.DrawFn, looks: str = "") -> str:
    leaf = st.sampled_from(["a", "b", "1", "-", "[ab]", "[^a]", r"\d", r"\w", ".", "^", "$", ""])

    def extend(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        times = st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,1}?"])
        return st.one_of(
            st.lists(inner, min_size=2, max_size=3).map("".join),
            st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"({'|'.join(parts)})"),
            st.tuples(inner, times).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
            *[inner.map(lambda text, mark=mark: f"(?{mark}{text})") for mark in looks],
            *[inner.map(lambda text: rf"\b{text}(?i:A)?") for _ in looks[:1]],
        )

    return draw(st.recursive(leaf, extend, max_leaves=7))


@settings(max_examples=14, deadline=None)
@given(pattern=random_patterns())
def test_random_patterns(pattern: str) -> None:
    compare(pattern)


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(pattern=random_patterns())
def test_more_random_patterns(pattern: str) -> None:
    compare(pattern)


def compare(pattern: str) -> None:
    """The texts that a pattern matches, as a whole and as a schema's, are those of ``re``."""
    texts = SHORT[:400]
    whole = [text for text in texts if re.fullmatch(pattern, text)]
    found = [text for text in texts if re.search(pattern, text)]
    try:
        plain = Gbnf(regex_to_gbnf(pattern))
        assert [text for text in texts if plain.accepts(text)] == whole
    except GrammarError as error:
        assert not whole and "matches no text" in str(error)
    try:
        grammar = Gbnf(schema_to_gbnf({"pattern": pattern}))
    except GrammarError as error:
        assert not found and "no string meets" in str(error)
        return
    assert [text for text in texts if grammar.accepts(json.dumps(text))] == found


@settings(max_examples=50, deadline=None)
@given(pattern=random_patterns("=!"), whole=st.booleans())
def test_random_patterns_with_lookahead(pattern: str, whole: bool) -> None:
    match = re.compile(pattern).fullmatch if whole else re.compile(pattern).search
    automaton = StringAutomaton([Expression(parse_regex(pattern), whole=whole)])
    assert list(filter(automaton.matches, SHORT)) == list(filter(match, SHORT))


@pytest.mark.parametrize(
    ("pattern", "column", "message"),
    [
        ("a(?=b)*", 7, "lookahead cannot be repeated"),
        ("a(?!b", 2, "missing )"),
        ("(?<=a)b", 1, "lookbehind"),
        ("(?<!a)b", 1, "lookbehind"),
        (r"(a)\1", 4, "backreference"),
        (r"(?P<n>a)(?P=n)", 9, "backreference"),
        (r"(?<n>a)\k<n>", 8, "backreference"),
        (r"\b*", 3, "anchor"),
        (r"\p{Script=Greek}", 1, "general categories"),
        (r"\p{Emoji}", 1, "general categories"),
        (r"a[\p{Lq}]", 3, "general categories"),
        (r"\p", 1, "general categories"),
        ("(?x)a", 1, "flags"),
        ("(?m:a)", 1, "flags"),
        ("a(?i)b", 2, "beginning"),
        ("(?>a)", 1, "atomic"),
        ("a++", 3, "possessive"),
        ("(a", 1, "missing )"),
        ("a)", 2, "unbalanced )"),
        ("[a", 1, "missing ]"),
        ("[]a]", 1, "empty class"),
        ("[b-a]", 2, "range"),
        (r"[\d-z]", 2, "range"),
        ("*a", 1, "nothing to repeat"),
        ("a|*", 3, "nothing to repeat"),
        ("a{2}{3}", 7, "quantifier follows"),
        ("a{3,2}", 2, "minimum 3"),
        ("a{9999999999}", 2, "limit"),
        ("^*", 2, "anchor"),
        ("a\\", 2, "backslash"),
        (r"\xZ1", 1, "hexadecimal"),
        (r"\ud800", 1, "U+D800"),
        (r"\01", 1, "octal"),
        ("(" * 60 + "a" + ")" * 60, 51, "groups in groups"),
    ],
)
def test_errors_name_the_column(pattern: str, column: int, message: str) -> None:
    with pytest.raises(GrammarError) as caught:
        regex_to_gbnf(pattern)
    text = str(caught.value)
    assert f"column {column}:" in text and message in text and "\n" not in text


@pytest.mark.parametrize("pattern", ["$a", "a^", "(a^b|b$1)"])
def test_a_pattern_without_matches_is_an_error(pattern: str) -> None:
    with pytest.raises(GrammarError, match="matches no text"):
        regex_to_gbnf(pattern)


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        (r"\u{1F600}|\ud83d\ude00\u00e9", ["😀", "😀é"]),
        ('["\\\\]+', ['"', '\\"']),
        (r"\n\r\t\f\v\0", ["\n\r\t\f\v\0"]),
        ("[\x00-\x1f]", ["\x01", "\n", "\x1f"]),
        ("[^x]{2}", ["\x00é", '"\\']),
        ("名前|größe", ["名前", "größe"]),
        (r"[\]\[^-]+", ["]", "[", "^-"]),
        ("x{3000}", ["x" * 3000]),
        (r"\cJ", ["\n"]),
    ],
)
def test_escapes_in_both_languages(pattern: str, texts: list[str]) -> None:
    plain = Gbnf(regex_to_gbnf(pattern))
    quoted = Gbnf(schema_to_gbnf({"pattern": f"^({pattern})$"}))
    for text in texts:
        assert plain.accepts(text)
        assert quoted.accepts(json.dumps(text, ensure_ascii=False)), text
        assert not plain.accepts(text + "~~~")


def test_negated_sets_exclude_what_unicode_adds() -> None:
    for pattern, char in ((r"\D", "٣"), (r"\W", "é"), (r"\S", "\u2003"), (r"[^\w]", "é")):
        assert not Gbnf(regex_to_gbnf(pattern)).accepts(char)
    assert Gbnf(regex_to_gbnf(r"\D\S[^\d]\W")).accepts("éé名—")
    assert not Gbnf(regex_to_gbnf(r"\d|\w|\s")).accepts("é")


CHARS = [chr(code) for code in range(0x2100) if not 0xD800 <= code < 0xE000] + list("😀𝒜ꙀÅﬀ名")


@pytest.mark.parametrize(
    "pattern",
    some([
        "(?i)[a-z]", "(?i)s", "(?i)[^k]", "(?i)[^ß]", "(?i)é|ǆ|ſ|µ|ı", "(?i)[^i]", r"(?i)[^\W]",
        r"(?!\d).", r"(?![^\d]).", r"(?!\S)[\s\S]", r"(?!.).?[\s\S]", r"(?!a$)[\s\S]+",
        "(?!(?i:[k-s])).", "(?!(?i:[^k-s])).", r"\b.\b", r"a\b.", r"a\B.", r"(?!a\b.)[\s\S]{2}",
        r"(?!a\B.)[\s\S]{2}", r"(?!(?!\w)).",
    ], 8),
)  # fmt: skip
def test_what_two_languages_read_in_different_ways_is_in_neither(pattern: str) -> None:
    """Python's reading admits each text of the automaton, ECMAScript's by the construction."""
    automaton = StringAutomaton([Expression(parse_regex(pattern), whole=True)])
    texts = [text for char in CHARS for text in (char, "a" + char, char + "a", char + "\n")]
    found = [text for text in texts if automaton.matches(text)]
    assert found
    assert [text for text in found if not re.fullmatch(pattern, text)] == []


@pytest.mark.parametrize(
    "name", some(["L", "Lu", "Nd", "P", "S", "Zs", "Cc", "Mn", "Uppercase_Letter"], 4)
)
def test_categories_are_those_of_unicode(name: str) -> None:
    kind = {"Uppercase_Letter": "Lu"}.get(name, name)
    members = {c for c in CHARS if unicodedata.category(c).startswith(kind)}
    known = {c for c in CHARS if unicodedata.category(c) != "Cn"}
    for pattern, wanted in (
        (rf"\p{{{name}}}", members),
        (rf"\P{{{name}}}", known - members),
        (rf"[\p{{{name}}}]", members),
        (rf"[^\p{{{name}}}]", known - members),
        (rf"[^\P{{{name}}}]", members),
        (rf"(?!\p{{gc={name}}})(?s:.)", known - members),
    ):
        automaton = StringAutomaton([Expression(parse_regex(pattern), whole=True)])
        assert {char for char in CHARS if automaton.matches(char)} == wanted, pattern
    plain, quoted = Gbnf(regex_to_gbnf(rf"\p{{{name}}}+")), schema_to_gbnf({"pattern": r"^\pL$"})
    assert plain.accepts("".join(sorted(members))) and not plain.accepts("0a?" * 2)
    assert Gbnf(quoted).accepts('"é"') and not Gbnf(quoted).accepts('"1"')


def test_a_long_class_is_written_once() -> None:
    assert len(regex_to_gbnf(r"^(?=.{5})[\p{L}\p{M} ]{1,30}$")) < 20_000
    assert len(schema_to_gbnf({"pattern": r"\p{Lu}\p{L}*", "maxLength": 30})) < 20_000


@pytest.mark.parametrize(
    "choices", [["yes", "no"], [""], ['"', "\\", "\n", "名前", "a b"], ["a", "a", "ab"]]
)
def test_choices(choices: list[str]) -> None:
    grammar = Gbnf(choices_to_gbnf(choices))
    assert all(map(grammar.accepts, choices))
    rng = random.Random(1)
    assert {grammar.sample(rng) for _ in range(50)} == set(choices)
    assert not grammar.accepts("x")


@pytest.mark.parametrize("choices", [[], "yes", [1], ["a", None], ["\ud800"]])
def test_bad_choices_are_refused(choices: object) -> None:
    with pytest.raises(GrammarError, match="choice"):
        choices_to_gbnf(choices)  # type: ignore[arg-type]
