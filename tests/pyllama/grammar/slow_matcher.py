"""An independent matcher for tests: all stacks of a grammar, one code point at a time.

    matcher = SlowMatcher(rules, "root")        # rules: name -> expression, see below
    stacks = matcher.start()
    stacks, pending = matcher.advance(stacks, b"", b"caf\xc3")

Expressions are tuples: ("text", str), ("chars", ranges), ("ref", name), ("seq", *items),
("or", *options), ("rep", item, least, most), ("token", id, negated). A stack is a linked list of
expressions that the rest of the text must match, as in llama.cpp.
"""

from __future__ import annotations

from typing import Any

Expression = tuple[Any, ...]
Stack = tuple[Any, ...] | None  # (expression, rest)
EVERYTHING = ((0, 0x10FFFF),)
_MOST = 2000  # stacks that may be looked at for one character


class TooSlow(Exception):
    """The grammar has more stacks than can be looked at: repetitions of repetitions."""


class SlowMatcher:
    """Sets of stacks, each None (the end) or with a terminal on top."""

    def __init__(self, rules: dict[str, Expression], root: str) -> None:
        self.rules, self.root = rules, root

    def start(self) -> set[Stack]:
        return self.expand({(("ref", self.root), None)})

    def expand(self, stacks: set[Stack]) -> set[Stack]:
        found: set[Stack] = set()
        seen: set[Stack] = set()
        todo = list(stacks)
        while todo:
            stack = todo.pop()
            if stack in seen:
                continue
            seen.add(stack)
            if len(seen) > _MOST:
                raise TooSlow
            if stack is None:
                found.add(stack)
                continue
            (kind, *rest), below = stack
            if kind == "text":
                text = rest[0]
                if not text:
                    todo.append(below)
                else:
                    after = (("text", text[1:]), below) if text[1:] else below
                    found.add((("chars", ((ord(text[0]), ord(text[0])),)), after))
            elif kind == "ref":
                todo.append((self.rules[rest[0]], below))
            elif kind == "seq":
                for item in reversed(rest):
                    below = (item, below)
                todo.append(below)
            elif kind == "or":
                todo += [(option, below) for option in rest]
            elif kind == "rep":
                item, least, most = rest
                if least == 0:
                    todo.append(below)
                if most is None or most > 0:
                    again = ("rep", item, max(0, least - 1), None if most is None else most - 1)
                    todo.append((item, (again, below)))
            else:
                found.add(stack)
        return found

    def advance(self, stacks: set[Stack], pending: bytes, text: bytes) -> tuple[set[Stack], bytes]:
        """The stacks after some bytes, and the bytes of an unfinished character."""
        for byte in text:
            pending += bytes([byte])
            char = _decode(pending)
            if char is not None:
                stacks, pending = self.accept(stacks, char, char), b""
            else:
                span = _span(pending)
                if span is None or not self.accept(stacks, *span):
                    return set(), b""
        return stacks, pending

    def accept(self, stacks: set[Stack], low: int, high: int) -> set[Stack]:
        """The stacks after any character of low to high."""
        after = set()
        for stack in stacks:
            if stack is not None and stack[0][0] == "chars":
                for first, last in stack[0][1]:
                    if any(
                        max(first, a) <= min(last, b)
                        for a, b in ((low, min(high, 0xD7FF)), (max(low, 0xE000), high))
                    ):
                        after.add(stack[1])
        return self.expand(after)

    def advance_token(
        self, stacks: set[Stack], pending: bytes, token: int, text: bytes
    ) -> tuple[set[Stack], bytes]:
        """The stacks after a token, as its text or as a token that the grammar names."""
        after, rest = self.advance(stacks, pending, text) if text else (set(), b"")
        if not pending:
            named = set()
            for stack in stacks:
                if stack is not None and stack[0][0] == "token":
                    _, wanted, negated = stack[0]
                    if (token != wanted and text) if negated else token == wanted:
                        named.add(stack[1])
            if named:
                assert not after or not rest, "a test must not mix these"
                after = after | self.expand(named)
        return after, rest


def _decode(data: bytes) -> int | None:
    try:
        return ord(data.decode())
    except UnicodeDecodeError:
        return None


def _span(data: bytes) -> tuple[int, int] | None:
    """First and last code point whose UTF-8 begins with these bytes, None if there is none."""
    first = data[0]
    n = 2 if 0xC2 <= first <= 0xDF else 3 if 0xE0 <= first <= 0xEF else 4
    if not 0xC2 <= first <= 0xF4 or len(data) >= n or any(b >> 6 != 2 for b in data[1:]):
        return None
    value = first & (0x7F >> n)
    for byte in data[1:]:
        value = value << 6 | byte & 0x3F
    shift = 6 * (n - len(data))
    least = {2: 0x80, 3: 0x800, 4: 0x10000}[n]
    low, high = max(value << shift, least), min((value + 1 << shift) - 1, 0x10FFFF)
    if low > high or (low >= 0xD800 and high <= 0xDFFF):
        return None
    return low, high


def to_gbnf(rules: dict[str, Expression]) -> str:
    """The rules in GBNF."""
    return "\n".join(f"{name} ::= {_text(body)}" for name, body in rules.items())


def _text(node: Expression) -> str:
    kind, *rest = node
    if kind == "text":
        return '"' + "".join(map(_char, rest[0])) + '"'
    if kind == "chars":
        return "[" + "".join(f"{_char(chr(a))}-{_char(chr(b))}" for a, b in rest[0]) + "]"
    if kind == "ref":
        return str(rest[0])
    if kind == "seq":
        return "(" + " ".join(map(_text, rest)) + ")"
    if kind == "or":
        return "(" + " | ".join(map(_text, rest)) + ")"
    if kind == "rep":
        item, least, most = rest
        return f"({_text(item)}){{{least},{'' if most is None else most}}}"
    return f"{'!' * rest[1]}<[{rest[0]}]>"


def _char(char: str) -> str:
    if char in '"\\[]-^':
        return {"^": "\\x5E"}.get(char, "\\" + char)
    return char if 0x20 <= ord(char) < 0x7F else f"\\U{ord(char):08X}"
