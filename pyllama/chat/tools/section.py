"""Families that differ in their markers only.

<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{"city": "Oslo"}...  DeepSeek V3.1
<|tool_calls_section_begin|><|tool_call_begin|>functions.get_time:0...                Kimi K2
<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "get_time", "parameters": ...     Command R7B
<TOOLCALL>[{"name": "get_time", "arguments": ...}]</TOOLCALL>                         Nemotron
functools[{"name": "get_time", "arguments": ...}]                                     FireFunction
"""

from __future__ import annotations

from ..reader import ToolCall
from .call_format import CallFormat, JsonCall, NamedCall
from .rules import ToolRules, literal

_DEEPSEEK = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")


def _kimi_head(rules: ToolRules, name: str) -> str:
    return f"{literal(f'functions.{name}:')} [0-9]+"


def _kimi_text(call: ToolCall) -> str:
    return call.id if call.id.startswith("functions.") else f"functions.{call.name}:0"


SECTIONS = (
    CallFormat(
        "deepseek-r1",
        lambda source: "<｜tool▁call▁begin｜>" in source and "```json" in source,
        NamedCall("\n```json\n"),
        section=_DEEPSEEK,
        wrap=("<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "```<｜tool▁call▁end｜>"),
    ),
    CallFormat(
        "deepseek-v3.1",
        lambda source: "<｜tool▁call▁begin｜>" in source,
        NamedCall("<｜tool▁sep｜>"),
        section=_DEEPSEEK,
        wrap=("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
    ),
    CallFormat(
        "kimi-k2",
        lambda source: "<|tool_calls_section_begin|>" in source,
        NamedCall(
            "<|tool_call_argument_begin|>",
            r"(?P<id>functions\.(?P<name>\S+):\d+)",
            _kimi_head,
            _kimi_text,
        ),
        section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        wrap=("<|tool_call_begin|>", "<|tool_call_end|>"),
    ),
    CallFormat(
        "command-r7b",
        lambda source: "<|START_ACTION|>" in source and "<|START_RESPONSE|>" in source,
        JsonCall(
            "tool_name", "parameters", "tool_call_id", id_first=True, id_rule=r'"\"" [0-9]+ "\""'
        ),
        section=("<|START_ACTION|>", "<|END_ACTION|>"),
        array=True,
        content=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    ),
    CallFormat(
        "granite-3",
        lambda source: "<|tool_call|>" in source,
        JsonCall(),
        section=("<|tool_call|>", ""),
        array=True,
    ),
    CallFormat(
        "nemotron",
        lambda source: "<TOOLCALL>" in source,
        JsonCall(),
        section=("<TOOLCALL>", "</TOOLCALL>"),
        array=True,
    ),
    CallFormat(
        "apriel",
        lambda source: "<tool_calls>[" in source,
        JsonCall(),
        section=("<tool_calls>", "</tool_calls>"),
        array=True,
    ),
)
