r"""Writes GBNF text: literals, character classes, repetitions, and rules with unique names.

    rules = Rules()
    name = rules.add("a b", literal('say "hi"'))      # "a-b"
    rules.add("root", rules.repeat(name, 1, 3))
    rules.text()                                      # two lines, sorted by name

Names and layout are those of llama.cpp's converter of JSON schemas, so that texts can be compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from pyllama.errors import GrammarError
from pyllama.grammar.code_points import MAX_CODE, SURROGATES, Range, Ranges, complement, subtract
from pyllama.grammar.gbnf import Expression, ends, parse_body, references

MAX_TEXT = 1 << 20  # characters of a grammar
MAX_REPETITION = 2000  # of one item; llama.cpp's parser of GBNF refuses or ignores larger numbers
MAX_BOUND = MAX_REPETITION**2 // 2

_INVALID = re.compile("[^a-zA-Z0-9-]+")
_ESCAPES = {"\r": r"\r", "\n": r"\n", "\t": r"\t", "\\": r"\\", '"': r"\""}
_CLASS_ESCAPES = {**_ESCAPES, '"': '"', "[": r"\[", "]": r"\]", "-": r"\-", "^": r"\x5E"}


def _escape(char: str, escapes: dict[str, str]) -> str:
    if char in escapes:
        return escapes[char]
    if char.isprintable():
        return char
    code = ord(char)
    return (
        f"\\x{code:02X}"
        if code < 0x100
        else f"\\u{code:04X}"
        if code < 0x10000
        else f"\\U{code:08X}"
    )


def literal(text: str) -> str:
    """Return a GBNF literal."""
    return '"' + "".join(_escape(char, _ESCAPES) for char in text) + '"'


def class_items(items: Iterable[Range]) -> str:
    """Return the inner text of a character class, in the order of the items."""
    parts = []
    for low, high in items:
        parts.append(_escape(chr(low), _CLASS_ESCAPES))
        if high > low:
            parts.append(("-" if high > low + 1 else "") + _escape(chr(high), _CLASS_ESCAPES))
    return "".join(parts)


def char_class(ranges: Ranges) -> str:
    """Return a GBNF character class, negated if it has the last code point."""
    if ranges and ranges[-1][1] == MAX_CODE:
        outside = subtract(complement(ranges), SURROGATES)
        return f"[^{class_items(outside)}]" if outside else r"[\x00-\U0010FFFF]"
    return f"[{class_items(ranges)}]"


def sanitize(name: str) -> str:
    """Return the name with all characters replaced that GBNF does not allow in names."""
    return _INVALID.sub("-", name)


class GrammarRules:
    """The rules of a grammar; a name that is taken by another text gets a number."""

    def __init__(self) -> None:
        self.texts: dict[str, str | None] = {}  # None: its text is not known yet
        self._n_chars = 0
        self._numbers: dict[str, int] = {}  # where to begin to look for a number of a name
        self._ending: set[str] = set()  # rules for which `ends` is true

    def add(self, name: str, text: str) -> str:
        """Add a rule, and return its name."""
        base = sanitize(name)
        if self.texts.get(base, text) != text:
            base = self._numbered(base, text)
        if base not in self.texts:
            self._store(base, text)
        return base

    def repeat(self, item: str, low: int, high: int | None, separator: str = "") -> str:
        """Return an item repeated from ``low`` to ``high`` times, with a separator between.

        Raises:
            GrammarError: more than ``MAX_BOUND`` times.
        """
        if high == 0:
            return ""
        if low == 0 and high == 1:
            return item + "?"
        if separator:
            most = None if high is None else high - 1
            text = f"{item} {self.repeat(f'({separator} {item})', max(low - 1, 0), most)}"
            return f"({text})?" if low == 0 else text
        if low == 1 and high is None:
            return item + "+"
        if low == 0 and high is None:
            return item + "*"
        if max(low, high or 0) > MAX_REPETITION:
            return self._repeat_blocks(item, low, high)
        return f"{item}{{{low},{'' if high is None else high}}}"

    def _repeat_blocks(self, item: str, low: int, high: int | None) -> str:
        """A long repetition: x{0,n} = (x{k}){0,q} x{0,r} with n = k q + r, r >= k - 1."""
        if max(low, high or 0) > MAX_BOUND:
            raise GrammarError(f"a repetition of {max(low, high or 0)} times, over {MAX_BOUND}")
        size = MAX_REPETITION // 2
        block = self.add(f"{sanitize(item).strip('-')}-{size}", f"{item}{{{size}}}")
        n_blocks, n_single = divmod(low, size)
        parts = [f"{block}{{{n_blocks}}}" if n_blocks else "", f"{item}{{{n_single}}}"]
        parts = parts if n_single else parts[:1]
        if high is None:
            parts.append(item + "*")
        elif high - low < MAX_REPETITION:
            parts.append(f"{item}{{0,{high - low}}}")
        else:
            n_blocks, n_single = divmod(high - low + 1 - size, size)
            parts.append(f"{block}{{0,{n_blocks}}} {item}{{0,{n_single + size - 1}}}")
        return "(" + " ".join(part for part in parts if part) + ")"

    def hold(self, name: str) -> str:
        """Return a new name whose text is defined later, by ``fill``."""
        base = sanitize(name)
        if base in self.texts:
            base = self._numbered(base, None)
        self.texts[base] = None
        return base

    def fill(self, name: str, text: str) -> None:
        """Define the text of a name that was held."""
        self._store(name, text)

    def ends(self, name: str) -> bool:
        """Whether a rule matches a text of finite length.

        Rules that were held and not filled yet are taken to do so.
        """
        bodies: dict[str, Expression] = {}
        names = [name]
        while names:
            one = names.pop()
            text = self.texts[one]
            if text is not None and one not in bodies and one not in self._ending:
                bodies[one] = parse_body(text)
                names += references(bodies[one])
        endless = dict.fromkeys(reversed(bodies))  # referenced rules first, which saves rounds
        n_before = 0
        while n_before != len(endless):
            n_before = len(endless)
            for one in list(endless):
                if ends(bodies[one], endless):
                    del endless[one]
                    self._ending.add(one)
        return name not in endless

    def _store(self, name: str, text: str) -> None:
        self.texts[name] = text
        self._n_chars += len(name) + len(text) + 6
        if self._n_chars > MAX_TEXT:
            raise GrammarError(
                f"the grammar has more than {MAX_TEXT} characters; simplify its source"
            )

    def _numbered(self, base: str, text: str | None) -> str:
        number = 0 if text is not None and len(self.texts) < 1000 else self._numbers.get(base, 0)
        while f"{base}{number}" in self.texts:
            if text is not None and self.texts[f"{base}{number}"] == text:
                return f"{base}{number}"
            number += 1
        self._numbers[base] = number
        return f"{base}{number}"

    def rewind(self, n_rules: int) -> None:
        """Remove the rules that were added after the first ``n_rules``."""
        while len(self.texts) > n_rules:
            name, text = self.texts.popitem()
            self._ending.discard(name)
            self._n_chars -= len(name) + len(text or "") + 6 if text is not None else 0

    def text(self) -> str:
        """Return the grammar, its rules sorted by name."""
        return "".join(f"{name} ::= {text}\n" for name, text in sorted(self.texts.items()))


def choices_to_gbnf(choices: Sequence[str]) -> str:
    """Return a grammar of exactly these strings.

    Raises:
        GrammarError: there are none, or one is not a string, or the text gets too long.
    """
    if isinstance(choices, str) or not all(isinstance(choice, str) for choice in choices):
        raise GrammarError(f"choices must be a list of strings, got {choices!r:.80}")
    if not choices:
        raise GrammarError("choices must have at least one string, got none")
    for choice in choices:
        if any("\ud800" <= char <= "\udfff" for char in choice):
            raise GrammarError(f"the choice {choice!r:.80} has a surrogate, which is not text")
    rules = GrammarRules()
    rules.add("root", " | ".join(literal(choice) for choice in dict.fromkeys(choices)))
    return rules.text()
