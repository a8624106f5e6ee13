"""Finds out what a chat template does with system messages, tools and tool calls.

    found = probe(template.render)
    found.tools, found.object_arguments

The template renders short conversations, and the result is searched for their texts.

Source: llama.cpp, ``jinja::caps_get``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import TemplateError

Render = Callable[..., str]
_NAME, _KEY, _VALUES = "probe_tool", "probe_key", ("first value", "second value")
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": _NAME,
            "description": "A tool.",
            "parameters": {
                "type": "object",
                "properties": {_KEY: {"type": "string", "description": "A text."}},
                "required": [_KEY],
            },
        },
    }
]
_RESULT = "the result"
_USER = {"role": "user", "content": "Hi"}
_KEEP = {"enable_thinking": True, "preserve_thinking": True, "clear_thinking": False}
_IDS = ("call00001", "call00002")  # 9 characters: the only length that Mistral's templates accept


@dataclass(frozen=True)
class Capabilities:
    """Abilities of a template.

    Attributes:
        tools: it writes the definitions of tools.
        calls: it writes the tool calls of earlier replies.
        object_arguments: it wants their arguments as an object, else as JSON text.
        parallel: it writes several calls of one reply.
        results: it writes messages of the role ``tool``.
        system: it writes system messages.
        text: it writes a content that is a text.
        parts: it writes a content that is a list of parts.
        old_reasoning: it can write the reasoning of earlier replies.
        effort: it reads ``reasoning_effort``.
    """

    tools: bool = False
    calls: bool = False
    object_arguments: bool = False
    parallel: bool = False
    results: bool = False
    system: bool = True
    text: bool = True
    parts: bool = False
    old_reasoning: bool = False
    effort: bool = False


def probe(render: Render) -> Capabilities:
    """The abilities of the template that ``render`` renders."""
    tools = _NAME in _attempt(render, [_USER], tools=_TOOLS)
    values: dict[str, Any] = {"tools": _TOOLS} if tools else {}
    text = _attempt(render, _conversation(1, as_object=True), **values)
    # a template that expects text fails, or writes the object with Python's quotes
    objects = _VALUES[0] in text and f"'{_VALUES[0]}'" not in text
    if not objects:
        text = _attempt(render, _conversation(1, as_object=False), **values)
    several = _attempt(render, _conversation(2, as_object=objects), **values)
    return Capabilities(
        tools=tools,
        calls=_VALUES[0] in text,
        object_arguments=objects,
        parallel=all(value in several for value in _VALUES),
        results=_RESULT in text,
        **_of_messages(render),
    )


def _of_messages(render: Render) -> dict[str, bool]:
    """What the template does with system messages, parts and reasoning."""
    system = _attempt(render, [{"role": "system", "content": _RESULT}, _USER])
    text = _attempt(render, [{"role": "user", "content": _RESULT}])
    parts = _attempt(render, [{"role": "user", "content": [{"type": "text", "text": _RESULT}]}])
    reply = {"role": "assistant", "content": "Hello.", "reasoning_content": _RESULT}
    old = _attempt(
        render, [_USER, reply, _USER, reply | {"reasoning_content": "x"}, _USER], **_KEEP
    )
    efforts = {_attempt(render, [_USER], reasoning_effort=effort) for effort in ("low", "high")}
    return {
        "system": _RESULT in system,
        "text": _RESULT in text,
        "parts": _RESULT in parts and "'type'" not in parts,
        "old_reasoning": _RESULT in old,
        "effort": len(efforts) > 1,
    }


def _conversation(n: int, *, as_object: bool) -> list[dict[str, Any]]:
    """A conversation in which a reply has ``n`` tool calls."""
    calls = []
    for id, value in zip(_IDS[:n], _VALUES, strict=False):
        arguments: Any = {_KEY: value}
        function = {
            "name": _NAME,
            "arguments": arguments if as_object else json.dumps(arguments),
        }
        calls.append({"id": id, "type": "function", "function": function})
    results = [
        {"role": "tool", "name": _NAME, "content": _RESULT, "tool_call_id": id} for id in _IDS[:n]
    ]
    reply = {"role": "assistant", "content": "", "tool_calls": calls}
    return [_USER, reply, *results, {"role": "assistant", "content": "Done."}, _USER]


def _attempt(render: Render, messages: list[dict[str, Any]], **values: Any) -> str:
    try:
        return render(messages, **values)
    except TemplateError:
        return ""
