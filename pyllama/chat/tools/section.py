"""Families that differ in their markers only.

<tool_call>{"name": "get_time", "arguments": {"city": "Oslo"}}</tool_call>           Hermes, Qwen
{"name": "get_time", "parameters": {"city": "Oslo"}}                          Llama 3.1 to 3.3
[TOOL_CALLS][{"name": "get_time", "arguments": ..., "id": "a1b2c3d4e"}]                Mistral
[TOOL_CALLS]get_time[CALL_ID]a1b2c3d4e[ARGS]{"city": "Oslo"}                     newer Mistral
<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{"city": "Oslo"}...  DeepSeek V3.1
<|tool_calls_section_begin|><|tool_call_begin|>functions.get_time:0...                Kimi K2
<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "get_time", "parameters": ...     Command R7B
<TOOLCALL>[{"name": "get_time", "arguments": ...}]</TOOLCALL>                         Nemotron
functools[{"name": "get_time", "arguments": ...}]                                     FireFunction

Hermes' form is also that of Qwen 2.5 and 3, MiMo and Granite 4; templates that write the arguments
in tags of their own (Qwen3-Coder, GLM) are not of it. In Llama's ``<|python_tag|>`` may precede the
object, which is the whole reply; one that names no known function is content. Mistral's ids have 9
letters or digits; some newer models give none.
"""

from __future__ import annotations

from ...grammar.gbnf_writer import literal
from .call_format import CallFormat, JsonCall, NamedCall

_DEEPSEEK = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")


SECTIONS = (
    CallFormat(
        "mistral-args",
        lambda source: "[TOOL_CALLS]" in source and "[ARGS]" in source,
        NamedCall(
            "[ARGS]",
            r"(?P<name>[^\s\[\]{}]+?)\s*(?:\[CALL_ID\](?P<id>\w+))?",
            lambda rules, name: f"{literal(name)} ({rules.marker('[CALL_ID]')} [a-zA-Z0-9]{{9}})?",
            lambda call: f"{call.name}[CALL_ID]{call.id}" if call.id else call.name,
        ),
        wrap=("[TOOL_CALLS]", ""),
    ),
    CallFormat(
        "mistral",
        lambda source: "[TOOL_CALLS]" in source and "[ARGS]" not in source,
        JsonCall(id="id"),
        section=("[TOOL_CALLS]", ""),
        array=True,
    ),
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
            lambda rules, name: f"{literal(f'functions.{name}:')} [0-9]+",
            lambda call: (
                call.id if call.id.startswith("functions.") else f"functions.{call.name}:0"
            ),
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
    CallFormat(
        "hermes",
        lambda source: (
            "<tool_call>" in source
            and ('"name"' in source or '\\"name\\"' in source)
            and not any(tag in source for tag in ("<function=", "<arg_key>", "<parameter="))
        ),
        JsonCall(),
        wrap=("<tool_call>", "</tool_call>"),
    ),
    CallFormat(
        "llama3",
        lambda source: (
            "<|start_header_id|>" in source and '{"name": function name, "parameters"' in source
        ),
        JsonCall(arguments="parameters", has_type=True),
        wrap=("<|python_tag|>", ""),
        bare=True,
    ),
)
