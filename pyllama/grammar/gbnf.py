"""llama.cpp's grammar language GBNF, parsed into rules.

    rules = parse('root ::= "yes" | "no" ("," root)?')
    rules["root"].body      # Alternatives((Literal("yes"), Sequence((Literal("no"), Repeat(...)))))

A rule is ``name ::= alternatives``. An alternative is a sequence of literals ``"text"``, classes
``[a-z]`` and ``[^a-z]``, any character ``.``, names of rules, groups ``( )`` and tokens ``<text>``,
``<[id]>``, ``!<text>``, each with an optional repetition ``*``, ``+``, ``?``, ``{m}``, ``{m,}``,
``{m,n}``. Comments start with ``#``. Newlines end a rule, except after ``::=`` and ``|`` and in
groups. Source: llama.cpp, ``llama_grammar_parser``.

An error has line and column. Time and memory are linear in the text, whose length is limited.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from typing import NamedTuple, NoReturn

from ..errors import GrammarError
from .code_points import MAX_CODE, Ranges, normalize, subtract

MAX_CHARS = 1 << 20  # of a grammar's text
MAX_DEPTH = 100  # of groups in groups
MAX_REPEAT = 2000  # as in llama.cpp; a larger maximum is no maximum, as there


class Chars(NamedTuple):
    """One character out of ranges of code points."""

    ranges: Ranges


class Literal(NamedTuple):
    """These characters; may be empty."""

    text: str


class Token(NamedTuple):
    """One token by its id or its text (with the angle brackets), or any other than it.

    ``at`` is its position in the grammar.
    """

    token: int | str
    negated: bool
    at: int


class Reference(NamedTuple):
    """The text of another rule. ``at`` is its position in the grammar."""

    name: str
    at: int


class Sequence(NamedTuple):
    """All of these, in order."""

    items: tuple[Expression, ...]


class Alternatives(NamedTuple):
    """One of these."""

    options: tuple[Expression, ...]


class Repeat(NamedTuple):
    """An item ``least`` to ``most`` times; ``most`` None is unlimited."""

    item: Expression
    least: int
    most: int | None


Expression = Chars | Literal | Token | Reference | Sequence | Alternatives | Repeat


class Rule(NamedTuple):
    """A rule's body. ``at`` is the position of its name in the grammar."""

    body: Expression
    at: int


ANY = Chars(((0, MAX_CODE),))
_SPACE = re.compile(r"[ \t]*(?:#[^\r\n]*[ \t]*)*")
_SPACE_OR_NEWLINE = re.compile(r"[ \t\r\n]*(?:#[^\r\n]*[ \t\r\n]*)*")
_NAME = re.compile(r"[a-zA-Z0-9-]+")
_INTEGER = re.compile(r"[0-9]+")
_PLAIN_TEXT = re.compile(r'[^"\\]*')
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", **{c: c for c in '\\"[]-'}}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_HEX = re.compile(r"[0-9a-fA-F]*")
_SURROGATE = re.compile("[\ud800-\udfff]")
_REPEATS = {"*": (0, None), "+": (1, None), "?": (0, 1)}


def parse(text: str) -> dict[str, Rule]:
    """The rules of a grammar by name; if one is defined twice, the last definition.

    Raises:
        GrammarError: a syntax error, an undefined rule, or a text that is too long.
    """
    if not isinstance(text, str):
        raise GrammarError(f"a grammar is text, got a value of type {type(text).__name__}")
    if len(text) > MAX_CHARS:
        raise GrammarError(f"the grammar has {len(text)} characters, at most {MAX_CHARS} are read")
    return _Parser(text).rules()


def parse_body(text: str) -> Expression:
    """Parse the right side of a rule. Rules that it refers to need not be defined."""
    return _Parser(text).choice()


def references(body: Expression) -> Iterator[str]:
    """The names of the rules that an expression refers to."""
    if isinstance(body, Reference):
        yield body.name
    for part in _parts(body):
        yield from references(part)


def ends(body: Expression, endless: Container[str]) -> bool:
    """Whether an expression has a finite text without using the endless rules."""
    match body:
        case Reference(name):
            return name not in endless
        case Repeat(item, least):
            return least == 0 or ends(item, endless)
        case Alternatives(options):
            return any(ends(one, endless) for one in options)
    return all(ends(one, endless) for one in _parts(body))


def _parts(body: Expression) -> tuple[Expression, ...]:
    match body:
        case Sequence(parts) | Alternatives(parts):
            return parts
        case Repeat(item):
            return (item,)
    return ()


def place(text: str, at: int) -> str:
    """``line L, column C`` of a position in a text, both from 1."""
    lines = text[:at].replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return f"line {len(lines)}, column {len(lines[-1]) + 1}"


def short(name: str) -> str:
    """A name as messages show it."""
    return name if len(name) <= 40 else name[:37] + "..."


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.opened: list[int] = []  # positions of the open groups
        self.references: dict[str, int] = {}  # name: position of its first use

    def rules(self) -> dict[str, Rule]:
        rules: dict[str, Rule] = {}
        self.skip_space(newlines=True)
        while self.at < len(self.text):
            start = self.at
            name = self.name("the name of a rule (letters, digits and '-')")
            self.skip_space()
            if not self.text.startswith("::=", self.at):
                self.fail(f"expected '::=' after the name {short(name)!r}")
            self.at += 3
            self.skip_space(newlines=True)
            rules[name] = Rule(self.choice(), start)
            if self.char not in "\r\n":  # "" at the end of the text
                expected = f"an element of rule {short(name)!r}, '|', or a newline and a rule"
                self.fail(f"expected {expected}")
            self.skip_space(newlines=True)
        for name, at in self.references.items():
            if name not in rules:
                self.fail(f"rule {short(name)!r} is not defined; add '{short(name)} ::= ...'", at)
        return rules

    @property
    def char(self) -> str:
        """The next character, "" at the end."""
        return self.text[self.at : self.at + 1]

    def fail(self, message: str, at: int | None = None) -> NoReturn:
        where = self.at if at is None else at
        if at is None:
            found = self.text[where : where + 12].splitlines()
            found_text = repr(found[0]) if found and found[0] else "a newline"
            message += f", got {found_text if where < len(self.text) else 'the end of the text'}"
        raise GrammarError(f"{place(self.text, where)}: {message}")

    def skip_space(self, *, newlines: bool = False) -> None:
        pattern = _SPACE_OR_NEWLINE if newlines else _SPACE
        self.at = pattern.match(self.text, self.at).end()  # type: ignore[union-attr]

    def name(self, expected: str) -> str:
        match = _NAME.match(self.text, self.at)
        if match is None:
            self.fail(f"expected {expected}")
        self.at = match.end()
        return match[0]

    def integer(self, expected: str) -> int:
        match = _INTEGER.match(self.text, self.at)
        if match is None:
            self.fail(f"expected {expected}")
        digits = match[0].lstrip("0")
        if len(digits) > 18:
            self.fail(f"the number {digits[:18]}... is too large", self.at)
        self.at = match.end()
        return int(digits or "0")

    def expect(self, char: str, purpose: str) -> None:
        if self.char != char:
            self.fail(f"expected {char!r} {purpose}")
        self.at += 1

    def choice(self) -> Expression:
        options = [self.sequence()]
        while self.char == "|":
            self.at += 1
            self.skip_space(newlines=True)
            options.append(self.sequence())
        return options[0] if len(options) == 1 else Alternatives(tuple(options))

    def sequence(self) -> Expression:
        items: list[Expression] = []
        nested = bool(self.opened)
        text, spaces = self.text, _SPACE_OR_NEWLINE if nested else _SPACE
        while True:
            char = text[self.at : self.at + 1]
            if char == '"':
                items.append(self.literal())
            elif char == "[":
                items.append(self.char_class())
            elif char == "(":
                items.append(self.group())
            elif char == ".":
                self.at += 1
                items.append(ANY)
            elif char in ("<", "!"):
                items.append(self.token())
            elif char in ("*", "+", "?", "{") and char:
                if not items:
                    self.fail(f"{char!r} repeats the element before it, but there is none", self.at)
                items[-1] = self.repeat(items[-1])
            else:
                match = _NAME.match(text, self.at)
                if match is None:
                    return items[0] if len(items) == 1 else Sequence(tuple(items))
                self.references.setdefault(match[0], self.at)
                items.append(Reference(match[0], self.at))
                self.at = match.end()
            self.at = spaces.match(text, self.at).end()  # type: ignore[union-attr]

    def group(self) -> Expression:
        if len(self.opened) >= MAX_DEPTH:
            self.fail(f"groups are nested deeper than {MAX_DEPTH}; name parts as rules", self.at)
        self.opened.append(self.at)
        self.at += 1
        self.skip_space(newlines=True)
        inner = self.choice()
        opened = self.opened.pop()
        if self.char != ")":  # the place is found at an error only: the text may be long
            self.expect(")", f"to close the group opened at {place(self.text, opened)}")
        self.at += 1
        return inner

    def repeat(self, item: Expression) -> Expression:
        start, char = self.at, self.char
        self.at += 1
        if char in _REPEATS:
            least, most = _REPEATS[char]
            return Repeat(item, least, most)
        newlines = bool(self.opened)
        self.skip_space(newlines=newlines)
        least = self.integer("a minimum, as in {2} or {2,5}")
        most = least
        self.skip_space(newlines=newlines)
        if self.char == ",":
            self.at += 1
            self.skip_space(newlines=newlines)
            most = None
            if _INTEGER.match(self.text, self.at):
                most = self.integer("a maximum")
                self.skip_space(newlines=newlines)
        self.expect("}", "after the counts of a repetition, as in {2} or {2,5}")
        if least > MAX_REPEAT:
            self.fail(f"{least} repetitions are too many, at most {MAX_REPEAT} are possible", start)
        if most is not None and most < least:
            self.fail(f"the maximum {most} is less than the minimum {least}", start)
        return Repeat(item, least, None if most is not None and most > MAX_REPEAT else most)

    def literal(self) -> Literal:
        start = self.at
        self.at += 1
        parts = []
        while True:
            match = _PLAIN_TEXT.match(self.text, self.at)
            assert match is not None
            parts.append(match[0])
            self.at = match.end()
            if self.char == '"':
                self.at += 1
                literal = "".join(parts)
                if _SURROGATE.search(literal):
                    self.fail("this text has a surrogate, which is not a character", start)
                return Literal(literal)
            if not self.char:
                self.fail("this text has no closing '\"'", start)
            parts.append(self.escape())

    def escape(self) -> str:
        r"""The character of an escape such as ``\n`` or ``\x41``."""
        start, letter = self.at, self.text[self.at + 1 : self.at + 2]
        self.at += 2
        if letter in _ESCAPES:
            return _ESCAPES[letter]
        n_digits = _HEX_DIGITS.get(letter)
        if n_digits is None:
            self.fail(
                f"unknown escape {self.text[start : start + 2]!r}; there are \\n \\r \\t \\\\ "
                '\\" \\[ \\] \\- \\xHH \\uHHHH \\UHHHHHHHH',
                start,
            )
        digits = self.text[self.at : self.at + n_digits]
        if len(digits) < n_digits or not _HEX.fullmatch(digits):
            self.fail(f"expected {n_digits} hexadecimal digits after '\\{letter}'")
        self.at += n_digits
        value = int(digits, 16)
        if value > MAX_CODE:
            self.fail(f"U+{value:X} is not a character, the last one is U+10FFFF", start)
        return chr(value)

    def char_class(self) -> Chars:
        start = self.at
        self.at += 1
        negated = self.char == "^"
        self.at += negated
        ranges = []
        while self.char != "]":
            first_at = self.at
            first = last = self.class_char(start)
            if self.char == "-" and self.text[self.at + 1 : self.at + 2] != "]":
                self.at += 1
                last = self.class_char(start)
            if last < first:
                self.fail(f"the range {chr(first)!r} to {chr(last)!r} is reversed", first_at)
            ranges.append((first, last))
        self.at += 1
        if not ranges:
            self.fail('an empty class matches no character; the empty text is ""', start)
        found = normalize(ranges)
        return Chars(subtract(ANY.ranges, found) if negated else found)

    def class_char(self, start: int) -> int:
        if not self.char:
            self.fail("this class has no closing ']'", start)
        if self.char == "\\":
            return ord(self.escape())
        self.at += 1
        return ord(self.text[self.at - 1])

    def token(self) -> Token:
        start = self.at
        negated = self.char == "!"
        self.at += negated
        opened = self.at
        self.expect("<", "after '!', as in !<text> or !<[id]>")
        if self.char == "[":
            self.at += 1
            token = self.integer("a token id")
            self.expect("]", "after a token id, as in <[42]>")
            self.expect(">", "after a token id, as in <[42]>")
            return Token(token, negated, start)
        end = self.text.find(">", self.at)
        if end < 0:
            self.fail("this token has no closing '>'", start)
        self.at = end + 1
        return Token(self.text[opened : self.at], negated, start)
