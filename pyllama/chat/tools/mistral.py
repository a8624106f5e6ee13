"""Tool calls of Mistral's models: a JSON array, or in newer ones the name and its arguments.

    [TOOL_CALLS][{"name": "get_time", "arguments": {"city": "Oslo"}, "id": "a1b2c3d4e"}]
    [TOOL_CALLS]get_time[CALL_ID]a1b2c3d4e[ARGS]{"city": "Oslo"}

The id has 9 letters or digits; some models of the second kind give none.
"""

from __future__ import annotations

from ..reader import ToolCall
from .call_format import CallFormat, JsonCall, NamedCall
from .rules import ToolRules, literal


def _head_rule(rules: ToolRules, name: str) -> str:
    return f"{literal(name)} ({rules.marker('[CALL_ID]')} [a-zA-Z0-9]{{9}})?"


def _head_text(call: ToolCall) -> str:
    return f"{call.name}[CALL_ID]{call.id}" if call.id else call.name


MISTRAL_ARRAY = CallFormat(
    "mistral",
    lambda source: "[TOOL_CALLS]" in source and "[ARGS]" not in source,
    JsonCall(id="id"),
    section=("[TOOL_CALLS]", ""),
    array=True,
)
MISTRAL_NAMED = CallFormat(
    "mistral-args",
    lambda source: "[TOOL_CALLS]" in source and "[ARGS]" in source,
    NamedCall(
        "[ARGS]",
        r"(?P<name>[^\s\[\]{}]+?)\s*(?:\[CALL_ID\](?P<id>\w+))?",
        _head_rule,
        _head_text,
    ),
    wrap=("[TOOL_CALLS]", ""),
)
