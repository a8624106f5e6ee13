"""``/v1/responses``: OpenAI's newer format, converted to the chat API's and back."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ....chat.reader import Message, ToolCall
from ....chat.turn import Turn
from ....parameters.generation import names_in
from ...http.sse import ResponseWriter, event_lines, read_json, respond
from ...request.errors import ApiError
from ...request.fields import Body, Fields
from ...worker.choice import Choice, Piece
from ...worker.served import ServedModel, random_id
from .chat import Replies, prepare_chat

Events = list[dict[str, Any]]
_MESSAGE_ROLES = ("user", "system", "developer")
_STORED = ("previous_response_id", "conversation", "prompt")  # what names something kept
_OF_CHAT = ("logprobs", "top_logprobs", "n_probs", "n", "n_cmpl")  # a response has none of these
_ECHOED = (
    "instructions", "metadata", "parallel_tool_calls", "temperature", "tool_choice", "tools",
    "top_p",
)  # fmt: skip


async def responses(request: Request, served: ServedModel) -> Response:
    """``POST /v1/responses``."""
    body = await read_json(request, served.options)
    stream = await served.prepare(lambda: served.reply(prepare_chat(served, to_chat(body))))
    return await respond(
        request, stream, ResponsesWriter(served, stream.options.conversation, body)
    )


def to_chat(body: Body) -> Body:
    """A request of the responses API as one of the chat API.

    Raises:
        ApiError: an item or field is wrong or not supported.

    Source: llama.cpp, ``server_chat_convert_responses_to_chatcmpl``.
    """
    fields = Fields(body)
    given = body.get("input")
    if given is None:
        raise ApiError.invalid("'input' is required")
    for name in _STORED:
        if body.get(name):
            raise ApiError.invalid(f"'{name}' is not supported: nothing is stored")
    messages: list[dict[str, Any]] = []
    instructions = fields.get("instructions", "", str)
    if instructions:
        messages.append({"role": "system", "content": instructions})
    if isinstance(given, str):
        messages.append({"role": "user", "content": given})
    elif isinstance(given, list):
        for i, item in enumerate(given):
            if not isinstance(item, Mapping):
                raise ApiError.invalid("an item of 'input' must be an object")
            if not _add_item(messages, item):
                fields.leave_out(f"input[{i}]")
    else:
        raise ApiError.invalid("'input' must be a string or array of objects")
    converted: dict[str, Any] = {"messages": messages, **dict.fromkeys(_OF_CHAT)}
    if fields.has("tools"):
        tools = body["tools"]
        if not isinstance(tools, list):
            raise ApiError.invalid("'tools' must be an array of objects")
        converted["tools"] = [_tool(t) for t in tools if _is_function(t)]
        for i, tool in enumerate(tools):
            if not _is_function(tool):
                fields.leave_out(f"tools[{i}]")
    choice = body.get("tool_choice")
    if isinstance(choice, Mapping) and choice.get("type") == "function":
        function = {"name": choice.get("name", "")}
        converted["tool_choice"] = {"type": "function", "function": function}
    converted |= {new: body[old] for old, new in names_in("responses").items() if fields.has(old)}
    effort = fields.inner("reasoning").get("effort", "", str)
    if effort:
        converted["reasoning_effort"] = effort
    format = fields.inner("text").get("format", {}, dict)
    if format:
        converted["response_format"] = _format(format)
    return Body(converted, body, names={"reasoning_effort": "reasoning.effort"})


def _format(format: Mapping[str, Any]) -> Mapping[str, Any]:
    """``text.format`` as a ``response_format``, whose schema lies deeper."""
    if format.get("type") == "json_schema":
        inner = {name: format.get(name) for name in ("schema", "strict")}
        return {"type": "json_schema", "json_schema": inner}
    return format


def _is_function(tool: Any) -> bool:
    """Whether a tool is a function; the chat API has no others."""
    return isinstance(tool, Mapping) and tool.get("type") == "function"


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = {name: value for name, value in tool.items() if name != "type"}
    return {"type": "function", "function": function}


def _add_item(messages: list[dict[str, Any]], item: Mapping[str, Any]) -> bool:
    """Add the message of an item, or join it with the assistant's message before it.

    Returns:
        False if it has nothing to add: clients send reasoning back without its content, of which
        they keep a summary, or the encrypted text of another server.
    """
    kind, role, content = item.get("type"), item.get("role"), item.get("content")
    if role in _MESSAGE_ROLES and isinstance(content, (str, list)):
        messages.append({"role": role, "content": _parts(content)})
    elif role == "assistant" and isinstance(content, (str, list)):
        _assistant(messages).setdefault("content", [])
        _assistant(messages)["content"] += _parts(content)
    elif kind == "function_call":
        function = {"name": item.get("name", ""), "arguments": item.get("arguments", "")}
        call = {"id": item.get("call_id", ""), "type": "function", "function": function}
        _assistant(messages).setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        output = item.get("output", "")
        if isinstance(output, list):
            output = _parts(output)
        id = item.get("call_id", "")
        messages.append({"role": "tool", "tool_call_id": id, "content": output})
    elif kind == "reasoning":
        if not content:
            return False
        parts = _parts(content)
        if any(part["type"] != "text" for part in parts):
            raise ApiError.invalid("the content of a reasoning item must be text")
        reasoning = "".join(part["text"] for part in parts)
        message = _assistant(messages)
        message["reasoning_content"] = message.get("reasoning_content", "") + reasoning
        message.setdefault("content", [])
    else:
        raise ApiError.invalid("Cannot determine type of 'item'")
    return True


def _assistant(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The last message if it is the assistant's, else a new one."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant"})
    return messages[-1]


def _parts(content: Any) -> list[Any]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    found: list[Any] = []
    if not isinstance(content, list):
        raise ApiError.invalid("the content of an item must be a string or an array of parts")
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind in ("input_text", "output_text", "reasoning_text", "text"):
            if not isinstance(part.get("text"), str):
                raise ApiError.invalid(f"'{kind}' requires 'text'")
            found.append({"type": "text", "text": part["text"]})
        elif kind == "refusal":
            found.append({"type": "text", "text": str(part.get("refusal", ""))})
        elif kind == "input_image":
            found.append({"type": "image_url", "image_url": {"url": part.get("image_url")}})
        else:
            raise ApiError.invalid(f"the content type {kind!r:.40} is not supported")
    return found


class ResponsesWriter(ResponseWriter):
    """The format of the responses API.

    Source: llama.cpp, ``server_task_result_cmpl_partial::to_json_oaicompat_resp``; indices and
    sequence numbers are OpenAI's. A text that was cut is ``completed`` too, as in llama.cpp.
    """

    def __init__(self, served: ServedModel, turn: Turn, body: Body) -> None:
        self._served, self._replies, self._created = served, Replies(turn), int(time.time())
        self._echoed = {name: body.get(name) for name in _ECHOED}
        self._id, self._message_id = random_id("resp_"), random_id("msg_")
        self._reasoning_id = random_id("rs_")
        self._is_created = False
        self._open: tuple[str, int] | None = None  # the item that is being written
        self._output: list[dict[str, Any]] = []
        self._n_events = 0

    def piece(self, text: Choice, piece: Piece) -> str:
        events: Events = []
        if not self._is_created:
            self._is_created = True
            events.append({"type": "response.created", "response": self._response("in_progress")})
            events.append(self._in_progress())
        elif piece.progress:
            events.append(self._in_progress())
        delta = self._replies.delta(text, piece)
        if delta.reasoning:
            self._enter(events, ("reasoning", 0), text)
            self._add(events, "response.reasoning_text.delta", delta.reasoning)
        if delta.content:
            self._enter(events, ("message", 0), text)
            self._add(events, "response.output_text.delta", delta.content)
        for call in delta.calls:
            self._enter(events, ("function_call", call.index), text, call)
            if call.arguments:
                self._add(events, "response.function_call_arguments.delta", call.arguments)
        if events:
            events[-1] |= piece.reports
        if piece.is_last:
            self._leave(events, text)
            response = self._response("completed", text)
            timings = text.timings()
            events.append({"type": "response.completed", "response": response, "timings": timings})
        return "".join(map(self._write, events))

    def _write(self, event: dict[str, Any]) -> str:
        event["sequence_number"] = self._n_events
        self._n_events += 1
        return event_lines(event["type"], event)

    def _in_progress(self) -> dict[str, Any]:
        return {"type": "response.in_progress", "response": self._response("in_progress")}

    def _enter(
        self, events: Events, item: tuple[str, int], text: Choice, call: ToolCall | None = None
    ) -> None:
        """Begin an item unless it is the open one."""
        if self._open == item:
            return
        self._leave(events, text)
        self._open = item
        if item[0] == "reasoning":
            value = _reasoning(self._reasoning_id, None)
        elif item[0] == "message":
            value = _message(self._message_id, None)
        else:
            assert call is not None
            value = _function_call(call.id, call.name, "", "in_progress")
        self._output.append(value)
        events.append(self._event("response.output_item.added", item=value))
        if item[0] == "message":
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            events.append(self._part_event("response.content_part.added", part=part))

    def _event(self, kind: str, **values: Any) -> dict[str, Any]:
        return {"type": kind, "output_index": len(self._output) - 1, **values}

    def _part_event(self, kind: str, **values: Any) -> dict[str, Any]:
        id = self._output[-1]["id"]
        return self._event(kind, item_id=id, content_index=0, **values)

    def _add(self, events: Events, kind: str, delta: str) -> None:
        if self._open is not None and self._open[0] == "message":
            events.append(self._part_event(kind, delta=delta, logprobs=[]))
        elif self._open is not None and self._open[0] == "reasoning":
            events.append(self._part_event(kind, delta=delta))
        else:
            events.append(self._event(kind, item_id=self._output[-1]["id"], delta=delta))

    def _leave(self, events: Events, text: Choice) -> None:
        """End the open item."""
        if self._open is None:
            return
        kind, index = self._open
        message = self._replies.message(text)
        if kind == "reasoning":
            value = _reasoning(self._reasoning_id, message.reasoning)
            done = self._part_event("response.reasoning_text.done", text=message.reasoning)
            events.append(done)
        elif kind == "message":
            value = _message(self._message_id, message.content)
            part = value["content"][0]
            done = self._part_event("response.output_text.done", text=part["text"], logprobs=[])
            events.append(done)
            events.append(self._part_event("response.content_part.done", part=part))
        else:
            call = message.calls[index]
            value = _function_call(call.id, call.name, call.arguments, "completed")
            ended = "response.function_call_arguments.done"
            more = {"name": call.name, "arguments": call.arguments}
            events.append(self._event(ended, item_id=value["id"], **more))
        self._output[-1] = value
        events.append(self._event("response.output_item.done", item=value))
        self._open = None

    def whole(self, texts: Sequence[Choice]) -> Any:
        text = texts[0]
        self._output = self._items(self._replies.message(text))
        return {**self._response("completed", text), "timings": text.timings()}

    def _items(self, message: Message) -> list[dict[str, Any]]:
        items = []
        if message.reasoning:
            items.append(_reasoning(self._reasoning_id, message.reasoning))
        if message.content:
            items.append(_message(self._message_id, message.content))
        return items + [
            _function_call(call.id, call.name, call.arguments, "completed")
            for call in message.calls
        ]

    def _response(self, status: str, text: Choice | None = None) -> dict[str, Any]:
        body = self._echoed
        found: dict[str, Any] = {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "model": self._served.name,
            "output": list(self._output),
            "error": None,
            "incomplete_details": None,
            "instructions": body.get("instructions"),
            "metadata": body.get("metadata") or {},
            "parallel_tool_calls": bool(body.get("parallel_tool_calls", True)),
            "temperature": body.get("temperature"),
            "tool_choice": body.get("tool_choice") or "auto",
            "tools": body.get("tools") or [],
            "top_p": body.get("top_p"),
        }
        if text is None:
            return found
        found["completed_at"] = int(time.time())
        found["usage"] = {
            "input_tokens": text.n_prompt,
            "output_tokens": text.n_generated,
            "total_tokens": text.n_prompt + text.n_generated,
            "input_tokens_details": {"cached_tokens": text.n_cached},
            "output_tokens_details": {
                "reasoning_tokens": self._replies.n_reasoning(text, self._served.tokenizer)
            },
        }
        return found


def _reasoning(id: str, text: str | None) -> dict[str, Any]:
    content = [] if text is None else [{"type": "reasoning_text", "text": text}]
    return {
        "id": id,
        "type": "reasoning",
        "summary": [],
        "content": content,
        "encrypted_content": "",
        "status": "in_progress" if text is None else "completed",
    }


def _message(id: str, text: str | None) -> dict[str, Any]:
    part: dict[str, Any] = {"type": "output_text", "annotations": [], "logprobs": []}
    part["text"] = text
    return {
        "id": id,
        "type": "message",
        "role": "assistant",
        "content": [] if text is None else [part],
        "status": "in_progress" if text is None else "completed",
    }


def _function_call(id: str, name: str, arguments: str, status: str) -> dict[str, Any]:
    return {
        "id": f"fc_{id}",
        "type": "function_call",
        "call_id": f"call_{id}",
        "name": name,
        "arguments": arguments,
        "status": status,
    }
