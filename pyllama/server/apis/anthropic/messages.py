"""``/v1/messages``: Anthropic's format, converted to OpenAI's and back."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ....chat.turn import Turn
from ....parameters.generation import names_in
from ...http.sse import JsonResponse, ResponseWriter, event_lines, read_json, respond
from ...request.errors import ApiError
from ...request.fields import Body, Fields
from ...worker.choice import Choice, Piece
from ...worker.served import ServedModel, random_id
from ..openai.chat import Replies, prepare_chat

_DEFAULT_MAX_TOKENS = 4096
_SAME = {**names_in("anthropic"), "chat_template_kwargs": "chat_template_kwargs"}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}  # OpenAI's names
_BILLING = re.compile(r"\A(x-anthropic-billing-header:.*?cch=)[^;]{5}(?=;)", re.DOTALL)


async def messages(request: Request, served: ServedModel) -> Response:
    """``POST /v1/messages``."""
    body = await read_json(request, served.options)
    stream = await served.prepare(lambda: served.reply(prepare_chat(served, to_openai(body))))
    return await respond(request, stream, AnthropicWriter(served, stream.options.conversation))


async def count_tokens(request: Request, served: ServedModel) -> Response:
    """``POST /v1/messages/count_tokens``."""
    body = await read_json(request, served.options)
    prepared = await served.prepare(lambda: prepare_chat(served, to_openai(body)))
    return JsonResponse({"input_tokens": len(prepared.conversation.prompt.tokens)})


def to_openai(body: Body) -> Body:
    """A request of Anthropic's API as one of OpenAI's chat API.

    Raises:
        ApiError: there are no messages, or a field is wrong or not supported.

    Source: llama.cpp, ``server_chat_convert_anthropic_to_oai``.
    """
    fields = Fields(body)
    if not fields.has("messages"):
        raise ApiError.invalid("'messages' is required")
    found: list[Any] = []
    system = _system(body.get("system"))
    if system is not None:
        found.append({"role": "system", "content": system})
    for message in fields.get("messages", [], list):
        found += _messages(message)
    converted: dict[str, Any] = {"messages": found}
    if fields.has("tools"):
        tools = fields.get("tools", [], list)
        converted["tools"] = [_tool(tool) for tool in tools if not _is_anthropics(tool)]
        for i, tool in enumerate(tools):
            if _is_anthropics(tool):
                fields.leave_out(f"tools[{i}] ({tool['type']!s:.40})")
    if fields.has("tool_choice"):
        choice = fields.inner("tool_choice")
        kind = choice.get("type", "auto", str)
        if kind == "tool":
            function = {"name": choice.get("name", "", str)}
            converted["tool_choice"] = {"type": "function", "function": function}
        elif kind in _CHOICES:
            converted["tool_choice"] = _CHOICES[kind]
        else:
            raise ApiError.invalid(
                f"Field 'tool_choice.type': must be tool, {', '.join(_CHOICES)}, got {kind:.40}"
            )
        if choice.flag("disable_parallel_tool_use"):
            converted["parallel_tool_calls"] = False
    converted |= {new: body[old] for old, new in _SAME.items() if old in body}
    converted["max_tokens"] = fields.whole("max_tokens", _DEFAULT_MAX_TOKENS, low=0)
    thinking = fields.inner("thinking")
    kind = thinking.get("type", "", str)
    if kind == "enabled":
        converted["reasoning_budget_tokens"] = thinking.whole("budget_tokens", 10000, low=-1)
    elif kind == "disabled":
        converted["reasoning_effort"] = "none"
    return Body(converted, of=body, names={"reasoning_budget_tokens": "thinking"})


def _is_anthropics(tool: Any) -> bool:
    """Whether a tool is one of Anthropic's own, such as ``web_search_20250305``."""
    return isinstance(tool, Mapping) and tool.get("type") not in (None, "custom")


def _system(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, (str, list)):
        raise ApiError.invalid("Field 'system': must be a string or a list of text blocks")
    texts = [value] if isinstance(value, str) else []
    for block in value if isinstance(value, list) else ():
        if not isinstance(block, Mapping) or block.get("type") != "text":
            raise ApiError.invalid("Field 'system': a block must be of type text")
        texts.append(str(block.get("text", "")))
    # a stamp that differs in each request would end the common prefix of the prompts
    return "".join(_BILLING.sub(r"\1fffff", text) for text in texts)


def _messages(message: Any) -> list[Any]:
    """OpenAI's messages for one of Anthropic's: its own, then those of tool results."""
    if not isinstance(message, Mapping) or not isinstance(message.get("content"), list):
        return [message]
    contents: list[Any] = []
    calls: list[Any] = []
    results: list[Any] = []
    reasoning = ""
    for block in message["content"]:
        if not isinstance(block, Mapping):
            raise ApiError.invalid("a block of a message's content must be an object")
        kind = block.get("type")
        if kind == "text":
            contents.append({"type": "text", "text": block.get("text", "")})
        elif kind == "thinking":
            reasoning += str(block.get("thinking", ""))
        elif kind == "image":
            contents.append(_image(block))
        elif kind == "tool_use":
            arguments = json.dumps(block.get("input", {}), ensure_ascii=False)
            function = {"name": block.get("name", ""), "arguments": arguments}
            calls.append({"id": block.get("id", ""), "type": "function", "function": function})
        elif kind == "tool_result":
            content = _result(block.get("content"))
            id = block.get("tool_use_id", "")
            results.append({"role": "tool", "tool_call_id": id, "content": content})
        elif kind != "redacted_thinking":  # which only Anthropic's servers can read
            raise _unknown_block(kind)
    if not (contents or calls or reasoning):
        return results
    converted: dict[str, Any] = {"role": message.get("role"), "content": contents or ""}
    if calls:
        converted["tool_calls"] = calls
    if reasoning:
        converted["reasoning_content"] = reasoning
    return [converted, *results]


def _unknown_block(kind: Any) -> ApiError:
    return ApiError.invalid(f"content blocks of type {kind!r:.40} are not supported")


def _result(content: Any) -> Any:
    if content is None:
        return ""
    if not isinstance(content, (str, list)):
        raise ApiError.invalid("the content of a tool_result must be a string or a list of blocks")
    if isinstance(content, str):
        return content
    parts: list[Any] = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == "text":
            parts.append({"type": "text", "text": str(part.get("text", ""))})
        elif kind == "image":
            parts.append(_image(part))
        else:
            raise _unknown_block(kind)
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _image(block: Mapping[str, Any]) -> dict[str, Any]:
    source = block.get("source")
    source = source if isinstance(source, Mapping) else {}
    url = f"data:{source.get('media_type', 'image/jpeg')};base64,{source.get('data', '')}"
    return {"type": "image_url", "image_url": {"url": source.get("url", url)}}


def _tool(tool: Any) -> dict[str, Any]:
    if not isinstance(tool, Mapping):
        raise ApiError.invalid("a tool must be an object")
    function = {
        "name": tool.get("name", ""),
        "description": tool.get("description", ""),
        "parameters": tool.get("input_schema", {}),
    }
    if tool.get("strict") is not None:
        function["strict"] = tool["strict"]
    return {"type": "function", "function": function}


class AnthropicWriter(ResponseWriter):
    """Anthropic's format. A block begins when a delta of another kind or call arrives.

    Source: llama.cpp, ``server_task_result_cmpl_partial::to_json_anthropic``.
    """

    def __init__(self, served: ServedModel, turn: Turn) -> None:
        self._served, self._replies = served, Replies(turn)
        self._own_stops = turn.prompt.stop  # of the template: they end a turn
        self._id = random_id("msg_")
        self._begun = False
        self._block: tuple[str, int] | None = None  # kind, and index of the call
        self._n_blocks = 0

    def piece(self, text: Choice, piece: Piece) -> str:
        if piece.progress:
            return ""
        events: list[tuple[str, dict[str, Any]]] = []
        if not self._begun:
            self._begun = True
            start = self._message(text, [], None, 0)
            events.append(("message_start", {"message": start}))
        delta = self._replies.delta(text, piece)
        if delta.reasoning:
            self._enter(events, ("thinking", 0), {"type": "thinking", "thinking": ""})
            self._add(events, {"type": "thinking_delta", "thinking": delta.reasoning})
        if delta.content:
            self._enter(events, ("text", 0), {"type": "text", "text": ""})
            self._add(events, {"type": "text_delta", "text": delta.content})
        for call in delta.calls:
            block = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
            self._enter(events, ("tool_use", call.index), block)
            if call.arguments:
                self._add(events, {"type": "input_json_delta", "partial_json": call.arguments})
        if piece.is_last:
            self._leave(events)
            reason = {"stop_reason": self._reason(text), "stop_sequence": self._stop(text)}
            usage = {"output_tokens": text.n_generated}
            events.append(("message_delta", {"delta": reason, "usage": usage}))
            events.append(("message_stop", {}))
        return "".join(event_lines(kind, {"type": kind, **value}) for kind, value in events)

    def _enter(
        self, events: list[tuple[str, dict[str, Any]]], block: tuple[str, int], start: Any
    ) -> None:
        """Begin a block unless it is the open one."""
        if self._block == block:
            return
        self._leave(events)
        self._block = block
        value = {"index": self._n_blocks, "content_block": start}
        events.append(("content_block_start", value))

    def _add(self, events: list[tuple[str, dict[str, Any]]], delta: dict[str, Any]) -> None:
        events.append(("content_block_delta", {"index": self._n_blocks, "delta": delta}))

    def _leave(self, events: list[tuple[str, dict[str, Any]]]) -> None:
        """End the open block."""
        if self._block is None:
            return
        if self._block[0] == "thinking":
            self._add(events, {"type": "signature_delta", "signature": ""})
        events.append(("content_block_stop", {"index": self._n_blocks}))
        self._block = None
        self._n_blocks += 1

    def whole(self, texts: Sequence[Choice]) -> Any:
        text, blocks = texts[0], list[dict[str, Any]]()
        message = self._replies.message(text)
        if message.reasoning:
            blocks.append({"type": "thinking", "thinking": message.reasoning, "signature": ""})
        if message.content:
            blocks.append({"type": "text", "text": message.content})
        for call in message.calls:
            named = {"id": call.id, "name": call.name, "input": call.parsed()}
            blocks.append({"type": "tool_use", **named})
        return self._message(text, blocks, self._reason(text), text.n_generated)

    def _message(
        self, text: Choice, content: list[Any], reason: str | None, n_output: int
    ) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self._served.name,
            "stop_reason": reason,
            "stop_sequence": self._stop(text) if reason else None,
            "usage": {
                "cache_read_input_tokens": text.n_cached,
                "input_tokens": text.n_prompt - text.n_cached,
                "output_tokens": n_output,
            },
        }

    def _reason(self, text: Choice) -> str:
        if text.stop_type not in ("eos", "word"):
            return "max_tokens"
        if self._replies.message(text).calls:
            return "tool_use"
        return "stop_sequence" if self._stop(text) else "end_turn"

    def _stop(self, text: Choice) -> str | None:
        word = text.stopping_word
        return word if word and word not in self._own_stops else None
