r"""Regular expressions as grammars.

    regex_to_gbnf(r"(\d{3}-)?\d{4}")    # a grammar of the texts that match as a whole

``pyllama.grammar.regex_syntax`` says which syntax is supported.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyllama.errors import GrammarError
from pyllama.grammar.gbnf_writer import GrammarRules
from pyllama.grammar.regex_syntax import (
    Anchor,
    Char,
    Group,
    Node,
    RegexChars,
    RegexChoice,
    RegexRepeat,
    Sequence_,
    has_anchor,
    has_empty_loop,
    parse_regex,
    strip_anchors,
)
from pyllama.grammar.spelling import PLAIN_TEXT, PlainText
from pyllama.grammar.string_automaton import Expression, StringAutomaton, write_automaton


class GbnfWriter:
    """Writes a tree without anchors as GBNF, in the layout of llama.cpp's converter."""

    def __init__(self, rules: GrammarRules, name: str, spelling: PlainText) -> None:
        self.rules, self.name, self.spelling = rules, name, spelling
        self.repeated: dict[str, str] = {}  # text -> its rule

    def write(self, node: Node) -> str:
        match node:
            case RegexChoice(options):
                return " | ".join(self.write(option) for option in options)
            case Sequence_(parts):
                return self.sequence(parts)
        return self.sequence((node,))

    def sequence(self, parts: Sequence[Node]) -> str:
        texts: list[str] = []
        run: list[Char] = []
        for part in (*parts, None):
            if isinstance(part, Char):
                run.append(part)
                continue
            if run:
                texts.append(self.literal(run))
                run = []
            if part is not None:
                texts.append(self.atom(part))
        return " ".join(texts) or '""'

    def literal(self, run: Sequence[Char]) -> str:
        texts = [self.spelling.literal(chr(char.code))[1:-1] for char in run]
        pieces = [r"\-" if c.is_escaped else text for c, text in zip(run, texts, strict=True)]
        return f'"{"".join(pieces)}"'

    def atom(self, node: Node) -> str:
        match node:
            case Char():
                return self.literal([node])
            case RegexChars():
                texts = self.spelling.chars(node.items)
                text = texts[0] if len(texts) == 1 else f"({' | '.join(texts)})"
                return self.rules.add(node.name, " | ".join(texts)) if node.name else text
            case Group(inner):
                return f"({self.write(inner)})"
            case RegexRepeat(item, low, high):
                return self.repeat(item, low, high)
            case Anchor():
                raise AssertionError("an anchor in a tree that is written without an automaton")
        return f"({self.write(node)})"

    def repeat(self, item: Node, low: int, high: int | None) -> str:
        text = self.atom(item)
        if (low, high) not in ((0, None), (1, None), (0, 1)) and not isinstance(item, Char):
            if text not in self.repeated:
                number = len(self.repeated) + 1
                self.repeated[text] = self.rules.add(f"{self.name}-{number}", text)
            text = self.repeated[text]
        return self.rules.repeat(text, low, high) or '""'


def regex_to_gbnf(pattern: str) -> str:
    """Return a grammar of the texts that match a regular expression as a whole.

    Raises:
        GrammarError: a syntax error or an unsupported construct, with its column; or it is too
            large.
    """
    rules = GrammarRules()
    node = parse_regex(pattern)
    options = node.options if isinstance(node, RegexChoice) else (node,)
    inner = tuple(strip_anchors(option)[0] for option in options)
    stripped: Node = RegexChoice(inner) if len(inner) > 1 else inner[0]
    if has_anchor(stripped) or has_empty_loop(stripped):
        automaton = StringAutomaton([Expression(node, whole=True)])
        if automaton.is_empty:
            raise GrammarError(f"regular expression {pattern!r:.80} matches no text")
        rules.add("root", write_automaton(automaton, rules, "root", PLAIN_TEXT, end='""'))
    else:
        rules.add("root", GbnfWriter(rules, "root", PLAIN_TEXT).write(stripped))
    return rules.text()
