"""`LlamaGrammar`, llama-cpp-python's name for a grammar.

grammar = LlamaGrammar.from_string('root ::= "yes" | "no"')
llama("Is water wet?", grammar=grammar)
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

from ..errors import GrammarError
from ..grammar import Grammar


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
            text = Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise GrammarError(f"{file}: {error}") from None
        try:
            return cls(text)
        except GrammarError as error:
            raise GrammarError(f"{file}: {error}") from None

    def reset(self) -> None:
        """Does nothing: each generation has a state of its own."""
