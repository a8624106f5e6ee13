"""`LlamaGrammar`, llama-cpp-python's name for a grammar.

grammar = LlamaGrammar.from_string('root ::= "yes" | "no"')
llama("Is water wet?", grammar=grammar)
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from ..errors import GrammarError
from ..grammar import Grammar
from ..grammar.gbnf import MAX_CHARS
from ..inputs.text import read_text


class LlamaGrammar(Grammar):
    """A grammar with llama-cpp-python's constructors."""

    @classmethod
    def from_string(cls, grammar: str, verbose: bool = True) -> Self:
        """A grammar from GBNF. ``verbose`` has no effect.

        Raises:
            GrammarError: see `Grammar`.
        """
        return cls(grammar)

    @classmethod
    def from_file(cls, file: str | Path, verbose: bool = True) -> Self:
        """A grammar from a GBNF file. ``verbose`` has no effect.

        Raises:
            GrammarError: the file cannot be read, or see `Grammar`.
        """
        try:
            text = read_text(file, 4 * MAX_CHARS, "strict")
        except OSError as error:
            raise GrammarError(f"{file}: {error.strerror}") from None
        except UnicodeDecodeError as error:
            raise GrammarError(f"{file}: not UTF-8 text: {error}; save it as UTF-8") from None
        try:
            return cls(text)
        except GrammarError as error:
            raise GrammarError(f"{file}: {error}") from None

    @classmethod
    def from_json_schema(
        cls, json_schema: Mapping[str, Any] | bool | str, verbose: bool = True
    ) -> Self:
        """A grammar from a JSON schema or its text. ``verbose`` has no effect.

        Raises:
            SchemaError, GrammarError: see `Grammar.from_json_schema`.
        """
        return super().from_json_schema(json_schema)

    @property
    def _grammar(self) -> str:
        """Its GBNF: llama-cpp-python's name, which integrations read."""
        return self.text

    def reset(self) -> None:
        """Does nothing: each generation has a state of its own."""
