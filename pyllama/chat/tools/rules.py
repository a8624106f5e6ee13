"""Builds the rules of a GBNF grammar for a reply.

    rules = ToolRules(split)
    rules.add("root", f"{rules.marker('<tool_call>')} space {rules.schema('args', schema, 'x')}")
    rules.text()

Markers that are control tokens of the vocabulary are written as tokens (``<[151657]>``), since
control tokens never match text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from ...errors import SchemaError
from ...grammar.automaton import MAX_RULES
from ...grammar.gbnf import MAX_CHARS
from ...grammar.gbnf_writer import class_items, literal
from ...grammar.schema.json_schema import SPACE_RULE, relaxed_gbnf, schema_to_gbnf

T = TypeVar("T")
Split = Callable[[str], list[str | int]]
"""Splits a marker into texts and ids of control tokens."""

SPACE = r"(?:| |\n{1,2}[ \t]{0,20})"
"""The rule ``space`` of a grammar as a regular expression."""

_SPARE_RULES = 4096  # for what is around schemas: 1024 tools
ANY_TEXT = "[^\\x00]*"
"""A grammar expression for any text."""
_IN_GRAMMAR = re.compile(
    r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|!?<[^>]*>|#[^\n]*|\{[^}]*\}|[A-Za-z0-9-]+'
)


class LeftOut(NamedTuple):
    """A part of a schema that a grammar does not hold.

    Attributes:
        place: the field of the schema, and the JSON pointer to a keyword or an inner schema.
        reason: the error that it would be in a strict schema.
    """

    place: str
    reason: str


class ToolRules:
    """Rules by name.

    Args:
        split: splits markers at control tokens.

    Attributes:
        left_out: what the rules do not hold of relaxed schemas.
    """

    def __init__(self, split: Split = lambda text: [text]) -> None:
        self._split = split
        self.left_out: list[LeftOut] = []
        self._rules: dict[str, str] = {"root": "", "space": SPACE_RULE}

    def add(self, name: str, body: str) -> str:
        """Add a rule; returns its name."""
        self._rules[name] = body
        return name

    def calls(self, tools: Iterable[T], rule: Callable[[T, str], str]) -> str:
        """Add a rule for a call of each tool; returns the alternatives.

        Args:
            rule: gives the text of a tool's rule, of which it gets the name.
        """
        names = {f"call-{i}": tool for i, tool in enumerate(tools)}
        return " | ".join(self.add(name, rule(tool, name)) for name, tool in names.items())

    def text(self) -> str:
        """The grammar."""
        return "".join(f"{name} ::= {body}\n" for name, body in self._rules.items())

    def marker(self, text: str) -> str:
        """A marker: literals, and control tokens."""
        parts = self._split(text)
        return " ".join(f"<[{p}]>" if isinstance(p, int) else literal(p) for p in parts)

    def schema(
        self, name: str, schema: Mapping[str, Any] | bool, what: str, *, relaxed: str = ""
    ) -> str:
        """Add the rules of a JSON schema; returns the name of the first.

        Args:
            what: name of the schema in an error.
            relaxed: name of the field in ``left_out``, where what a grammar cannot hold is noted;
                empty: it is an error.

        Raises:
            SchemaError: the schema is invalid, or cannot be a grammar.
        """
        try:
            if not relaxed:
                return self.embed(name, schema_to_gbnf(schema))
            text, left_out = relaxed_gbnf(schema)
            if not self._has_room(text):
                reason = "with the schemas before, it is too large for a grammar"
                types = schema.get("type", "object") if isinstance(schema, Mapping) else "object"
                text, left_out = schema_to_gbnf({"type": types}), {"": reason}
        except SchemaError as error:
            raise SchemaError(f"{what}: {error}") from None
        self.left_out += [LeftOut(f"{relaxed}#{at}", reason) for at, reason in left_out.items()]
        return self.embed(name, text)

    def _has_room(self, text: str) -> bool:
        n_chars = sum(map(len, self._rules.values())) + len(text)
        n_rules = len(self._rules) + text.count("\n")
        return n_rules <= MAX_RULES - _SPARE_RULES and n_chars <= MAX_CHARS // 2

    def embed(self, name: str, grammar: str) -> str:
        """Add a whole grammar, its rules renamed to begin with ``name``; returns its root."""

        def renamed(match: re.Match[str]) -> str:
            word = match[0]
            return f"{name}-{word}" if word[0].isalnum() else "" if word[0] == "#" else word

        for line in _IN_GRAMMAR.sub(renamed, grammar).splitlines():
            rule, found, body = line.partition("::=")
            if found:
                last = rule.strip()
                self._rules[last] = body.strip()
            elif line.strip():  # a rule may have several lines
                self._rules[last] += " " + line.strip()
        return f"{name}-root"

    def through(self, name: str, marker: str) -> str:
        """Add rules for any text up to the first of this marker, and the marker."""
        if self._split(marker) != [marker]:
            return self.add(name, f"{ANY_TEXT} {self.marker(marker)}")
        chars = sorted(set(marker))
        others = f"[^{class_items((ord(char), ord(char)) for char in chars)}]"
        states = [name, *(f"{name}-{i}" for i in range(1, len(marker)))]
        for i, state in enumerate(states):  # i characters of the marker have been read
            ways = []
            for char in chars:
                read = marker[:i] + char
                n = next(
                    n for n in range(len(read), -1, -1) if marker.startswith(read[i + 1 - n :])
                )
                ways.append(f"{literal(char)} {states[n]}" if n < len(marker) else literal(char))
            self.add(state, " | ".join([f"{others} {name}", *ways]))
        return name
