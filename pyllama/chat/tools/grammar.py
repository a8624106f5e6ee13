"""The grammar of a reply: tool calls, a response format, and free reasoning before them.

    wish = ReplyRules(family, tools, mode="required")
    text, triggers = reply_grammar(wish)

``mode="auto"`` without a response format gives a lazy grammar: free text until a trigger.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...grammar import Grammar, Trigger
from ..reasoning import Markers, State
from .call_format import Family
from .definitions import Mode, Tool
from .rules import Rules, Split


class ReplyGrammar(NamedTuple):
    """GBNF text, and the triggers of a lazy grammar."""

    text: str
    triggers: tuple[Trigger, ...] = ()

    def compile(self) -> Grammar:
        """The grammar for a request. Raises: GrammarError, if it is over the limits."""
        return Grammar(self.text, triggers=self.triggers)


@dataclass(frozen=True)
class ReplyRules:
    """What a reply must consist of.

    Attributes:
        family: format of tool calls.
        tools: the tools that may be called.
        mode: whether one may or must be called.
        parallel: whether a reply may have several calls.
        schema: JSON schema of the content; None for free text.
        thinking: markers of the reasoning and where the reply begins; None without reasoning.
        begun: the prompt ends before the arguments of this call.
        split: splits markers at control tokens.
    """

    family: Family
    tools: tuple[Tool, ...] = ()
    mode: Mode = "none"
    parallel: bool = False
    schema: Mapping[str, Any] | bool | None = None
    thinking: tuple[Markers, State] | None = None
    begun: Tool | None = None
    split: Split = lambda text: [text]


def reply_grammar(given: ReplyRules) -> ReplyGrammar | None:
    """The grammar of a reply, None if it is free text.

    Raises:
        SchemaError: a schema is invalid, or cannot be a grammar.
    """
    family, mode, schema = given.family, given.mode, given.schema
    if mode == "none" and schema is None:
        return None
    rules = Rules(given.split)
    if given.begun is not None:
        rules.add("root", given.begun.arguments_rule(rules, "call"))
        return ReplyGrammar(rules.text())
    calls = family.rules(rules, given.tools, given.parallel) if mode != "none" else ""
    if mode == "auto" and schema is None and family.lazy:
        rules.add("root", calls)
        found = family.triggers(given.tools)
        return ReplyGrammar(
            rules.text(), tuple(t for f in found for t in _after(given.thinking, f))
        )
    ways = [calls] if calls else []
    if mode == "auto":
        ways.append(family.response_rule(rules, schema))
    elif schema is not None and mode == "none":
        ways.append(rules.schema("content", schema, "response_format"))
    prefix = _thoughts(rules, given.thinking)
    rules.add("root", f"{prefix}({' | '.join(ways)})")
    return ReplyGrammar(rules.text())


def _thoughts(rules: Rules, thinking: tuple[Markers, State] | None) -> str:
    """A grammar expression for the reasoning before the rest of a reply."""
    if thinking is None or thinking[1] == "after":
        return ""
    markers, state = thinking
    through = rules.through("thoughts", markers.end)
    if state == "inside":
        return f"{through} space "
    return f"(space {rules.marker(markers.start)} {through} space)? "


def _after(thinking: tuple[Markers, State] | None, trigger: Trigger) -> list[Trigger]:
    """The trigger, without effect in the reasoning: after it, and in a reply without it."""
    if thinking is None or thinking[1] == "after":
        return [trigger]
    start, end = (re.escape(m) for m in (thinking[0].start, thinking[0].end))
    heads = [rf"[\s\S]*?{end}"]
    if thinking[1] == "before":
        heads = [rf"\s*{start}{heads[0]}", rf"(?!\s*{start})"]
    value = str(trigger.value)
    rest = rf"[\s\S]*?({re.escape(value)}[\s\S]*)" if trigger.kind == "word" else value
    return [Trigger("pattern_full", head + rest) for head in heads]
