"""Constrained decoding: a grammar, and which tokens it allows at each step of a generation.

    grammar = Grammar('root ::= [0-9]{4} "-" [0-9]{2} "-" [0-9]{2}')
    matcher = grammar.matcher(tokenizer)
    while not matcher.is_accepting:
        matcher.accept(best_token(logits, matcher.mask()))

The text of a grammar (`gbnf`) becomes an automaton over bytes (`automaton`), whose deterministic
states are made when a generation visits them (`lazy_dfa`). The vocabulary is a set of prefix trees
(`vocabulary`), and a state's mask is one walk through them (`masks`).
"""

from .grammar import Grammar
from .matcher import Matcher
from .trigger import Trigger

__all__ = ["Grammar", "Matcher", "Trigger"]
