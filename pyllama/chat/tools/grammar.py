"""The grammar of a reply: tool calls, a response format, and free reasoning before them.

    wish = ReplyRules(call_format, tools, mode="required")
    text, triggers = reply_grammar(wish)

``mode="auto"`` without a response format gives a lazy grammar: free text until a trigger.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import NamedTuple

from ...grammar import Grammar, Trigger
from ..reasoning import Markers, State
from .call_format import ToolCallFormat
from .definitions import Mode, ResponseSchema, Tool
from .rules import LeftOut, Split, ToolRules

log = logging.getLogger(__name__)


class ReplyGrammar(NamedTuple):
    """GBNF text, the triggers of a lazy grammar, and what it does not hold of relaxed schemas."""

    text: str
    triggers: tuple[Trigger, ...] = ()
    left_out: tuple[LeftOut, ...] = ()

    def compile(self) -> Grammar:
        """The grammar for a request. Raises: GrammarError, if it is over the limits."""
        return Grammar(self.text, triggers=self.triggers)


@dataclass(frozen=True)
class ReplyRules:
    """What a reply must consist of.

    Attributes:
        call_format: format of tool calls.
        tools: the tools that may be called.
        mode: whether one may or must be called.
        parallel: whether a reply may have several calls.
        schema: what the content must match; None for free text.
        thinking: markers of the reasoning and where the reply begins; None without reasoning.
        begun: the prompt ends before the arguments of this call.
        split: splits markers at control tokens.
    """

    call_format: ToolCallFormat
    tools: tuple[Tool, ...] = ()
    mode: Mode = "none"
    parallel: bool = False
    schema: ResponseSchema | None = None
    thinking: tuple[Markers, State] | None = None
    begun: Tool | None = None
    split: Split = lambda text: [text]


def reply_grammar(given: ReplyRules) -> ReplyGrammar | None:
    """The grammar of a reply, None if it is free text. What it leaves out of schemas is logged.

    Raises:
        SchemaError: a schema is invalid, or is strict and cannot be a grammar.
    """
    call_format, mode, schema = given.call_format, given.mode, given.schema
    if mode == "none" and schema is None:
        return None
    rules = ToolRules(given.split)
    if given.begun is not None:
        return _finished(rules, given.begun.arguments_rule(rules, "call"))
    calls = call_format.rules(rules, given.tools, given.parallel) if mode != "none" else ""
    if mode == "auto" and schema is None and call_format.lazy:
        found = call_format.triggers(given.tools)
        return _finished(rules, calls, tuple(t for f in found for t in _after(given.thinking, f)))
    ways = [calls] if calls else []
    if mode == "auto":
        ways.append(call_format.response_rule(rules, schema))
    elif schema is not None and mode == "none":
        ways.append(schema.rule(rules, "content"))
    prefix = _thoughts(rules, given.thinking)
    return _finished(rules, f"{prefix}({' | '.join(ways)})")


def call_grammar(tool: Tool) -> Grammar:
    """The grammar of a tool's arguments. Raises: as `reply_grammar` and `ReplyGrammar.compile`."""
    rules = ToolRules()
    return _finished(rules, tool.arguments_rule(rules, "call")).compile()


def content_grammar(schema: ResponseSchema) -> Grammar:
    """The grammar of a content. Raises: as `reply_grammar` and `ReplyGrammar.compile`."""
    rules = ToolRules()
    return _finished(rules, schema.rule(rules, "content")).compile()


def _finished(rules: ToolRules, root: str, triggers: tuple[Trigger, ...] = ()) -> ReplyGrammar:
    """The grammar of some rules; what they do not hold is logged."""
    rules.add("root", root)
    if rules.left_out:
        first, n = rules.left_out[0], len(rules.left_out)
        more = f" (and {n - 1} more)" if n > 1 else ""
        log.warning("a grammar does not hold %s: %s%s", first.place, first.reason, more)
    return ReplyGrammar(rules.text(), triggers, tuple(rules.left_out))


def _thoughts(rules: ToolRules, thinking: tuple[Markers, State] | None) -> str:
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
