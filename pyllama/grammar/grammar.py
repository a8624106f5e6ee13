"""A grammar: what a generated text may be, independent of any vocabulary.

    grammar = Grammar('root ::= "yes" | "no"')
    matcher = grammar.matcher(tokenizer)        # the state of one generation

A lazy grammar has triggers: a text is free until it has one of them, and from the trigger on it
must match. Grammars are immutable, compare by value, and may be shared by threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from ..errors import GrammarError, SchemaError
from ..tokenizer import Tokenizer
from .automaton import Automaton, build
from .gbnf import parse
from .masks import Masks
from .matcher import Matcher
from .trigger import Trigger


class Grammar:
    """A grammar in GBNF.

    Args:
        text: the rules, see ``docs/grammars.md``.
        root: the rule that the text matches.
        triggers: of a lazy grammar; without any, the grammar holds from the first token.

    Attributes:
        text, root, triggers: the arguments.

    Raises:
        GrammarError: a syntax error with line and column, an undefined rule, left recursion, a
            rule without a finite text, a grammar over the limits, or a trigger that is not a
            regular expression.
    """

    def __init__(
        self,
        text: str,
        *,
        root: str = "root",
        triggers: Sequence[Trigger] = (),
    ) -> None:
        self.text, self.root = text, root
        self.triggers = tuple(triggers)
        self.automaton: Automaton = build(parse(text), root, text)

    @classmethod
    def from_json_schema(cls, schema: Mapping[str, Any] | bool | str) -> Self:
        """A grammar of the JSON texts that are valid for a schema.

        Args:
            schema: the schema, or its JSON text.

        Raises:
            SchemaError: the schema is invalid, or a grammar cannot express it.
        """
        from .schema.json_schema import schema_to_gbnf

        text = schema_to_gbnf(schema)
        try:
            return cls(text)
        except GrammarError as error:
            raise SchemaError(f"JSON schema: in its grammar, {error}") from None

    @classmethod
    def from_regex(cls, pattern: str) -> Self:
        """A grammar of the texts that a regular expression matches as a whole.

        Raises:
            GrammarError: the expression is invalid, not supported, or over the limits.
        """
        from .regex import regex_to_gbnf

        return cls(regex_to_gbnf(pattern))

    @classmethod
    def from_choices(cls, choices: Sequence[str]) -> Self:
        """A grammar of some texts.

        Raises:
            GrammarError: there are no choices, or too many.
        """
        from .gbnf_writer import choices_to_gbnf

        return cls(choices_to_gbnf(choices))

    def matcher(self, tokenizer: Tokenizer) -> Matcher:
        """The state of one generation with a tokenizer's tokens.

        Raises:
            GrammarError: the grammar names a token that the tokenizer lacks.
        """
        masks = Masks.of(self.text, self.root, self.automaton, tokenizer)
        return Matcher(masks, tokenizer, self.triggers)

    def _key(self) -> tuple[object, ...]:
        return self.text, self.root, self.triggers

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Grammar) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return f"<Grammar of {len(self.text)} characters, root {self.root!r}>"
