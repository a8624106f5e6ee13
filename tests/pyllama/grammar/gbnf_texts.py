"""A small independent reading of GBNF for tests: recognises texts and samples random ones.

texts = Gbnf('root ::= "a" [0-9]{2}')
texts.accepts("a12")
texts.sample(random.Random(1))
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

ESCAPE = r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[trn\\\"\[\]-])"
TOKEN = re.compile(
    rf'\s*(?:(?P<literal>"(?:{ESCAPE}|[^"\\])*")|(?P<set>\[\^?(?:{ESCAPE}|[^\]\\])*\])'
    r"|(?P<times>\{\d+(?:,\d*)?\}|[*+?])|(?P<mark>[()|.])|(?P<name>[a-zA-Z0-9-]+))",
    re.DOTALL,
)
CHAR = re.compile(f"{ESCAPE}|.", re.DOTALL)


@dataclass(eq=False)
class Item:
    kind: str  # char, set, rule, sequence, choice, repeat
    value: Any = None
    parts: list[Item] = field(default_factory=list)
    low: int = 0
    high: float = math.inf
    height: float = math.inf  # of the lowest tree that ends


def unescape(text: str) -> str:
    if text[0] != "\\" or len(text) == 1:
        return text
    if text[1] in "xuU":
        return chr(int(text[2:], 16))
    return {"t": "\t", "r": "\r", "n": "\n"}.get(text[1], text[1])


def parse_set(text: str) -> tuple[bool, list[tuple[str, str]]]:
    inner = text[1:-1]
    negated = inner.startswith("^")
    chars = CHAR.findall(inner[negated:])
    ranges, at = [], 0
    while at < len(chars):
        if at + 2 < len(chars) and chars[at + 1] == "-":
            ranges.append((unescape(chars[at]), unescape(chars[at + 2])))
            assert ranges[-1][0] <= ranges[-1][1], text
            at += 3
        else:
            ranges.append((unescape(chars[at]), unescape(chars[at])))
            at += 1
    return negated, ranges


class Gbnf:
    def __init__(self, text: str) -> None:
        self.rules: dict[str, Item] = {}
        for line in text.splitlines() if "\u2028" not in text else text.split("\n"):
            name, _, body = line.partition(" ::= ")
            if line.strip():
                assert re.fullmatch("[a-zA-Z0-9-]+", name) and name not in self.rules, line
                tokens = self.tokens(body)
                self.rules[name] = self.choice(tokens)
                assert not tokens, line
        self.all = [item for rule in self.rules.values() for item in self.walk(rule)]
        for item in self.all:
            assert item.kind != "rule" or item.value in self.rules, f"no rule {item.value}"
        self.heights()

    def tokens(self, body: str) -> list[tuple[str, str]]:
        found, at = [], 0
        body = body.rstrip(" ")
        while at < len(body):
            match = TOKEN.match(body, at)
            assert match, f"at {body[at : at + 40]!r} of {body!r:.200}"
            assert match.lastgroup
            found.append((match.lastgroup, match[match.lastgroup]))
            at = match.end()
        return found[::-1]

    def choice(self, tokens: list[tuple[str, str]]) -> Item:
        options = [self.sequence(tokens)]
        while tokens and tokens[-1] == ("mark", "|"):
            tokens.pop()
            options.append(self.sequence(tokens))
        return options[0] if len(options) == 1 else Item("choice", parts=options)

    def sequence(self, tokens: list[tuple[str, str]]) -> Item:
        parts: list[Item] = []
        while tokens and tokens[-1] not in (("mark", "|"), ("mark", ")")):
            kind, text = tokens.pop()
            if kind == "literal":
                chars = [Item("char", unescape(c)) for c in CHAR.findall(text[1:-1])]
                parts.append(Item("sequence", parts=chars))
            elif kind == "set":
                parts.append(Item("set", parse_set(text)))
            elif kind == "name":
                parts.append(Item("rule", text))
            elif kind == "times":
                bounds = {"*": "0,", "+": "1,", "?": "0,1"}.get(text, text[1:-1])
                low, comma, high = bounds.partition(",")
                most = float(high) if high else math.inf if comma else float(low)
                assert int(low) <= 2000 and (most <= 2000 or most == math.inf), text
                parts.append(Item("repeat", parts=[parts.pop()], low=int(low), high=most))
            elif text == "(":
                parts.append(self.choice(tokens))
                assert tokens.pop() == ("mark", ")")
            else:
                assert text == "."
                parts.append(Item("set", (True, [])))
        return parts[0] if len(parts) == 1 else Item("sequence", parts=parts)

    def walk(self, item: Item) -> Iterator[Item]:
        yield item
        for part in item.parts:
            yield from self.walk(part)

    def heights(self) -> None:
        changed = True
        while changed:
            changed = False
            for item in reversed(self.all):
                height = self.height(item)
                changed |= height < item.height
                item.height = min(height, item.height)

    def height(self, item: Item) -> float:
        if item.kind in ("char", "set"):
            return 0
        if item.kind == "rule":
            return self.rules[item.value].height + 1
        heights = [part.height for part in item.parts]
        if item.kind == "choice":
            return min(heights)
        return 0 if item.kind == "repeat" and item.low == 0 else max(heights, default=0)

    @property
    def is_productive(self) -> bool:
        return self.rules["root"].height < math.inf

    def accepts(self, text: str) -> bool:
        memo: dict[tuple[Item, int], frozenset[int]] = {}

        def ends(item: Item, at: int) -> frozenset[int]:
            key = (item, at)
            if key not in memo:
                memo[key] = frozenset()  # left recursion ends here
                memo[key] = frozenset(compute(item, at))
            return memo[key]

        def compute(item: Item, at: int) -> set[int] | frozenset[int]:
            if item.kind in ("char", "set"):
                return {at + 1} if at < len(text) and self.has(item, text[at]) else set()
            if item.kind == "rule":
                return ends(self.rules[item.value], at)
            if item.kind == "choice":
                return {end for part in item.parts for end in ends(part, at)}
            if item.kind == "sequence":
                reached = {at}
                for part in item.parts:
                    reached = {end for start in reached for end in ends(part, start)}
                return reached
            reached, found, times = {at}, {at} if item.low == 0 else set(), 0
            while reached and times < item.high:
                reached = {end for start in reached for end in ends(item.parts[0], start)}
                times += 1
                if times >= item.low:
                    if reached <= found:
                        break
                    found |= reached
            return found

        return len(text) in ends(self.rules["root"], 0)

    def has(self, item: Item, char: str) -> bool:
        if item.kind == "char":
            return bool(char == item.value)
        negated, ranges = item.value
        return bool(negated != any(low <= char <= high for low, high in ranges))

    def sample(self, rng: random.Random, budget: int = 60) -> str:
        """A random text; after ``budget`` characters, the lowest trees are chosen."""
        out: list[str] = []

        def write(item: Item) -> None:
            is_late = len(out) > budget
            if item.kind == "char":
                out.append(item.value)
            elif item.kind == "set":
                out.append(self.pick(item, rng))
            elif item.kind == "rule":
                write(self.rules[item.value])
            elif item.kind == "choice":
                options = [part for part in item.parts if part.height < math.inf]
                low = min(part.height for part in options)
                if is_late:
                    options = [part for part in options if part.height == low]
                write(rng.choice(options))
            elif item.kind == "sequence":
                for part in item.parts:
                    write(part)
            elif item.parts[0].height < math.inf:
                times = item.low
                while times < item.high and not is_late and rng.random() < 0.6:
                    times += 1
                for _ in range(times):
                    write(item.parts[0])

        write(self.rules["root"])
        return "".join(out)

    def pick(self, item: Item, rng: random.Random) -> str:
        negated, ranges = item.value
        if not negated:
            low, high = rng.choice(ranges)
            return chr(rng.randint(ord(low), ord(high)))
        while True:
            char = chr(rng.choice((rng.randrange(0x20, 0x7F), rng.randrange(0x110000), 0xE9)))
            if not "\ud800" <= char <= "\udfff" and self.has(item, char):
                return char
