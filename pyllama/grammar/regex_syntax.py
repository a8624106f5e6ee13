r"""The syntax of regular expressions: the common part of ECMAScript's and Python's, as a tree.

    parse_regex(r"a{2}|b")    # RegexChoice((Repeat(Char(97), 2, 2), Char(98)))

Supported are literals, escapes, classes, groups, alternation, quantifiers, lookahead, the anchors
``^``, ``$``, ``\b`` and ``\B``, general categories as ``\p{...}``, and the flags ``i`` and ``s``.
``\d``, ``\w`` and ``\s`` are ASCII's; their negations exclude what Unicode adds to them, so that a
text matches under both readings. So it is with ``\b``, with the letters that ``i`` makes equal, and
with code points that have no category yet. ``.`` excludes the line ends of ECMAScript. Lazy
quantifiers accept what greedy ones do. Everything else is refused with its column.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal as OneOf
from typing import NoReturn

from pyllama.errors import GrammarError
from pyllama.grammar import code_points as cp

MAX_PATTERN = 20_000  # characters
MAX_DEPTH = 50  # groups in groups
MAX_QUANTIFIER = 1_000_000


@dataclass(frozen=True)
class Char:
    """One character; an escaped hyphen keeps its escape in GBNF, as llama.cpp writes it."""

    code: int
    is_escaped: bool = False


@dataclass(frozen=True)
class RegexChars:
    """One character of a set. ``name`` is the rule that it gets, if any."""

    items: tuple[cp.Range, ...]  # in the order of the pattern
    name: str = ""

    @functools.cached_property
    def ranges(self) -> cp.Ranges:
        return cp.normalize(self.items)


AnchorKind = OneOf["start", "end", "boundary", "inside", "wide boundary", "wide inside"]


@dataclass(frozen=True)
class Anchor:
    r"""A place in the text: its start or end, or one with (``\b``) or without a word's end.

    The wide ones are those of either reading, the others those of both.
    """

    kind: AnchorKind


@dataclass(frozen=True)
class Look:
    """A lookahead: what follows must match, or must not."""

    inner: Node
    is_negated: bool


@dataclass(frozen=True)
class Group:
    """Parentheses."""

    inner: Node


@dataclass(frozen=True)
class Sequence_:
    """One after another; none is the empty text."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class RegexChoice:
    """One of several."""

    options: tuple[Node, ...]


@dataclass(frozen=True)
class RegexRepeat:
    """An item from ``low`` to ``high`` times; None is without limit."""

    item: Node
    low: int
    high: int | None


Node = Char | RegexChars | Anchor | Look | Group | Sequence_ | RegexChoice | RegexRepeat

ASCII_SETS = {"d": cp.DIGITS, "w": cp.WORD, "s": cp.SPACES}
DOT = RegexChars(cp.complement(cp.LINE_ENDS), "dot")
WIDE_DOT = RegexChars(cp.complement(((0x0A, 0x0A),)))
ANY = RegexChars(cp.ALL)
_BOUNDARIES: dict[str, tuple[AnchorKind, AnchorKind]] = {
    "b": ("boundary", "wide boundary"),
    "B": ("inside", "wide inside"),
}
_FLAGS = re.compile(r"\?([a-zA-Z]*)(?:-([a-zA-Z]+))?([:)])")


class Pattern:
    """The parser of one pattern.

    What two languages read in different ways is narrow, what both accept; inside of a negation it
    is wide, what one of them accepts.
    """

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0
        self.depth = 0
        self.flags = frozenset[str]()
        self.is_wide = False
        if len(pattern) > MAX_PATTERN:
            self.fail(f"{len(pattern)} characters, at most {MAX_PATTERN} are allowed")

    def fail(self, message: str, at: int | None = None) -> NoReturn:
        column = (self.at if at is None else at) + 1
        raise GrammarError(f"regular expression {self.pattern!r:.80}, column {column}: {message}")

    def peek(self, n: int = 1) -> str:
        return self.pattern[self.at : self.at + n]

    def parse(self) -> Node:
        node = self.choice()
        if self.at < len(self.pattern):
            self.fail("unbalanced )")
        return node

    def choice(self) -> Node:
        options = [self.sequence()]
        while self.peek() == "|":
            self.at += 1
            options.append(self.sequence())
        return options[0] if len(options) == 1 else RegexChoice(tuple(options))

    def sequence(self) -> Node:
        parts: list[Node] = []
        while self.at < len(self.pattern) and self.peek() not in "|)":
            item = self.atom()
            parts.append(self.quantified(item))
        return parts[0] if len(parts) == 1 else Sequence_(tuple(parts))

    def quantified(self, item: Node) -> Node:
        bounds = self.quantifier()
        if bounds is None:
            return item
        if isinstance(item, Anchor | Look):
            kind = "an anchor" if isinstance(item, Anchor) else "a lookahead"
            self.fail(f"{kind} cannot be repeated", self.at - 1)
        if self.peek() == "?":  # lazy: the same texts
            self.at += 1
        elif self.peek() == "+":
            self.fail("a possessive quantifier is not supported; do without it")
        if self.quantifier() is not None:
            self.fail("a quantifier follows a quantifier; put the first into a group", self.at - 1)
        return RegexRepeat(item, *bounds)

    def quantifier(self) -> tuple[int, int | None] | None:
        char = self.peek()
        if char in ("*", "+", "?"):
            self.at += 1
            return int(char == "+"), 1 if char == "?" else None
        if char != "{":
            return None
        end = self.pattern.find("}", self.at)
        low, comma, high = (
            self.pattern[self.at + 1 : end].partition(",") if end > 0 else ("", "", "")
        )
        numbers = [number for number in (low, high) if number]
        if not numbers or not all(n.isascii() and n.isdigit() for n in numbers):
            return None  # a literal brace
        if any(len(n) > 9 or int(n) > MAX_QUANTIFIER for n in numbers):
            self.fail(f"a quantifier is over the limit of {MAX_QUANTIFIER}")
        first = int(low or 0)
        last = (int(high) if high else None) if comma else first
        if last is not None and last < first:
            self.fail(f"the quantifier's minimum {first} is greater than its maximum {last}")
        self.at = end + 1
        return first, last

    def atom(self) -> Node:
        char = self.peek()
        self.at += 1
        if char == "(":
            return self.group()
        if char == "[":
            return self.char_set()
        if char == ".":
            return ANY if "s" in self.flags else WIDE_DOT if self.is_wide else DOT
        if char == "^":
            return Anchor("start")
        if char == "$":
            return self.end()
        if char == "\\":
            return self.escape()
        self.at -= 1
        if char in "*+?" or (char == "{" and self.quantifier() is not None):
            self.fail("nothing to repeat")
        self.at += 1
        return self.char(self.code(char))

    def end(self) -> Node:
        """``$``, which in Python may have a newline after it."""
        if not self.is_wide:
            return Anchor("end")
        return Look(Sequence_((RegexRepeat(Char(0x0A), 0, 1), Anchor("end"))), False)

    def char(self, code: int) -> Node:
        """One character, in upper and lower case if a flag says so."""
        if "i" not in self.flags:
            return Char(code)
        both = cp.with_other_case(((code, code),), widely=self.is_wide)
        return RegexChars(both) if len(both) > 1 else Char(code)

    def code(self, char: str) -> int:
        if "\ud800" <= char <= "\udfff":
            self.fail("a surrogate is not a character", self.at - 1)
        return ord(char)

    def group(self) -> Node:
        start = self.at - 1
        self.depth += 1
        if self.depth > MAX_DEPTH:
            self.fail(f"more than {MAX_DEPTH} groups in groups", start)
        flags, is_wide = self.flags, self.is_wide
        kind = self.group_kind(start) if self.peek() == "?" else ""
        self.is_wide = is_wide != (kind == "?!")
        inner = self.choice() if kind != "flags" else Sequence_(())
        if self.peek() != ")":
            self.fail("missing ), unterminated group", start)
        self.at += 1
        self.depth -= 1
        self.is_wide = is_wide
        if kind == "flags":
            return inner
        self.flags = flags
        return Look(inner, kind == "?!") if kind in ("?=", "?!") else Group(inner)

    def group_kind(self, start: int) -> str:
        """Read what follows ``(``: a lookahead's mark, flags of the whole pattern, or others."""
        if self.peek(2) in ("?=", "?!"):
            self.at += 2
            return self.pattern[self.at - 2 : self.at]
        opening = next((mark for mark in ("?P<", "?<") if self.peek(len(mark)) == mark), "")
        after = self.pattern[self.at + len(opening) : self.at + len(opening) + 1]
        if opening and after not in ("=", "!"):
            end = self.pattern.find(">", self.at)
            if not self.pattern[self.at + len(opening) : end].isidentifier():
                self.fail("a bad group name", start)
            self.at = end + 1
            return ""
        for mark, name in (
            ("?<=", "a lookbehind"),
            ("?<!", "a lookbehind"),
            ("?P=", "a backreference"),
            ("?#", "a comment"),
            ("?>", "an atomic group"),
            ("?(", "a conditional group"),
        ):
            if self.peek(len(mark)) == mark:
                self.fail(f"{name} ({mark}...) is not supported; do without it", start)
        return self.group_flags(start)

    def group_flags(self, start: int) -> str:
        match = _FLAGS.match(self.pattern, self.at)
        if match is None or not {*match[1], *(match[2] or "")} <= {"i", "s", "u"}:
            self.fail("only the flags i, s and u are supported", start)
        if match[3] == ")" and (start or match[2]):
            self.fail("flags of the whole pattern must be its beginning; use (?i:...)", start)
        self.flags = (self.flags | {*match[1]}) - {*(match[2] or "")}
        self.at = match.end() - (match[3] == ")")
        return "flags" if match[3] == ")" else ""

    def escape(self) -> Node:
        start = self.at - 1
        char = self.peek()
        if char and char in "bBAZ":
            self.at += 1
            if char in "AZ":
                return Anchor("start" if char == "A" else "end")
            return Anchor(_BOUNDARIES[char][self.is_wide])
        if char in "123456789k" and char:
            self.fail("a backreference is not supported; do without it", start)
        item = self.class_escape(start)
        if not isinstance(item, tuple):
            return Char(item, True) if char == "-" else self.char(item)
        name = f"p-{'not-' * (char == 'P')}{self.pattern[start + 2 : self.at]}"
        return RegexChars(item, re.sub("[^A-Za-z-]", "", name) if char in "pP" else "")

    def class_escape(self, start: int) -> int | cp.Ranges:
        """One escape: a code point, or a set."""
        char = self.peek()
        if not char:
            self.fail("a backslash at the end", start)
        self.at += 1
        if char in "dwsDWS":
            narrow, kind = ASCII_SETS[char.lower()], char.lower()
            wide = cp.normalize([*cp.unicode_members(kind), *narrow])
            if char == kind:
                return wide if self.is_wide else narrow
            return cp.complement(narrow if self.is_wide else wide)
        if char in "pP":
            return self.category(char == "P", start)
        simple = {"n": 0x0A, "r": 0x0D, "t": 0x09, "f": 0x0C, "v": 0x0B, "0": 0, "b": 0x08}
        if char == "0" and self.peek().isdigit():
            self.fail(r"an octal escape is not supported; write \xHH", start)
        if char in simple:
            return simple[char]
        if char == "c" and self.peek().isascii() and self.peek().isalpha():
            self.at += 1
            return ord(self.pattern[self.at - 1]) % 32
        if char in "xuU":
            return self.hex_escape(char, start)
        if char.isalnum():
            self.fail(f"the escape \\{char} is not supported", start)
        return self.code(char)

    def category(self, is_negated: bool, start: int) -> cp.Ranges:
        r"""The set of ``\p{...}``, whose letter has been read."""
        name = self.peek()
        if name == "{":
            end = self.pattern.find("}", self.at)
            name = self.pattern[self.at + 1 : end] if end > 0 else ""
            self.at = end
        self.at += 1
        name = name.removeprefix("General_Category=").removeprefix("gc=")
        found = cp.category(name)
        if found is None:
            self.fail(
                rf"\p{{...}} knows general categories such as L, Lu and Nd, not {name!r:.40}",
                start,
            )
        assigned = cp.category("Assigned") or ()
        if is_negated:
            found = cp.subtract(assigned, found)
        if self.is_wide:  # what has no category yet may get one
            found = cp.normalize([*found, *cp.complement(assigned)])
        return cp.with_other_case(found, widely=self.is_wide) if "i" in self.flags else found

    def hex_escape(self, kind: str, start: int) -> int:
        if kind == "u" and self.peek() == "{":
            end = self.pattern.find("}", self.at)
            digits = self.pattern[self.at + 1 : end] if end > 0 else ""
            self.at = end + 1
        else:
            n_digits = {"x": 2, "u": 4, "U": 8}[kind]
            digits = self.peek(n_digits)
            self.at += n_digits
            if len(digits) < n_digits:
                digits = ""
        if not digits or len(digits) > 8 or any(d not in "0123456789abcdefABCDEF" for d in digits):
            self.fail(f"hexadecimal digits must follow \\{kind}", start)
        code = int(digits, 16)
        if kind == "u" and 0xD800 <= code < 0xDC00 and self.peek(2) == "\\u":
            second = self.pattern[self.at + 2 : self.at + 6]
            if len(second) == 4 and second[:2].lower() in ("dc", "dd", "de", "df"):
                self.at += 6
                code = 0x10000 + ((code - 0xD800) << 10) + (int(second, 16) - 0xDC00)
        if not cp.contains(cp.ALL, code):
            self.fail(f"U+{code:04X} is not a character", start)
        return code

    def char_set(self) -> Node:
        start = self.at - 1
        is_negated = self.peek() == "^"
        self.at += is_negated
        if self.peek() == "]":
            self.fail(r"an empty class; write \] for a bracket", start)
        items: list[cp.Range] = []
        is_wide, self.is_wide = self.is_wide, self.is_wide != is_negated
        while self.peek() != "]":
            if not self.peek():
                self.fail("missing ], unterminated character class", start)
            items += self.class_item()
        self.at += 1
        if "i" in self.flags:
            items = list(cp.with_other_case(cp.normalize(items), widely=self.is_wide))
        self.is_wide = is_wide
        return RegexChars(cp.complement(cp.normalize(items)) if is_negated else tuple(items))

    def class_item(self) -> cp.Ranges:
        start = self.at
        first = self.class_atom()
        if isinstance(first, tuple):
            if self.peek() == "-" and self.peek(2) != "-]":
                self.fail("a range cannot begin with a class", start)
            return first
        if self.peek() != "-" or self.peek(2) in ("-]", "-"):
            return ((first, first),)
        self.at += 1
        last = self.class_atom()
        if isinstance(last, tuple):
            self.fail("a range cannot end with a class", start)
        if last < first:
            self.fail("a range whose end comes before its start", start)
        return ((first, last),)

    def class_atom(self) -> int | cp.Ranges:
        """A code point or a set."""
        start = self.at
        char = self.peek()
        self.at += 1
        return self.class_escape(start) if char == "\\" else self.code(char)


@functools.lru_cache(maxsize=256)
def parse_regex(pattern: str) -> Node:
    """Return the tree of a pattern.

    Raises:
        GrammarError: a syntax error or an unsupported construct, with its column.
    """
    return Pattern(pattern).parse()


def has_anchor(node: Node) -> bool:
    """Return whether an anchor or a lookahead is anywhere in the tree."""
    return any(isinstance(inner, Anchor | Look) for inner in walk(node))


def has_empty_loop(node: Node) -> bool:
    """Return whether something that may be empty is repeated without limit, as in ``(a*)*``.

    In GBNF that is a left recursion.
    """
    return any(
        isinstance(inner, RegexRepeat) and inner.high is None and length_range(inner.item)[0] == 0
        for inner in walk(node)
    )


def walk(node: Node) -> Iterator[Node]:
    """The node and all nodes under it."""
    yield node
    for child in children(node):
        yield from walk(child)


def children(node: Node) -> Sequence[Node]:
    """The nodes directly under a node."""
    match node:
        case Group(inner):
            return (inner,)
        case Sequence_(parts):
            return parts
        case RegexChoice(options):
            return options
        case RegexRepeat(item):
            return (item,)
    return ()


def strip_anchors(node: Node) -> tuple[Node, bool, bool]:
    """Return a tree without a first ``^`` and last ``$``, and whether it had each."""
    parts = node.parts if isinstance(node, Sequence_) else (node,)
    starts = bool(parts) and parts[0] == Anchor("start")
    parts = parts[1:] if starts else parts
    ends = bool(parts) and parts[-1] == Anchor("end")
    parts = parts[:-1] if ends else parts
    return (parts[0] if len(parts) == 1 else Sequence_(parts)), starts, ends


def length_range(node: Node) -> tuple[int, int | None]:
    """Return the least and greatest number of characters of a match."""
    match node:
        case Char() | RegexChars():
            return 1, 1
        case Group(inner):
            return length_range(inner)
        case RegexChoice(options):
            lows, highs = zip(*map(length_range, options), strict=True)
            return min(lows), None if None in highs else max(highs)
        case RegexRepeat(item, low, high):
            least, most = length_range(item)
            return least * low, 0 if most == 0 or high == 0 else (
                None if high is None or most is None else high * most
            )
        case Sequence_(parts):
            bounds = [length_range(part) for part in parts]
            ends = [most for _, most in bounds]
            total = None if None in ends else sum(most or 0 for most in ends)
            return sum(least for least, _ in bounds), total
    return 0, 0
