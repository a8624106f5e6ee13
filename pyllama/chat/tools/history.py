"""Rewrites tool calls, results and definitions of a conversation as its template wants them.

    messages = read_messages(messages)             # checked, in today's form
    messages = for_template(messages, call_format, capabilities)
    messages = with_instruction(messages, instruction(call_format, tools, ...))

What a template cannot write itself is put into texts: calls in its own format, results and
definitions in JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import TemplateError
from ..capabilities import Capabilities
from ..reader import ToolCall
from .call_format import ToolCallFormat
from .definitions import Tool

_Message = dict[str, Any]
_Messages = Sequence[Mapping[str, Any]]
_EXAMPLE = ToolCall("000000000", "<name>", "{<arguments>}")


def read_messages(messages: _Messages) -> list[_Message]:
    """Messages with checked tool calls; OpenAI's old ``function_call`` becomes ``tool_calls``.

    Args:
        messages: dictionaries with a role, and a content that is text.

    Raises:
        TemplateError: a call is invalid; the error names it.
    """
    found = []
    for i, message in enumerate(messages):
        changed = dict(message)
        old = changed.pop("function_call", None)
        if old is not None and not changed.get("tool_calls"):
            changed["tool_calls"] = [{"id": "", "type": "function", "function": old}]
        if changed["role"] == "function":
            changed["role"] = "tool"
        calls = changed.get("tool_calls")
        if calls:
            if not isinstance(calls, Sequence) or isinstance(calls, str):
                raise TemplateError(f"messages[{i}].tool_calls is not a list")
            where = f"messages[{i}].tool_calls"
            changed["tool_calls"] = [_call(f"{where}[{j}]", c) for j, c in enumerate(calls)]
        elif "tool_calls" in changed:  # some templates test only whether the key exists
            del changed["tool_calls"]
        found.append(changed)
    return found


def _call(where: str, call: Any) -> _Message:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise TemplateError(f"{where} is not a dictionary with a function that has a name")
    arguments = function.get("arguments")
    if arguments is None:
        arguments = "{}"
    if not isinstance(arguments, (str, Mapping)):
        raise TemplateError(f"{where}.function.arguments is neither JSON text nor a dictionary")
    return {**call, "type": "function", "function": {**function, "arguments": arguments}}


def for_template(
    messages: Sequence[_Message], call_format: ToolCallFormat, capabilities: Capabilities
) -> list[_Message]:
    """Messages in a form that the template writes.

    Raises:
        TemplateError: arguments are not valid JSON, and the template wants them as an object.
    """
    found = []
    for i, message in enumerate(messages):
        calls = message.get("tool_calls")
        if calls and capabilities.calls:
            as_object = capabilities.object_arguments
            calls = [_with_arguments(f"messages[{i}]", call, as_object) for call in calls]
            message = {**message, "tool_calls": calls}
        elif calls:
            text = call_format.write([_as_call(call) for call in calls])
            content = [message["content"]] if message.get("content") else []
            message = {k: v for k, v in message.items() if k != "tool_calls"}
            message["content"] = "\n".join([*content, text])
        if message["role"] == "tool" and not capabilities.results:
            keys = ("name", "tool_call_id", "content")
            fields = {key: message[key] for key in keys if message.get(key)}
            told = json.dumps({"tool_response": fields}, ensure_ascii=False)
            message = {"role": "user", "content": told}
        found.append(message)
    return found


def _with_arguments(where: str, call: _Message, as_object: bool) -> _Message:
    function = call["function"]
    arguments = function["arguments"]
    if as_object and isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            raise TemplateError(
                f"{where} has a call of {function['name']} whose arguments are not valid JSON"
            ) from None
    elif not as_object and not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}


def _as_call(call: _Message) -> ToolCall:
    function = _with_arguments("", call, as_object=False)["function"]
    return ToolCall(str(call.get("id") or ""), function["name"], function["arguments"])


def instruction(
    call_format: ToolCallFormat, tools: Sequence[Tool], *, required: bool, describe: bool
) -> str:
    """The text that tells a model how to call tools, for the system message.

    Args:
        required: whether a tool must be called.
        describe: include the definitions of the tools.

    Source: llama.cpp, ``common_chat_params_init_generic`` (until 2025).
    """
    lines = []
    if describe:
        lines.append("You may call these tools:")
        lines += [json.dumps(tool.definition, ensure_ascii=False) for tool in tools]
    form = call_format.write([_EXAMPLE])
    if call_format.lazy:
        lines.append(f"To call a tool, reply with: {form}")
    elif required:
        lines.append(f"Respond in JSON format, with a request to call a tool: {form}")
    else:
        lines.append(
            f"Respond in JSON format, either with a request to call a tool: {form}\n"
            "or with a reply to the user's request: "
            '{"response": <text>}'
        )
    return "\n".join(lines)


def with_instruction(messages: Sequence[_Message], text: str) -> list[_Message]:
    """Messages with a text added to the first system message, or as one."""
    first = messages[0] if messages else {}
    if first.get("role") == "system":
        content = "\n\n".join(filter(None, (first.get("content"), text)))
        return [{**first, "content": content}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]
