"""The options that hold a generated text to a grammar or a JSON schema.

@grammar_options
def command(**options: Any) -> None:
    grammar = from_options(GrammarOptions, options).parse()
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pyllama.parameters import Flags, row

from ..parameters import parameter_options
from ..paths import read_text

if TYPE_CHECKING:
    from pyllama.grammar import Grammar


@dataclass(frozen=True, eq=False, repr=False)
class GrammarOptions:
    """A grammar or a JSON schema, as text or in a file."""

    # fmt: off
    grammar: str | None = row(None,
        'Grammar that the generated text must match, such as \'root ::= "yes" | "no"\'.',
        Flags("--grammar", metavar="GBNF"))
    grammar_file: Path | None = row(None, "File with a grammar in GBNF.", Flags("--grammar-file"))
    json_schema: str | None = row(None,
        "JSON schema that the generated text must match. {}: any JSON value.",
        Flags("-j", "--json-schema", metavar="SCHEMA"))
    json_schema_file: Path | None = row(None, "File with a JSON schema.",
        Flags("-jf", "--json-schema-file"))
    # fmt: on

    def parse(self) -> Grammar | None:
        """Return the grammar, None without one; an empty text is none.

        Raises:
            GrammarError: a wrong grammar or schema, with the name of its option or file.
            OSError: the file cannot be read.
        """
        sources: list[tuple[str, str | Path | None, Callable[[str], Grammar]]] = [
            ("--grammar", self.grammar, _from_gbnf),
            ("--grammar-file", self.grammar_file, _from_gbnf),
            ("--json-schema", self.json_schema, _from_schema),
            ("--json-schema-file", self.json_schema_file, _from_schema),
        ]
        given = [source for source in sources if source[1]]
        if len(given) > 1:
            flags = " and ".join(flag for flag, _, _ in given)
            raise click.UsageError(f"{flags} cannot be combined: use one of them")
        for flag, value, make in given:
            if isinstance(value, Path):
                return _made(str(value), _read(value), make)
            return _made(flag, str(value), make)
        return None


def _read(path: Path) -> str:
    """The text of a file, without a byte order mark; U+FFFD would change what a grammar matches."""
    from pyllama.errors import GrammarError

    try:
        return read_text(path, "strict")
    except UnicodeDecodeError as error:
        raise GrammarError(f"{path}: not UTF-8 text: {error}; save it as UTF-8") from None


def _made(source: str, text: str, make: Callable[[str], Grammar]) -> Grammar:
    from pyllama.errors import GrammarError

    try:
        return make(text)
    except GrammarError as error:
        raise type(error)(f"{source}: {error}") from None


def _from_gbnf(text: str) -> Grammar:
    from pyllama.grammar import Grammar

    return Grammar(text)


def _from_schema(text: str) -> Grammar:
    from pyllama.grammar import Grammar

    return Grammar.from_json_schema(text)


grammar_options = parameter_options(GrammarOptions, section="Grammar")
