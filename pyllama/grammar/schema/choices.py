"""A list of strings as a grammar that accepts exactly one of them.

choices_to_gbnf(["yes", "no"])    # 'root ::= "yes" | "no"\n'
"""

from __future__ import annotations

from collections.abc import Sequence

from pyllama.errors import GrammarError
from pyllama.grammar.gbnf_writer import GrammarRules, literal


def choices_to_gbnf(choices: Sequence[str]) -> str:
    """Return a grammar whose sentences are the given strings.

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
